package history_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/history"
)

// register is a lock on a server that keeps no time: its holder writes when the lease ends.
type register struct {
	mu    sync.Mutex
	id    string
	ends  time.Time
	fence int64
}

// byClock is a process's store on a register. It takes a lock whose lease has ended by its own clock, as no
// store may.
type byClock struct {
	*register
	ahead time.Duration // of the other clocks
}

func (s byClock) now() time.Time { return time.Now().Add(s.ahead) }

func (s byClock) AcquireLease(_ context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.id != "" && s.id != req.ID && s.now().Before(s.ends) {
		outcome := store.Taken
		if req.Queue {
			outcome = store.Queued
		}
		return store.LeaseReply{Outcome: outcome, Remaining: s.ends.Sub(s.now())}, nil
	}
	if s.id != req.ID {
		s.fence += store.MaxFences
	}
	s.id, s.ends = req.ID, s.now().Add(req.TTL)
	return store.LeaseReply{Outcome: store.Granted, Grant: store.Grant{Sent: time.Now(), TTL: req.TTL, Fence: s.fence, LastFence: s.fence}}, nil
}

func (s byClock) AwaitLease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	for {
		if reply, err := s.AcquireLease(ctx, req); err != nil || reply.Outcome == store.Granted {
			return reply.Grant, err
		}
		select {
		case <-time.After(5 * time.Millisecond):
		case <-ctx.Done():
			return store.Grant{}, ctx.Err()
		}
	}
}

func (s byClock) RenewLeases(_ context.Context, refs []store.LeaseRef) ([]bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	held := make([]bool, len(refs))
	for i, ref := range refs {
		if held[i] = s.id == ref.ID; held[i] {
			s.ends = s.now().Add(ref.TTL)
		}
	}
	return held, nil
}

func (s byClock) ReleaseLeases(_ context.Context, refs []store.LeaseRef) ([]store.ReleaseOutcome, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	outcomes := make([]store.ReleaseOutcome, len(refs))
	for i, ref := range refs {
		outcomes[i] = store.NotHeld
		if s.id == ref.ID {
			s.id, outcomes[i] = "", store.Released
		}
	}
	return outcomes, nil
}

func (byClock) AtShutdown(func(context.Context) error) (remove func()) { return func() {} }

// compete returns the history of processes that compete on a register for ten seconds, with clocks that differ
// by so much.
func compete(t *testing.T, apart time.Duration) (events []history.Event) {
	const ttl = 200 * time.Millisecond
	var (
		mu     sync.Mutex
		shared register
		all    sync.WaitGroup
	)
	add := func(e history.Event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	for process := range 3 {
		l, err := lock.New(byClock{&shared, time.Duration(process) * apart}, "history", lock.WithTTL(ttl))
		if err != nil {
			t.Fatal(err)
		}
		all.Go(func() {
			defer func() { _ = l.Close() }()
			random := rand.New(rand.NewPCG(1, uint64(process))) //nolint:gosec // the same at each run
			for i := 0; ; i++ {
				lease, err := l.Lock(ctx, "k")
				if err != nil {
					return
				}
				e := history.Event{At: time.Now(), What: history.Granted, Hold: fmt.Sprint(process, "/", i), N: lease.Fence().Number}
				add(e)
				select {
				case <-time.After(time.Duration(random.Int64N(int64(2 * ttl)))):
				case <-lease.Context().Done():
				}
				e.At, e.What = time.Now(), history.Ended
				if until := lease.ValidUntil(); until.Before(e.At) {
					e.At = until
				}
				add(e)
				_ = lease.Unlock(context.WithoutCancel(ctx))
				<-time.After(time.Duration(random.Int64N(int64(ttl)))) // so that others get it, too
			}
		})
	}
	all.Wait()
	slices.SortStableFunc(events, func(a, b history.Event) int { return a.At.Compare(b.At) })
	return events
}

// Processes that decide by their own clocks exclude each other as long as the clocks agree. The check finds
// that they do not if the clocks differ by a lease.
func TestCheckLockFindsClocks(t *testing.T) {
	t.Parallel()
	none := func(string) bool { return false }
	for name, c := range map[string]struct {
		apart time.Duration
		right bool
	}{"clocks that agree": {0, true}, "clocks that differ": {200 * time.Millisecond, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				events := compete(t, c.apart)
				history.WantGrants(t, events, 20)
				wrong := history.CheckLock(events, none, time.Second)
				if right := len(wrong) == 0; right != c.right {
					t.Errorf("of %d events these are found: %q", len(events), wrong)
				}
			})
		})
	}
}
