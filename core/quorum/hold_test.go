package quorum_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/quorum"
	"github.com/lockkeeper/lockkeeper/core/store"
)

func TestRenewal(t *testing.T) {
	const ttl = 10 * time.Second
	renew := func(t *testing.T, q *quorum.Store, keys ...string) ([]bool, error) {
		t.Helper()
		var reqs []store.LeaseRef
		for _, key := range keys {
			reqs = append(reqs, ref(key, key, ttl))
		}
		return renew(t.Context(), q, reqs)
	}
	t.Run("a minority is lost", func(t *testing.T) {
		inQuorum(t, 5, func(t *testing.T, q *quorum.Store, peers []*peer) {
			mustAcquire(t, q, "a", "a", ttl)
			synctest.Wait()
			peers[0].restart()
			peers[1].fail(fault{hung: true})
			for range 5 {
				time.Sleep(5 * time.Second)
				if held, err := renew(t, q, "a"); err != nil || !held[0] {
					t.Fatalf("RenewLeases: %v, %v", held, err)
				}
			}
			if peers[0].has(t, "a") {
				t.Error("a renewal granted the lock")
			}
		})
	})
	t.Run("a majority is lost", func(t *testing.T) {
		inQuorum(t, 5, func(t *testing.T, q *quorum.Store, peers []*peer) {
			mustAcquire(t, q, "a", "a", ttl)
			synctest.Wait()
			for _, p := range peers[:3] {
				p.restart()
			}
			peers[3].fail(fault{down: true})
			if held, err := renew(t, q, "a"); err != nil || held[0] {
				t.Errorf("RenewLeases: %v, %v", held, err)
			}
			if held, err := verify(t.Context(), q, ref("a", "a", ttl)); err != nil || held {
				t.Errorf("VerifyLease: %v, %v", held, err)
			}
		})
	})
	t.Run("expired", func(t *testing.T) {
		inQuorum(t, 3, func(t *testing.T, q *quorum.Store, _ []*peer) {
			mustAcquire(t, q, "a", "a", ttl)
			time.Sleep(ttl)
			if held, err := renew(t, q, "a"); err != nil || held[0] {
				t.Errorf("RenewLeases: %v, %v", held, err)
			}
		})
	})
	t.Run("a majority does not reply", func(t *testing.T) {
		inQuorum(t, 5, func(t *testing.T, q *quorum.Store, peers []*peer) {
			mustAcquire(t, q, "a", "a", ttl)
			synctest.Wait()
			for _, p := range peers[:3] {
				p.fail(fault{hung: true})
			}
			began := time.Now()
			if held, err := renew(t, q, "a"); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("RenewLeases: %v, %v", held, err)
			}
			if took := time.Since(began); took > 200*time.Millisecond {
				t.Errorf("RenewLeases took %v", took)
			}
			if held, err := verify(t.Context(), q, ref("a", "a", ttl)); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("VerifyLease: %v, %v", held, err)
			}
			peers[0].mend()
			if held, err := renew(t, q, "a"); err != nil || !held[0] {
				t.Errorf("RenewLeases: %v, %v", held, err)
			}
		})
	})
	t.Run("one of many is unknown", func(t *testing.T) {
		inQuorum(t, 3, func(t *testing.T, q *quorum.Store, peers []*peer) {
			mustAcquire(t, q, "a", "a", ttl)
			mustAcquire(t, q, "c", "c", ttl)
			synctest.Wait() // a grant does not wait for the third member
			peers[2].fail(fault{down: true})
			mustAcquire(t, q, "b", "b", ttl)
			synctest.Wait()
			peers[2].mend()
			peers[1].fail(fault{down: true})
			if held, err := renew(t, q, "a", "b", "c"); !errors.Is(err, store.ErrUnavailable) || !slices.Equal(held, []bool{true, false, true}) {
				t.Errorf("RenewLeases: %v, %v", held, err)
			}
			if held, err := renew(t, q, "b"); !errors.Is(err, store.ErrUnavailable) {
				t.Errorf("RenewLeases: %v, %v", held, err)
			}
		})
	})
	t.Run("nothing", func(t *testing.T) {
		inQuorum(t, 3, func(t *testing.T, q *quorum.Store, _ []*peer) {
			if held, err := renew(t, q); err != nil || len(held) != 0 {
				t.Errorf("RenewLeases: %v, %v", held, err)
			}
		})
	})
}

