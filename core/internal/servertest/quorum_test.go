package servertest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/quorum"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// quorumTTL is short, since a server may not vote for as long after its start. A server must reply
// in a tenth of it, all of three if two are down.
var quorumTTL = testpace.Scale(6 * time.Second)

// startQuorum starts five servers, and waits until they may vote. Each call of process returns the
// store of another process, with its own clients.
func startQuorum(t *testing.T) (servers []*redistest.Server, process func() *quorum.Store) {
	t.Helper()
	for range 5 {
		servers = append(servers, redistest.Start(t, "--maxmemory-policy", "noeviction"))
	}
	for _, s := range servers {
		awaitUptime(t, s, quorumTTL+100*time.Millisecond)
	}
	return servers, func() *quorum.Store {
		var members []quorum.Member
		for _, s := range servers {
			members = append(members, newMember(t, s))
		}
		q := must(quorum.New(members...))
		t.Cleanup(func() { // before the members are closed
			ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
			defer cancel()
			if err := q.Shutdown(ctx); err != nil {
				t.Errorf("Shutdown: %v", err)
			}
		})
		return q
	}
}

// newMember returns a store of one of the servers, which may be down.
func newMember(t *testing.T, s *redistest.Server) *redisstore.Store {
	t.Helper()
	return newStore(t, s.Client(), redisstore.WithTimeout(time.Second))
}

// asked repeats a call if no majority replied in time, since the machine may be busy, and returns
// its error.
func asked(t *testing.T, call func() error) (err error) {
	t.Helper()
	eventually(t, "a majority replies in time", func() bool {
		err = call()
		return !errors.Is(err, store.ErrUnavailable)
	})
	return err
}

func askedTry(t *testing.T, l *lock.Locker) error {
	t.Helper()
	return asked(t, func() error {
		_, err := l.TryLock(t.Context(), "k")
		return err
	})
}

// release releases a lease, which the Locker repeats if no majority replies in time.
func release(t *testing.T, lease *lock.Lease) {
	t.Helper()
	if err := lease.Unlock(t.Context()); err != nil && !errors.Is(err, store.ErrUnavailable) {
		t.Fatal(err)
	}
}

// awaitHolds waits until a lock is held on all servers, or on none. Lock and Unlock wait for a
// majority, and a lock on three of five does not survive the end of one.
func awaitHolds(t *testing.T, servers []*redistest.Server, held bool) {
	t.Helper()
	for _, s := range servers {
		st := newMember(t, s)
		eventually(t, "all servers agree", func() bool {
			state, err := st.InspectLease(t.Context(), store.LockKind+"test", "k")
			return err == nil && (len(state.Holders) > 0) == held
		})
	}
}

func awaitUptime(t *testing.T, s *redistest.Server, want time.Duration) {
	t.Helper()
	st := newMember(t, s)
	for deadline := time.Now().Add(want + within); ; time.Sleep(20 * time.Millisecond) {
		up, err := st.Uptime(t.Context())
		if err == nil && up >= want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("the server has been up for %v, %v", up, err)
		}
	}
}

// Two servers of five may stop, and a lock is granted to one holder at a time.
func TestQuorum(t *testing.T) {
	t.Parallel()
	servers, process := startQuorum(t)
	one := newLocker(t, process(), lock.WithTTL(quorumTTL))
	two := newLocker(t, process(), lock.WithTTL(quorumTTL))

	lease := insistOn(t, one, "k")
	if err := askedTry(t, two); !errors.Is(err, lock.ErrNotAcquired) {
		t.Fatalf("TryLock of a held lock: %v", err)
	}
	ok(t, asked(t, func() error { return lease.Verify(t.Context()) }))
	type result struct {
		lease *lock.Lease
		err   error
	}
	waits := make(chan result, 1)
	go func() {
		lease, err := two.Lock(t.Context(), "k")
		for errors.Is(err, store.ErrUnavailable) && t.Context().Err() == nil {
			lease, err = two.Lock(t.Context(), "k")
		}
		waits <- result{lease, err}
	}()
	select {
	case <-time.After(quorumTTL * 3 / 2): // renewed
	case got := <-waits:
		t.Fatalf("a second holder: %+v", got)
	}
	wantValid(t, lease)
	release(t, lease)
	got := <-waits
	if got.err != nil {
		t.Fatal(got.err)
	}
	if got.lease.Fence().Number <= lease.Fence().Number {
		t.Errorf("the fence went from %d to %d", lease.Fence().Number, got.lease.Fence().Number)
	}
	release(t, got.lease)

	// Two servers of five may stop, also while a lock is held.
	awaitHolds(t, servers, false)
	lease = insistOn(t, one, "k")
	awaitHolds(t, servers, true)
	servers[0].Stop()
	servers[1].Stop()
	time.Sleep(quorumTTL)
	wantValid(t, lease)
	if err := askedTry(t, two); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("TryLock of a held lock: %v", err)
	}
	release(t, lease)
	next := insistOn(t, two, "k")
	if next.Fence().Number <= lease.Fence().Number {
		t.Errorf("the fence went from %d to %d", lease.Fence().Number, next.Fence().Number)
	}

	// Without the third, the lease ends in time, and no other is granted.
	servers[2].Stop()
	select {
	case <-next.Context().Done():
		if cause := context.Cause(next.Context()); !errors.Is(cause, lock.ErrExpired) {
			t.Errorf("the lease ended with %v", cause)
		}
	case <-time.After(quorumTTL + patience):
		t.Error("the lease is valid without a majority")
	}
	began := time.Now()
	if _, err := one.TryLock(t.Context(), "k"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("TryLock without a majority: %v", err)
	}
	if _, err := one.Lock(t.Context(), "k"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Lock without a majority: %v", err)
	}
	if took := time.Since(began); took > patience {
		t.Errorf("it took %v", took)
	}
	if err := next.Unlock(t.Context()); err == nil {
		t.Error("Unlock succeeded without a majority")
	}
	for _, s := range servers[:3] { // so that pending releases succeed
		s.Restart()
	}
}

// A restarted server, which has lost a lock, does not vote for another holder.
func TestRestartInAQuorum(t *testing.T) {
	t.Parallel()
	servers, process := startQuorum(t)
	servers[3].Stop()
	servers[4].Stop()
	one := newLocker(t, process(), lock.WithTTL(quorumTTL), lock.WithoutRenewal())
	lease := insistOn(t, one, "k") // on 0, 1 and 2

	restarted := time.Now()
	servers[2].Restart() // 2, 3 and 4 are a majority without a holder
	servers[3].Restart()
	servers[4].Restart()
	q := process()
	two := newLocker(t, q, lock.WithTTL(quorumTTL))
	for {
		second, err := two.TryLock(t.Context(), "k")
		if err == nil {
			if lease.Context().Err() == nil {
				t.Errorf("a second holder after %v", time.Since(restarted))
			}
			if waited := time.Since(restarted); waited < quorumTTL {
				t.Errorf("servers voted %v after their start", waited)
			}
			if second.Fence().Number <= lease.Fence().Number {
				t.Errorf("the fence went from %d to %d", lease.Fence().Number, second.Fence().Number)
			}
			release(t, second)
			break
		}
		if time.Since(restarted) > 5*quorumTTL {
			t.Fatalf("not locked at all: %v", err)
		}
		time.Sleep(20 * time.Millisecond)
	}
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) && !errors.Is(err, store.ErrUnavailable) { // the machine may be busy
		t.Errorf("Unlock of the first: %v", err)
	}
}
