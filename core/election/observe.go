package election

import (
	"context"
	"errors"
	"iter"
	"math/rand/v2"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
)

// Leader is the leader of a role. The zero Leader is none.
type Leader struct {
	Label string        // of its locker (lock.WithHolder)
	Fence int64         // of its term; never 0
	Age   time.Duration // since its term began
}

// Leader returns the leader, of any process, in one call of the store. It returns [ErrNoLeader], an
// error that matches store.ErrUnavailable, or lock.ErrNotSupported. It is for operators and for
// clients of the leader: another may lead when the caller reads it. A leader that has died counts
// until its lease ends, and for its lock-delay.
func (e *Election) Leader(ctx context.Context) (Leader, error) {
	state, err := e.locker.Inspect(ctx, e.role)
	if err != nil {
		return Leader{}, err
	}
	for _, h := range state.Holders {
		if !h.Shared {
			return Leader{h.Label, h.Fence, h.Age}, nil
		}
	}
	return Leader{}, ErrNoLeader
}

// Observe yields the leader at first, and then each time that it has changed, until ctx ends; the
// zero Leader, with a nil error, if there is none. It asks the store every third of the TTL, up to
// a fifth sooner at random, and at once when a term of this candidate begins or ends. So it yields
// another process's term up to a third of the TTL late, and not at all if that has ended before;
// the latest leader is always yielded.
//
// The first of several errors of the store is yielded, with the zero Leader; then the iteration
// continues, and yields the leader again when the store replies. It ends after an error that
// matches lock.ErrClosed, if the store is closed, or lock.ErrNotSupported.
func (e *Election) Observe(ctx context.Context) iter.Seq2[Leader, error] {
	return func(yield func(Leader, error) bool) {
		known := int64(-1) // the last fence
		failing := false
		for {
			changed := e.changes()
			leader, err := e.Leader(ctx)
			if errors.Is(err, ErrNoLeader) {
				err = nil
			}
			news := err == nil && (failing || leader.Fence != known) || err != nil && !failing
			failing, known = err != nil, leader.Fence
			switch {
			case ctx.Err() != nil, news && !yield(leader, err):
				return
			case errors.Is(err, lock.ErrClosed), errors.Is(err, lock.ErrNotSupported):
				return
			}
			if !e.pause(ctx, changed) {
				return
			}
		}
	}
}

// pause waits for the next time to ask. It returns false if ctx has ended.
func (e *Election) pause(ctx context.Context, changed <-chan struct{}) bool {
	wait := e.locker.TTL() / 3
	timer := time.NewTimer(wait - rand.N(wait/5)) //nolint:gosec // spreads observers; no secret
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-changed:
	case <-ctx.Done():
	}
	return ctx.Err() == nil
}

// changes returns a channel that is closed when a term of this candidate begins or ends.
func (e *Election) changes() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.changed
}

func (e *Election) notify() {
	e.mu.Lock()
	defer e.mu.Unlock()
	close(e.changed)
	e.changed = make(chan struct{})
}
