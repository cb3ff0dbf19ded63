package quorum

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/redo"
	"github.com/lockkeeper/lockkeeper/core/store"
)

const (
	// longestWait is for how long a member may take to answer; when a lease is asked for, it is no
	// more than a tenth of that, so that a member which is down leaves most of the lease.
	longestWait = 200 * time.Millisecond
	// shortestWait is what the shortest lease leaves for it.
	shortestWait = 5 * time.Millisecond
)

func waitFor(ttl time.Duration) time.Duration { return max(min(ttl/10, longestWait), shortestWait) }

// member is a member, and what it still has to be told.
type member struct {
	Member
	redo redo.Queue // of its own: a member that is down does not hold up the others

	mu      sync.Mutex
	pending map[string]bool // the IDs that redo releases
}

// release ends a hold, or a request, on the member: in the background, if it does not confirm it.
func (m *member) release(ctx context.Context, req store.LockRef) (bool, error) {
	held, err := m.ReleaseLock(ctx, req)
	if err != nil {
		m.releaseLater(req)
	}
	return held, err
}

func (m *member) releaseLater(req store.LockRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pending[req.ID] {
		return
	}
	until := time.Now().Add(req.TTL + time.Second)
	try := func(ctx context.Context) error {
		if !time.Now().Before(until) {
			return nil // it has expired by itself
		}
		_, err := m.ReleaseLock(ctx, req)
		return err
	}
	after := func(error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.pending, req.ID)
	}
	if m.redo.Add(redo.Task{Until: until, Try: try, After: after}) {
		if m.pending == nil {
			m.pending = make(map[string]bool)
		}
		m.pending[req.ID] = true
	}
}

// giveBack releases a request on some members in the background. The channel is closed when each has
// confirmed it or had its time.
func (q *Store) giveBack(req store.LockRef, members []*member) (done <-chan struct{}) {
	given := make(chan struct{})
	q.errands.Run(func() {
		defer close(given)
		ctx, cancel := context.WithTimeout(context.Background(), longestWait)
		defer cancel()
		var wg sync.WaitGroup
		for _, m := range members {
			wg.Go(func() { _, _ = m.release(ctx, req) })
		}
		wg.Wait()
	})
	return given
}

type answer[T any] struct {
	value T
	err   error
}

// askMembers calls f for all members at once. Whoever asks need not wait for the last of them, and
// the end of ctx does not stop them.
func askMembers[T any](ctx context.Context, q *Store, wait time.Duration, f func(context.Context, *member) (T, error)) <-chan answer[T] {
	ctx = context.WithoutCancel(ctx)
	answers := make(chan answer[T], len(q.members))
	for _, m := range q.members {
		q.errands.Run(func() {
			ctx, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			value, err := f(ctx, m)
			answers <- answer[T]{value, err}
		})
	}
	return answers
}

// tally counts which members have a hold.
type tally struct{ yes, no int }

func (t *tally) add(yes bool) {
	if yes {
		t.yes++
	} else {
		t.no++
	}
}

// verdict says whether a majority has it, and whether that can be said, whatever the others answer.
func (t *tally) verdict(q *Store) (held, decided bool) {
	held = t.yes >= q.majority
	return held, held || t.no > len(q.members)-q.majority
}

// decide counts answers until the verdict is clear.
func (q *Store) decide(ctx context.Context, answers <-chan answer[bool]) (bool, error) {
	var (
		count tally
		errs  []error
	)
	for range q.members {
		select {
		case a := <-answers:
			if a.err != nil {
				errs = append(errs, a.err)
				continue
			}
			count.add(a.value)
			if held, decided := count.verdict(q); decided {
				return held, nil
			}
		case <-ctx.Done():
			return false, ctx.Err()
		}
	}
	return false, q.unavailable(store.ErrUnconfirmed, errs)
}

// unavailable is the error of a request that too few members have answered. It does not match what
// the members returned: the end of a member's time is not that of the caller's.
func (q *Store) unavailable(kind error, errs []error) error {
	closed := 0
	for _, err := range errs {
		if errors.Is(err, store.ErrClosed) {
			closed++
		}
	}
	if closed == len(errs) {
		kind = store.ErrClosed
	}
	return fmt.Errorf("%w: quorum: %d of %d members cannot be counted on: %s", kind, len(errs), len(q.members), errs[0].Error())
}

// RenewLocks implements store.Locks. A hold is renewed if a majority has renewed it, and lost if so many
// members do not have it that no majority can: they never get it again. If that cannot be told of
// some for want of answers, the error matches store.ErrUnavailable, and the caller may try again while
// the lease lasts.
func (q *Store) RenewLocks(ctx context.Context, reqs []store.LockRef) ([]bool, error) {
	if len(reqs) == 0 {
		return nil, nil
	}
	asked := make([]store.LockRef, len(reqs))
	wait := longestWait
	for i, req := range reqs {
		q.ExpectTTL(req.TTL + req.Delay)
		wait = min(wait, waitFor(req.TTL))
		asked[i] = req
		asked[i].ID = q.requests.memberID(req)
	}
	held := make([]bool, len(reqs))
	return held, q.renew(ctx, asked, wait, held)
}

// renew asks the members, and notes which holds are held.
func (q *Store) renew(ctx context.Context, batch []store.LockRef, wait time.Duration, held []bool) error {
	answers := askMembers(ctx, q, wait, func(ctx context.Context, m *member) ([]bool, error) {
		answer, err := m.RenewLocks(ctx, batch)
		if err == nil && len(answer) != len(batch) {
			err = fmt.Errorf("%w: %d answers to %d renewals", store.ErrUnconfirmed, len(answer), len(batch))
		}
		return answer, err
	})
	tallies := make([]tally, len(batch))
	var errs []error
	for range q.members {
		var a answer[[]bool]
		select {
		case a = <-answers:
		case <-ctx.Done():
			return ctx.Err()
		}
		if a.err != nil {
			errs = append(errs, a.err)
			continue
		}
		left := 0
		for i, yes := range a.value {
			tallies[i].add(yes)
			if _, decided := tallies[i].verdict(q); !decided {
				left++
			}
		}
		if left == 0 {
			break
		}
	}
	undecided := false
	for i := range batch {
		verdict, decided := tallies[i].verdict(q)
		held[i] = decided && verdict
		undecided = undecided || !decided
	}
	if undecided {
		return q.unavailable(store.ErrUnconfirmed, errs)
	}
	return nil
}
