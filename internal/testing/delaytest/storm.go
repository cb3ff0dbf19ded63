// Package delaytest has tests of delayed tasks that run on every server.
package delaytest

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// Storm puts tasks into a queue whose workers end, pause and are cut off, while events happen to the
// server. open returns the store of a worker, whose connections go through a proxy; direct is a store
// without one.
//
// No task is early or lost: each is done, or buried because a worker has died in the middle of it, so
// that its outcome is unknown. None has its effect twice, by a guard with the task's ID.
func Storm(t *testing.T, tasks int, direct store.Store, open func() (store.Store, *faultproxy.Proxy), events ...func()) {
	const workers, lasts = 8, 15 * time.Second
	lease := testpace.Scale(2 * time.Second)
	quiet := slog.New(slog.DiscardHandler)
	options := []delay.Option{
		delay.WithLogger(quiet), delay.WithAttempts(1000), delay.WithBackoff(func(int) time.Duration { return 100 * time.Millisecond }),
		delay.WithLease(lease),
	}
	name := fmt.Sprintf("storm-%d", rand.Uint64())
	s := storm{t: t, due: make(map[string]time.Time), effects: make(map[string]int)}

	ctx, end := context.WithCancel(t.Context())
	defer end()
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			st, proxy := open()
			for n := w; ctx.Err() == nil; n++ {
				queue, err := delay.New(st, name, options...)
				s.ok(err)
				once, err := guard.New(st, name, guard.WithLogger(quiet), guard.WithTTL(lease))
				s.ok(err)
				s.live(ctx, n, lease, queue, once, proxy)
				wg.Go(func() { _, _ = queue.Close(), once.Close() })
			}
		})
	}

	queue, err := delay.New(direct, name, options...)
	s.ok(err)
	began := time.Now()
	batches := 20
	for batch := range batches {
		s.put(queue, batch, tasks/batches, lasts)
		if len(events) > 0 && batch%2 == 1 {
			events[batch/2%len(events)]()
		}
		<-time.After(time.Until(began.Add(time.Duration(batch+1) * lasts / 2 / time.Duration(batches))))
	}
	testpace.Eventually(t, time.Minute, "all tasks are settled", func() bool {
		counts, err := queue.Count(t.Context())
		return err == nil && counts.Waiting+counts.Running == 0
	})
	end()
	wg.Wait()
	s.check(queue)
}

type storm struct {
	t *testing.T

	mu      sync.Mutex
	due     map[string]time.Time
	effects map[string]int
	begun   int
}

func (s *storm) ok(err error) {
	if err != nil {
		s.t.Error(err)
	}
}

func (s *storm) put(queue *delay.Queue, batch, n int, within time.Duration) {
	for i := range n {
		key, after := fmt.Sprintf("%d-%d", batch, i), rand.N(within/2)
		due := time.Now().Add(after)
		s.mu.Lock()
		s.due[key] = due
		s.mu.Unlock()
		for { // until the server is there again
			_, err := queue.Put(s.t.Context(), key, []byte(key), max(time.Until(due), 0))
			if err == nil {
				break
			}
			if !errors.Is(err, store.ErrUnavailable) {
				s.t.Errorf("Put: %v", err)
				return
			}
		}
	}
}

// live is the life of a worker, whose calls fail and are slow. Every other one ends cut off, for longer
// than its leases, with what it has.
func (s *storm) live(ctx context.Context, n int, lease time.Duration, queue *delay.Queue, once *guard.Guard, proxy *faultproxy.Proxy) {
	life, end := context.WithTimeout(ctx, time.Second+rand.N(3*time.Second))
	defer end()
	go func() {
		_ = queue.Run(life, 8, func(ctx context.Context, task *delay.Task) error { return s.run(ctx, task, once) })
	}()
	for life.Err() == nil {
		select {
		case <-life.Done():
		case <-time.After(300 * time.Millisecond):
			switch rand.N(4) {
			case 0:
				proxy.CutAll()
			case 1:
				proxy.Hold()
				<-time.After(rand.N(200 * time.Millisecond))
				proxy.Release()
			}
		}
	}
	if ctx.Err() == nil && n%2 == 0 {
		proxy.BlackHole()
		<-time.After(lease + time.Second)
		proxy.Mend()
	}
}

// run has the effect of a task, once.
func (s *storm) run(ctx context.Context, task *delay.Task, once *guard.Guard) error {
	err := guard.Once(ctx, once, guard.Operation{Key: task.ID()}, func(context.Context) error {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.begun++
		if early := time.Until(s.due[task.Key()]); early > 0 || string(task.Payload()) != task.Key() {
			s.t.Errorf("task %s, with the payload %q, begins %v before it is due", task.Key(), task.Payload(), early)
		}
		s.effects[task.Key()]++
		return nil
	})
	switch {
	case errors.Is(err, guard.ErrOutcomeUnknown):
		return delay.Bury(err)
	case errors.Is(err, guard.ErrInFlight):
		return delay.Again(200 * time.Millisecond)
	}
	return err
}

func (s *storm) check(queue *delay.Queue) {
	s.t.Helper()
	buried := make(map[string]bool)
	for state, err := range queue.Buried(s.t.Context()) {
		if err != nil {
			s.t.Fatal(err)
		}
		buried[state.Key] = true
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	var lost, twice []string
	for key := range s.due {
		switch n := s.effects[key]; {
		case n > 1:
			twice = append(twice, key)
		case n == 0 && !buried[key]:
			lost = append(lost, key)
		}
	}
	slices.Sort(lost)
	if len(lost) > 0 || len(twice) > 0 {
		s.t.Errorf("of %d tasks, %d are lost (%.10q), and %d had two effects (%.10q)", len(s.due), len(lost), lost, len(twice), twice)
	}
	s.t.Logf("%d tasks, %d effects begun, %d of unknown outcome", len(s.due), s.begun, len(buried))
}