// A release is retried until every member has confirmed it, or the lease has expired.
func TestReleasesUntilConfirmed(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum.Store, peers []*peer) {
		const ttl = time.Minute
		mustAcquire(t, q, "k", "me", ttl)
		synctest.Wait()
		peers[0].fail(fault{hung: true}, "release")
		began := time.Now()
		if held, err := release(t.Context(), q, ref("k", "me", ttl)); err != nil || !held || time.Since(began) != 0 {
			t.Fatalf("ReleaseLeases: %v, %v after %v", held, err, time.Since(began))
		}
		time.Sleep(10 * time.Second)
		peers[0].mend()
		time.Sleep(5 * time.Second)
		if peers[0].has(t, "k") {
			t.Error("the lock was not released on the hung member")
		}

		mustAcquire(t, q, "k", "again", ttl)
		synctest.Wait()
		for _, p := range peers[:2] {
			p.fail(fault{down: true}, "release")
		}
		if held, err := release(t.Context(), q, ref("k", "again", ttl)); !errors.Is(err, store.ErrUnconfirmed) {
			t.Fatalf("ReleaseLeases: %v, %v; want an outage", held, err)
		}
		time.Sleep(ttl + 5*time.Second)
		tries := peers[0].count("release")
		time.Sleep(time.Hour)
		if n := peers[0].count("release"); n != tries {
			t.Errorf("%d retries after the lease", n-tries)
		}
	})
}

// A release is sent to every member even if its context has ended. There is one retry per member,
// however often it is called.
func TestReleaseWithAnEndedContext(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum.Store, peers []*peer) {
		const ttl = time.Minute
		mustAcquire(t, q, "k", "me", ttl)
		synctest.Wait()
		for _, p := range peers {
			p.fail(fault{hung: true}, "release")
		}
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		for range 100 {
			if held, err := release(ctx, q, ref("k", "me", ttl)); !errors.Is(err, context.Canceled) {
				t.Fatalf("ReleaseLeases: %v, %v", held, err)
			}
		}
		time.Sleep(10 * time.Second)
		for i, p := range peers {
			if n := p.count("release"); n < 101 || n > 110 {
				t.Errorf("%[2]d releases on member %[1]d", i, n)
			}
			p.mend()
		}
		time.Sleep(5 * time.Second)
		if n := holders(t, peers, "k"); n != 0 {
			t.Errorf("%d members are held", n)
		}

		mustAcquire(t, q, "k", "again", ttl)
		synctest.Wait()
		for _, p := range peers {
			p.fail(fault{before: 100 * time.Millisecond}, "release")
		}
		_, _ = release(ctx, q, ref("k", "again", ttl))
		time.Sleep(time.Second)
		for i, p := range peers {
			if n := p.count("release"); n > 113 {
				t.Errorf("%[2]d releases on member %[1]d: the end of the context has ended a request", i, n)
			}
		}
		if n := holders(t, peers, "k"); n != 0 {
			t.Errorf("%d members are held", n)
		}
	})
}

func TestContextEnds(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum.Store, peers []*peer) {
		peers[1].fail(fault{hung: true}, "acquire")
		peers[2].fail(fault{before: time.Second}, "acquire")
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		began := time.Now()
		if _, err := acquire(ctx, q, request("k", "me", time.Minute)); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("got %v", err)
		}
		if took := time.Since(began); took != 50*time.Millisecond {
			t.Errorf("it took %v", took)
		}
		if _, err := acquire(ctx, q, request("k", "again", time.Minute)); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("got %v", err)
		}
		time.Sleep(2 * time.Second)
		if n := holders(t, peers, "k"); n != 0 {
			t.Errorf("%d members are held", n)
		}
	})
}

func TestShutdown(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum.Store, peers []*peer) {
		l := newLocker(t, q, "q")
		lease := mustLock(t, l, "k")
		synctest.Wait()
		peers[0].fail(fault{down: true}, "release")
		context.AfterFunc(lease.Context(), func() { _ = lease.Unlock(context.Background()) })
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := q.Shutdown(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("Shutdown while a member is down: %v", err)
		}
		wantEnded(t, lease, lock.ErrClosed)
		peers[0].mend()
		ok(t, q.Shutdown(t.Context()))
		if n := holders(t, peers, "k"); n != 0 {
			t.Errorf("%d members are held", n)
		}
	})
}

func TestNotSupported(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum.Store, _ []*peer) {
		l := newLocker(t, q, "q")
		lease := mustLock(t, l, "k")
		defer mustUnlock(t, lease)
		check := func(what string, err error) {
			t.Helper()
			if !errors.Is(err, store.ErrNotSupported) || !errors.Is(err, errors.ErrUnsupported) {
				t.Errorf("%s: %v", what, err)
			}
		}
		_, err := l.RLock(t.Context(), "other")
		check("RLock", err)
		_, err = l.TryRLock(t.Context(), "other")
		check("TryRLock", err)
		_, err = awaitLease(t.Context(), q, store.LeaseRequest{Weight: 1, Capacity: 2})
		check("AwaitLease", err)
		_, err = acquire(t.Context(), q, store.LeaseRequest{Name: store.SemaphoreKind + "q", Weight: 1, Capacity: 1})
		check("AcquireLease of a semaphore", err)
		check("Downgrade", lease.Downgrade(t.Context()))
		_, err = l.Inspect(t.Context(), "k")
		check("Inspect", err)
		_, err = l.ForceUnlock(t.Context(), "k", 1)
		check("ForceUnlock", err)
		n := 0
		for _, err := range l.List(t.Context()) {
			check("List", err)
			n++
		}
		if n != 1 {
			t.Errorf("List yielded %d times", n)
		}
		wantValid(t, lease)
	})
}
