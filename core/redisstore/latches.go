package redisstore

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

var _ store.Latches = (*Store)(nil)

const (
	// latchBeat is how often a waiter checks its latch, since a push may be lost.
	latchBeat = 3 * time.Second
	// latchLife is how long the server sends pushes after a check.
	latchLife = 3 * latchBeat
	// latchSilence is how long the store may not reply until a wait fails.
	latchSilence = 5 * time.Second
)

// latches are the waiters of this process for latches, by the latch's tag.
type latches struct {
	mu    sync.Mutex
	waits map[string]map[chan struct{}]struct{}
}

// wait returns a channel that receives when the latch may be open.
func (ls *latches) wait(tag string) (opened chan struct{}, forget func()) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	if ls.waits == nil {
		ls.waits = make(map[string]map[chan struct{}]struct{})
	}
	if ls.waits[tag] == nil {
		ls.waits[tag] = make(map[chan struct{}]struct{})
	}
	opened = make(chan struct{}, 1)
	ls.waits[tag][opened] = struct{}{}
	return opened, func() {
		ls.mu.Lock()
		defer ls.mu.Unlock()
		if delete(ls.waits[tag], opened); len(ls.waits[tag]) == 0 {
			delete(ls.waits, tag)
		}
	}
}

// open makes all waiters for a latch check it.
func (ls *latches) open(tag string) {
	ls.mu.Lock()
	defer ls.mu.Unlock()
	for opened := range ls.waits[tag] {
		select {
		case opened <- struct{}{}:
		default:
		}
	}
}

// recheckAll makes all waiters check their latches.
func (ls *latches) recheckAll() {
	ls.mu.Lock()
	tags := slices.Collect(maps.Keys(ls.waits))
	ls.mu.Unlock()
	for _, tag := range tags {
		ls.open(tag)
	}
}

func (s *Store) latchKeys(name string) (tag string, keys []string) {
	tag = s.tag(name, "")
	stem := s.config.prefix + ofLatches + tag + "}"
	return tag, []string{stem + ":" + name, stem + "w"}
}

// CountDownLatch implements store.Latches: one script call.
func (s *Store) CountDownLatch(ctx context.Context, req store.LatchRequest, participant string) (int, error) {
	if s.hooks.Begun() {
		return 0, store.ErrClosed
	}
	tag, keys := s.latchKeys(req.Name)
	n, err := s.latch(ctx, countDownLatch, keys,
		s.tag(req.Name, participant), req.TTL.Milliseconds(), store.MaxParticipants, "open "+tag)
	if err == nil && n < 0 {
		return 0, fmt.Errorf("%w: a latch has at most %d participants", store.ErrFull, store.MaxParticipants)
	}
	return n, err
}

// InspectLatch implements store.Latches: one round trip.
func (s *Store) InspectLatch(ctx context.Context, req store.LatchRequest) (int, error) {
	_, keys := s.latchKeys(req.Name)
	n := s.redis.Node(ctx, keys[0])
	return script.Do(ctx, n, script.Command{Operation: opInspect}, func(ctx context.Context) (int, error) {
		if err := n.Check(ctx); err != nil {
			return 0, err
		}
		participants, err := s.client.SCard(ctx, keys[0]).Result()
		return int(participants), err
	})
}

// AwaitLatch implements store.Latches. It waits for a push, and checks every three seconds.
func (s *Store) AwaitLatch(ctx context.Context, req store.LatchRequest) error {
	over := s.hooks.Over()
	tag, keys := s.latchKeys(req.Name)
	opened, forget := s.latches.wait(tag)
	defer forget()
	s.listen()
	heard := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		if s.hooks.Begun() {
			return store.ErrClosed
		}
		pause := latchBeat
		if s.inbox.broken() {
			pause = beatEvery
		}
		n, err := s.latch(ctx, awaitLatch, keys, req.Count, s.inbox.channel, latchLife.Milliseconds())
		switch {
		case err == nil && n >= req.Count:
			return nil
		case err == nil:
			heard = time.Now()
		case ctx.Err() != nil:
			return lease.Ended(ctx)
		case s.redis.Life().Err() != nil || time.Since(heard) > latchSilence:
			return err
		default:
			pause = retryBeat
		}
		timer.Reset(pause - rand.N(pause/5))
		select {
		case <-opened:
		case <-timer.C:
		case <-ctx.Done():
			return lease.Ended(ctx)
		case <-over:
			return store.ErrClosed
		}
	}
}

// latch runs a script that returns the number of participants of a latch.
func (s *Store) latch(ctx context.Context, sc *script.Script, keys []string, args ...any) (int, error) {
	st := script.Step{Call: sc.Call(keys, args...), Operation: opLatch, Begins: true}
	return script.Run(ctx, s.redis, st, func(r script.Reply) (int, error) { return script.Int(r.Value) })
}
