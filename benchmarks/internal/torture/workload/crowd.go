package workload

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// Order is what a worker does beside its job, until the next one.
type Order struct {
	// Crowd is a number of further callers of guards, locks and limits, whose calls are not
	// checked. Each has a scope and keys of its own, unless they are Hot: then all have the same.
	Crowd int
	Hot   bool
	// Drain ends the puts of tasks for good, so that all tasks end.
	Drain bool
}

// obey follows orders until ctx ends.
func (w *worker) obey(ctx context.Context) error {
	var m mechanism
	if w.store != nil {
		var err error
		if m, err = w.crowd(); err != nil {
			return err
		}
	}
	var running sync.WaitGroup
	end := func() {}
	for number := 0; ; number++ {
		select {
		case o := <-w.orders:
			end()
			running.Wait()
			if o.Drain {
				w.drain()
			}
			var crowd context.Context
			crowd, end = context.WithCancel(ctx)
			for i := range o.Crowd {
				scope := fmt.Sprint(w.job.Name, number)
				if !o.Hot {
					scope += fmt.Sprint(".", i)
				}
				running.Go(func() { w.crowded(crowd, m, i, scope) })
			}
		case <-ctx.Done():
			end()
			running.Wait()
			return nil
		}
	}
}

// crowd returns what a crowd calls.
func (w *worker) crowd() (m mechanism, err error) {
	const name = "crowd"
	if m.locks, err = lock.New(w.store, name, lock.WithTTL(ttl)); err != nil {
		return m, err
	}
	if m.limiter, err = tokenbucket.New(w.store, name, tokenbucket.PerSecond(1e6)); err != nil {
		return m, err
	}
	m.guard, err = guard.New(w.store, name, guard.WithTTL(ttl))
	return m, err
}

// crowded is a caller of a crowd: of ten, eight run operations.
func (w *worker) crowded(ctx context.Context, m mechanism, i int, scope string) {
	a := &actor{worker: w, mechanism: m, ctx: ctx, rand: rand.New(rand.NewPCG(w.job.Seed, uint64(i)))} //nolint:gosec // no secret
	for n := 0; ctx.Err() == nil; n++ {
		switch i % 10 {
		case 0:
			_ = a.locks.Do(ctx, scope, func(context.Context) error { return nil })
		case 1:
			_, _ = a.limiter.Allow(ctx, scope)
		default:
			op := guard.Operation{Scope: scope, Key: fmt.Sprint(i, ".", n), Retention: time.Minute}
			_, _, _ = guard.Do(ctx, a.guard, op, func(context.Context) (string, error) { return "", nil })
		}
		a.pause(20 * time.Millisecond)
	}
}

// steady locks a key that no other process wants: what happens to it is what the store does.
func (a *actor) steady() {
	key := fmt.Sprint(a.job.Name, "/", a.number)
	add := a.called(key, Exclusive, 0, false)
	lease, err := a.locks.Lock(a.alone(), key)
	if err != nil {
		add(history.Event{Step: history.Failed, Text: a.class(err)})
		return
	}
	h := held{add, lease.Fence().Number}
	if granted(lease, h) {
		releasing(lease, true, h)
	}
	_ = lease.Unlock(a.ctx)
}

// unprotected runs an operation for which many others ask at the same moment. In an outage it runs
// it without the guard, as policy.RunUnprotected does.
func (a *actor) unprotected() {
	const every = int64(100 * time.Millisecond)
	next := history.Now()/every + 1
	sleep(a.ctx, time.Duration(next*every-history.Now()))
	if a.ctx.Err() != nil {
		return
	}
	key := a.key(int(next))
	add := a.called(key, Exclusive, 0, false)
	attempt, result, err := a.guard.Begin(a.alone(), guard.Operation{Scope: a.Name, Key: key})
	switch {
	case err != nil:
		if store.Down(err) && a.ctx.Err() == nil {
			add(history.Event{Step: history.Effect})
		}
		add(history.Event{Step: history.Failed, Text: a.class(err)})
	case result != nil:
		add(history.Event{Step: history.Replayed, Text: string(result.Data)})
	default:
		h := held{add, int64(attempt.Number())}
		granted(attempt, h)
		a.attempt(a.ctx, attempt, h)
	}
}
