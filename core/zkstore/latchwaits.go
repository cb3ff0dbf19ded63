package zkstore

import (
	"context"
	"errors"
	"path"
	"sync"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// latchTimers are this process's waiters for latches, and its timers that remove what has expired.
type latchTimers struct {
	mu      sync.Mutex
	waiters map[string]map[chan struct{}]struct{} // by the path of a latch
	sweeps  map[string]*time.Timer                // by the path of a generation
	stopped bool
}

// latchBeat is how often a waiter looks at its latch, in case that an event is lost.
const latchBeat = 2 * time.Second

// AwaitLatch implements store.Latches. It watches the latch, and looks at it every two seconds.
func (s *Store) AwaitLatch(ctx context.Context, req store.LatchRequest) error {
	if err := s.acceptsNew(ctx); err != nil {
		return err
	}
	at := s.latchPath(req.Name)
	wake := s.latches.enter(at)
	defer s.leaveLatch(at, wake)
	pause := leastPause
	for {
		open, err := s.lookAtLatch(ctx, at, req.Count)
		wait := latchBeat
		switch {
		case open:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case errors.Is(err, store.ErrMisconfigured), errors.Is(err, store.ErrClosed):
			return err
		case err != nil && s.link.silence() > max(5*s.config.timeout, 3*time.Second):
			return err
		case err != nil:
			wait, pause = pause, min(2*pause, mostPause)
		default:
			pause = leastPause
		}
		timer := time.NewTimer(wait)
		select {
		case <-wake:
		case <-timer.C:
		case <-ctx.Done():
			err = ctx.Err()
		case <-s.hooks.Over():
			err = store.ErrClosed
		case <-s.life.Done():
			err = store.ErrClosed
		}
		timer.Stop()
		if ctx.Err() != nil || errors.Is(err, store.ErrClosed) {
			return err
		}
	}
}

// lookAtLatch reports whether a latch has as many participants as a waiter waits for. If it does not,
// its generation is watched.
func (s *Store) lookAtLatch(ctx context.Context, at string, count int) (open bool, err error) {
	done := s.telemetry.Begin(ctx, opLatch)
	defer func() { done.End(ctx, err) }()
	l, err := s.latch(ctx, at, true)
	if err != nil {
		return false, err
	}
	of := watch{l.current(), false}
	if s.watches.arm(of) {
		err := s.watchLatch(ctx, l)
		if err != nil {
			s.watches.disarm(of)
		}
		if errors.Is(err, zk.ErrNoNode) { // another generation
			s.latches.fired(l.current())
			return false, nil
		}
		if err != nil {
			return false, err
		}
	}
	if l.arrived < count {
		return false, nil
	}
	over, err := s.expired(ctx, l)
	return err == nil && !over, err
}

// watchLatch watches the generation of a latch, and reads it again.
func (s *Store) watchLatch(ctx context.Context, l *latch) error {
	_, err := call(ctx, s.calls, reads, func(c *zk.Conn) (struct{}, error) {
		data, stat, _, err := c.GetW(l.current())
		if err == nil {
			l.read(data, stat)
		}
		return struct{}{}, err
	}, nil)
	return err
}

func (t *latchTimers) enter(at string) chan struct{} {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiters == nil {
		t.waiters = make(map[string]map[chan struct{}]struct{})
	}
	if t.waiters[at] == nil {
		t.waiters[at] = make(map[chan struct{}]struct{})
	}
	wake := make(chan struct{}, 1)
	t.waiters[at][wake] = struct{}{}
	return wake
}

// leaveLatch ends a wait. Nodes without participants, which the waiters have created, are removed by
// the last one.
func (s *Store) leaveLatch(at string, wake chan struct{}) {
	t := &s.latches
	t.mu.Lock()
	delete(t.waiters[at], wake)
	last := len(t.waiters[at]) == 0
	if last {
		delete(t.waiters, at)
	}
	t.mu.Unlock()
	if last {
		s.start(func() {
			if l, err := s.latch(s.life, at, false); err == nil && l.arrived == 0 {
				_ = s.delete(s.life, l.current()) // fails if there are participants; the server removes the container
			}
		})
	}
}

// fired wakes the waiters for the latch of a generation.
func (t *latchTimers) fired(generation string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for wake := range t.waiters[path.Dir(generation)] {
		select {
		case wake <- struct{}{}:
		default:
		}
	}
}

// sweepAfter removes a generation when its TTL is over, unless it has got further participants.
func (t *latchTimers) sweepAfter(s *Store, at string, generation int64, ttl time.Duration) {
	of := generationOf(at, generation)
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.stopped {
		return
	}
	if t.sweeps == nil {
		t.sweeps = make(map[string]*time.Timer)
	}
	after := ttl + ttl/16 + 100*time.Millisecond
	if timer := t.sweeps[of]; timer != nil {
		timer.Reset(after)
		return
	}
	t.sweeps[of] = time.AfterFunc(after, func() {
		t.mu.Lock()
		delete(t.sweeps, of)
		t.mu.Unlock()
		s.start(func() { s.sweepLatch(at, generation) })
	})
}

func (t *latchTimers) stop() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.stopped = true
	for _, timer := range t.sweeps {
		timer.Stop()
	}
}

// sweepLatch removes a generation that has expired. The next one begins first, so that no participant
// counts in one that is being removed.
func (s *Store) sweepLatch(at string, generation int64) {
	l, err := s.latch(s.life, at, false)
	if err != nil || l.generation != generation || l.arrived == 0 {
		return
	}
	if over, err := s.expired(s.life, l); err != nil || !over {
		return
	}
	if err := s.nextGeneration(s.life, l); err != nil {
		return
	}
	l, err = s.latch(s.life, at, false)
	if err == nil && l.arrived == 0 && !s.latches.awaited(at) {
		_ = s.delete(s.life, l.current())
	}
}

func (t *latchTimers) awaited(at string) bool {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.waiters[at]) > 0
}

// removeGeneration removes the node of a generation, with its participants.
func (s *Store) removeGeneration(ctx context.Context, generation string) {
	names, err := call(ctx, s.calls, renews, func(c *zk.Conn) ([]string, error) {
		names, _, err := c.Children(generation)
		return names, err
	}, nil)
	if err != nil {
		return
	}
	_ = each(names, func(name string) error { return s.delete(ctx, generation+"/"+name) })
	_ = s.delete(ctx, generation)
}
