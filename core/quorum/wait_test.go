package quorum_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/quorum"
	"github.com/lockkeeper/lockkeeper/core/store"
)

func TestLocker(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum.Store, peers []*peer) {
		l := newLocker(t, q, "q")
		other := newLocker(t, newQuorum(t, peers), "q")
		lease := mustLock(t, l, "k")
		if _, err := other.TryLock(t.Context(), "k"); !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("TryLock: %v", err)
		}
		ok(t, lease.Verify(t.Context()))
		time.Sleep(time.Hour) // renewed
		wantValid(t, lease)

		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		_, err := other.Lock(ctx, "k")
		if !errors.Is(err, lock.ErrNotAcquired) || !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Second {
			t.Errorf("Lock returned %v after %v", err, time.Since(began))
		}
		if n := peers[0].count("acquire"); n > 60 {
			t.Errorf("%d requests in a second", n)
		}

		p := start(func() (*lock.Lease, error) { return other.Lock(t.Context(), "k") })
		time.Sleep(10 * time.Second)
		mustUnlock(t, lease)
		time.Sleep(250 * time.Millisecond)
		if !p.returned() || p.err != nil {
			t.Fatalf("the waiter: %v", p.err)
		}
		if p.lease.Fence().Number <= lease.Fence().Number {
			t.Errorf("the fence went from %d to %d", lease.Fence().Number, p.lease.Fence().Number)
		}
		time.Sleep(time.Hour) // the ID of a lease is not that of its request
		wantValid(t, p.lease)
		mustUnlock(t, p.lease)

		err = l.Do(t.Context(), "k", func(ctx context.Context) error {
			_, err := other.TryLock(ctx, "k")
			return err
		})
		if !errors.Is(err, lock.ErrNotAcquired) {
			t.Errorf("Do: %v", err)
		}
		all := must(l.LockAll(t.Context(), []string{"a", "b", "c"}))
		ok(t, all.Unlock(t.Context()))

		// The outage of one member changes nothing.
		peers[1].fail(fault{hung: true})
		lease = mustLock(t, l, "k")
		time.Sleep(time.Hour)
		wantValid(t, lease)
		mustUnlock(t, lease)
		// The outage of two ends the lease in time.
		lease = mustLock(t, l, "k")
		peers[0].fail(fault{hung: true})
		time.Sleep(ttl)
		wantEnded(t, lease, lock.ErrExpired)
		if err := lease.Unlock(t.Context()); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("Unlock: %v", err)
		}
		began = time.Now()
		if _, err := l.Lock(t.Context(), "k"); !errors.Is(err, store.ErrUnavailable) || time.Since(began) > time.Second {
			t.Errorf("Lock: %v after %v", err, time.Since(began))
		}
		time.Sleep(2 * ttl)
	})
}

func TestWaitsThroughShortOutages(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum.Store, peers []*peer) {
		holder := newLocker(t, newQuorum(t, peers), "q")
		l := newLocker(t, q, "q")
		lease := mustLock(t, holder, "k")
		p := start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
		fail := func(f fault) {
			for _, p := range peers[:2] {
				p.fail(f, "acquire")
			}
		}
		fail(fault{down: true})
		time.Sleep(2 * time.Second)
		fail(fault{})
		time.Sleep(2 * time.Second)
		fail(fault{down: true})
		time.Sleep(2 * time.Second)
		if p.returned() {
			t.Fatalf("Lock: %v", p.err)
		}
		time.Sleep(2 * time.Second)
		if !p.returned() || !errors.Is(p.err, store.ErrUnavailable) {
			t.Errorf("Lock: %v", p.err)
		}
		fail(fault{})
		mustUnlock(t, lease)

		lease = mustLock(t, holder, "k")
		p = start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
		for _, p := range peers {
			_ = p.store.Close()
		}
		time.Sleep(time.Second)
		if !p.returned() || !errors.Is(p.err, store.ErrClosed) {
			t.Errorf("with closed members: %v", p.err)
		}
		_ = lease.Unlock(t.Context())
	})
}

func TestLockerClosed(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum.Store, peers []*peer) {
		for _, opts := range [][]lock.Option{nil, {lock.WithFair()}} {
			holder := newLocker(t, newQuorum(t, peers), "q")
			l := newLocker(t, q, "q", opts...)
			held := mustLock(t, holder, "k")
			context.AfterFunc(held.Context(), func() { _ = held.Unlock(context.Background()) })
			p := start(func() (*lock.Lease, error) { return l.Lock(t.Context(), "k") })
			time.Sleep(time.Second)
			ok(t, l.Close())
			if !p.returned() || !errors.Is(p.err, lock.ErrClosed) {
				t.Errorf("the waiter: %v", p.err)
			}
			ok(t, holder.Close())
			synctest.Wait()
			if n := holders(t, peers, "k"); n != 0 {
				t.Errorf("%d members are held", n)
			}
		}
	})
}

