package memstore

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// await blocks until the request holds, or has been withdrawn. Its shard is locked; await unlocks
// it while it sleeps.
func (r *lease) await(ctx context.Context) error {
	l := r.of
	s := l.shard.store
	over := s.hooks.Over()
	r.awaiting, r.awaited = r.awaiting+1, true
	l.queue.refresh(r, s.now())
	defer func() {
		r.awaiting--
		if r.awaiting > 0 {
			r.notify() // one wake-up reaches one call, and its cause may end the others
		}
		if r.stage == queued {
			l.queue.refresh(r, s.now())
		}
	}()
	for {
		now := s.now()
		l.advance(now)
		switch {
		case s.hooks.Begun():
			return store.ErrClosed
		case r.stage == withdrawn:
			return store.ErrWithdrawn
		case r.stage != queued:
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		}
		r.sleepsUntil = never
		if l.queue.timekeeper() == r {
			r.sleepsUntil = l.nextDeadline()
		}
		var deadline <-chan time.Time
		if r.sleepsUntil != never {
			deadline = time.After(duration(r.sleepsUntil - now))
		}
		l.shard.mu.Unlock()
		select {
		case <-r.wake:
		case <-deadline:
		case <-ctx.Done():
		case <-over:
		}
		l.shard.mu.Lock()
	}
}
