package quorum

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/background"
	"github.com/lockkeeper/lockkeeper/core/store"
)

const (
	// longestWait is the timeout of a member; for a lease, it is at most a tenth of the TTL, so
	// that a member that is down leaves most of the lease.
	longestWait = 200 * time.Millisecond
	// shortestWait is the minimum timeout, for the shortest leases.
	shortestWait = 5 * time.Millisecond
)

func waitFor(ttl time.Duration) time.Duration { return max(min(ttl/10, longestWait), shortestWait) }

// member is a member with its pending releases.
type member struct {
	Member
	retries background.RetryQueue // of its own, so that a member that is down does not block the others

	mu      sync.Mutex
	pending map[string]bool // the IDs in retries
}

// release ends a hold, or a request, on the member. If the member does not confirm it, the release
// is retried in the background.
func (m *member) release(ctx context.Context, ref store.LeaseRef) (store.ReleaseOutcome, error) {
	outcomes, err := m.ReleaseLeases(ctx, []store.LeaseRef{ref})
	if err == nil && len(outcomes) != 1 {
		err = fmt.Errorf("%w: %d replies to a release", store.ErrUnconfirmed, len(outcomes))
	}
	if err != nil {
		m.releaseLater(ref)
		return store.ReleaseUnknown, err
	}
	return outcomes[0], nil
}

func (m *member) releaseLater(ref store.LeaseRef) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.pending[ref.ID] {
		return
	}
	ref.Repeated = true
	until := time.Now().Add(ref.TTL + time.Second)
	try := func(ctx context.Context) error {
		if !time.Now().Before(until) {
			return nil // the lease has expired
		}
		_, err := m.ReleaseLeases(ctx, []store.LeaseRef{ref})
		return err
	}
	after := func(error) {
		m.mu.Lock()
		defer m.mu.Unlock()
		delete(m.pending, ref.ID)
	}
	if m.retries.Add(background.Task{Until: until, Try: try, After: after}) {
		if m.pending == nil {
			m.pending = make(map[string]bool)
		}
		m.pending[ref.ID] = true
	}
}

// releaseAsync releases a request in the background, on the members that are not clear of it. The
// channel is closed when each has confirmed it or timed out.
func (q *Store) releaseAsync(ref store.LeaseRef, h *hold, clear []bool) (done <-chan struct{}) {
	given := make(chan struct{})
	q.calls.Run(func() {
		defer close(given)
		ctx, cancel := context.WithTimeout(context.Background(), longestWait)
		defer cancel()
		var wg sync.WaitGroup
		for i, m := range q.members {
			if clear != nil && clear[i] {
				continue
			}
			wg.Go(func() {
				h.settle(ctx, q, i, func() { m.releaseLater(ref) })
				_, _ = m.release(ctx, ref)
			})
		}
		wg.Wait()
	})
	return given
}

type answer[T any] struct {
	value T
	err   error
}

// callMembers calls f for all members concurrently. The caller need not wait for all of them, and
// the end of ctx does not cancel them.
func callMembers[T any](ctx context.Context, q *Store, wait time.Duration, f func(ctx context.Context, i int, m *member) (T, error)) <-chan answer[T] {
	ctx = context.WithoutCancel(ctx)
	answers := make(chan answer[T], len(q.members))
	for i, m := range q.members {
		q.calls.Run(func() {
			ctx, cancel := context.WithTimeout(ctx, wait)
			defer cancel()
			value, err := f(ctx, i, m)
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

// verdict reports whether a majority has the hold, and whether that is decided regardless of the
// missing replies.
func (t *tally) verdict(q *Store) (held, decided bool) {
	held = t.yes >= q.majority
	return held, held || t.no > len(q.members)-q.majority
}

// decide counts replies until the verdict is decided.
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

// unavailable returns the error of a request with too few replies. It does not match the members'
// errors: a timeout of a member is not one of the caller's context.
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
	return fmt.Errorf("%w: quorum: %d of %d members failed: %s", kind, len(errs), len(q.members), errs[0].Error())
}

// RenewLeases implements store.Leases. A hold is renewed if a majority has renewed it, and lost if
// so many members do not have it that a majority is impossible: they never get it again. If some
// holds are undecided because of missing replies, the error matches store.ErrUnavailable, and the
// caller may retry during the lease.
func (q *Store) RenewLeases(ctx context.Context, refs []store.LeaseRef) ([]bool, error) {
	var (
		holds []*hold
		batch []store.LeaseRef
		index []int
		wait  = longestWait
		held  = make([]bool, len(refs))
	)
	for i, ref := range refs {
		q.ExpectTTL(ref.TTL)
		if h := q.requests.holdOf(ref); h != nil {
			holds, batch, index = append(holds, h), append(batch, ref), append(index, i)
			wait = min(wait, waitFor(ref.TTL))
		}
	}
	if len(batch) == 0 {
		return held, nil
	}
	renewed := make([]bool, len(batch))
	err := q.renew(ctx, holds, batch, wait, renewed)
	for i, yes := range renewed {
		held[index[i]] = yes
	}
	return held, err
}

// renew renews a batch on the members, and sets which holds are held.
func (q *Store) renew(ctx context.Context, holds []*hold, batch []store.LeaseRef, wait time.Duration, held []bool) error {
	answers := callMembers(ctx, q, wait, func(ctx context.Context, i int, m *member) ([]bool, error) {
		refs := make([]store.LeaseRef, len(batch))
		for n, h := range holds {
			refs[n] = h.on(i, batch[n])
		}
		answer, err := m.RenewLeases(ctx, refs)
		if err == nil && len(answer) != len(batch) {
			err = fmt.Errorf("%w: %d replies to %d renewals", store.ErrUnconfirmed, len(answer), len(batch))
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