func TestWithdrawal(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum.Store, peers []*peer) {
		const ttl = 10 * time.Second
		queue := func(id string) store.LeaseRequest {
			req := request("k", id, ttl)
			req.Queue = true
			if reply, err := acquire(t.Context(), q, req); err != nil || reply.Outcome != store.Queued {
				t.Fatalf("got %+v, %v", reply, err)
			}
			if reply, err := acquire(t.Context(), q, req); err != nil || reply.Outcome != store.Queued {
				t.Fatalf("sent twice: %+v, %v", reply, err)
			}
			return req
		}
		withdraw := func(req store.LeaseRequest) {
			if held, err := release(t.Context(), q, req2hold(req)); err != nil || held {
				t.Errorf("ReleaseLeases: %v, %v", held, err)
			}
		}
		mustAcquire(t, q, "k", "holder", ttl)
		before := queue("before")
		withdraw(before)
		if _, err := awaitLease(t.Context(), q, before); !errors.Is(err, store.ErrWithdrawn) {
			t.Errorf("AwaitLease after the release: %v", err)
		}
		if reply, err := acquire(t.Context(), q, before); err != nil || reply.Outcome != store.Withdrawn {
			t.Errorf("AcquireLease after the release: %+v, %v", reply, err)
		}
		await := func(req store.LeaseRequest) <-chan error {
			done := make(chan error, 1)
			go func() {
				_, err := awaitLease(t.Context(), q, req)
				done <- err
			}()
			return done
		}
		during := queue("during")
		done := await(during)
		time.Sleep(time.Second)
		withdraw(during)
		synctest.Wait()
		if err := <-done; !errors.Is(err, store.ErrWithdrawn) {
			t.Errorf("AwaitLease during the release: %v", err)
		}

		// Withdrawn while a majority is granting it.
		if held, err := release(t.Context(), q, ref("k", "holder", ttl)); err != nil || !held {
			t.Fatalf("ReleaseLeases: %v, %v", held, err)
		}
		synctest.Wait()
		peers[0].seize(t, "k", ttl)
		peers[1].seize(t, "k", time.Second)
		late := queue("late")
		for _, p := range peers {
			p.fail(fault{after: 150 * time.Millisecond}, "raise")
		}
		done = await(late)
		for label := time.Now(); peers[1].count("raise") < 2; time.Sleep(time.Millisecond) {
			if time.Since(label) > ttl {
				t.Fatal("it was not granted")
			}
		}
		withdraw(late)
		if err := <-done; !errors.Is(err, store.ErrWithdrawn) {
			t.Errorf("AwaitLease: %v", err)
		}
		time.Sleep(time.Second)
		if n := holders(t, peers, "k"); n != 1 {
			t.Errorf("%d members are held, want the stranger's", n)
		}

		// A repeat after the grant.
		time.Sleep(ttl)
		peers[0].seize(t, "k", time.Second)
		peers[1].seize(t, "k", time.Second)
		again := queue("again")
		grant := must(awaitLease(t.Context(), q, again))
		if second, err := awaitLease(t.Context(), q, again); err != nil || second != grant {
			t.Errorf("AwaitLease, again: %+v, %v", second, err)
		}
		if reply, err := acquire(t.Context(), q, again); err != nil || reply.Grant != grant {
			t.Errorf("AcquireLease, again: %+v, %v", reply, err)
		}
	})
}

// Requests are forgotten in time, unless they are held or awaited.
func TestForgetsRequests(t *testing.T) {
	inQuorum(t, 3, func(t *testing.T, q *quorum.Store, peers []*peer) {
		const ttl = 10 * time.Second
		peers[0].seize(t, "k", time.Second)
		peers[1].seize(t, "k", time.Second)
		queue := func(id string) store.LeaseRequest {
			req := request("k", id, ttl)
			req.Queue = true
			if reply, err := acquire(t.Context(), q, req); err != nil || reply.Outcome != store.Queued {
				t.Fatalf("got %+v, %v", reply, err)
			}
			return req
		}
		holder := queue("holder")
		if _, err := awaitLease(t.Context(), q, holder); err != nil {
			t.Fatal(err)
		}
		waiting := queue("waiting")
		done := make(chan error, 1)
		go func() {
			_, err := awaitLease(t.Context(), q, waiting)
			done <- err
		}()
		var left []store.LeaseRequest
		for range 3 {
			for i := range 100 { // places that are neither awaited nor withdrawn
				left = append(left, queue(fmt.Sprintf("leaves-%d-%v", i, time.Now())))
			}
			for range 40 {
				time.Sleep(2 * time.Second)
				if held, err := renew(t.Context(), q, []store.LeaseRef{req2hold(holder)}); err != nil || !held[0] {
					t.Fatalf("RenewLeases: %v, %v", held, err)
				}
			}
		}
		for i, req := range []store.LeaseRequest{left[0], left[99], left[len(left)-1]} {
			before := peers[2].count("acquire")
			if _, err := acquire(t.Context(), q, req); err != nil {
				t.Error(err)
			}
			synctest.Wait() // two of the members decide; the third may be called after that
			if known, want := peers[2].count("acquire") == before, i == 2; known != want {
				t.Errorf("request %d is remembered: %v, want %v", i, known, want)
			}
		}
		if held, err := release(t.Context(), q, req2hold(holder)); err != nil || !held {
			t.Errorf("ReleaseLeases: %v, %v", held, err)
		}
		ok(t, <-done)
	})
}
