package servertest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// longest is how long a release by a shutdown may take to reach another process: half a lease.
const longest = 15 * time.Second

// A Locker is shut down with a request in flight, waiters in the queue, and a waiter of another
// process.
func TestShutdownOfALocker(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	mine, other := newPeer(t, server), newPeer(t, server)
	held := mustLock(t, mine.Locker, "k")
	foreign := mustLock(t, other.Locker, "foreign")
	type result struct {
		lease *lock.Lease
		err   error
	}
	results := make(chan result, 64)
	acquire := func(f func(context.Context, string) (*lock.Lease, error), key string) {
		go func() {
			lease, err := f(context.Background(), key)
			if err == nil {
				context.AfterFunc(lease.Context(), func() { _ = lease.Unlock(context.Background()) })
			}
			results <- result{lease, err}
		}()
	}
	for range 8 {
		acquire(mine.Lock, "k")
		acquire(mine.RLock, "k")
		acquire(mine.Lock, "foreign")
		acquire(mine.RLock, "foreign")
	}
	eventually(t, "all wait", func() bool {
		k, err := other.Inspect(t.Context(), "k")
		f, err2 := other.Inspect(t.Context(), "foreign")
		return err == nil && err2 == nil && k.Waiting == 8 && f.Waiting == 9
	})
	next := make(chan result, 1)
	go func() {
		lease, err := other.Lock(context.Background(), "k")
		next <- result{lease, err}
	}()
	eventually(t, "the other process waits", func() bool {
		k, err := other.Inspect(t.Context(), "k")
		return err == nil && k.Waiting == 9
	})
	for range 8 {
		acquire(mine.TryLock, "k2") // in flight
	}
	context.AfterFunc(held.Context(), func() { _ = held.Unlock(context.Background()) })
	ok(t, mine.store.Shutdown(t.Context()))
	if f, err := other.Inspect(t.Context(), "foreign"); err != nil || f.Waiting != 0 || len(f.Holders) != 1 {
		t.Errorf("%+v, %v", f, err)
	}
	if k, err := other.Inspect(t.Context(), "k2"); err != nil || len(k.Holders) != 0 {
		t.Errorf("%+v, %v", k, err)
	}
	for range 40 {
		if r := <-results; r.err != nil && !errors.Is(r.err, store.ErrClosed) && !errors.Is(r.err, lock.ErrNotAcquired) {
			t.Errorf("%v, %v", r.lease, r.err)
		} else if r.err == nil {
			wantEnded(t, r.lease, lock.ErrClosed) // granted just before
		}
	}
	wantEnded(t, held, lock.ErrClosed)
	select {
	case r := <-next:
		if r.err != nil {
			t.Fatal(r.err)
		}
		mustUnlock(t, r.lease)
	case <-time.After(longest): // a lease is longer
		t.Fatal("the other process waits for the expiry of the lease")
	}
	mustUnlock(t, foreign)
	ok(t, mine.store.Close())
}

// A Semaphore is shut down with requests in flight, waiters in the queue, and a waiter of another
// process.
func TestShutdownOfASemaphore(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	newProcess := func() (*semaphore.Semaphore, *redisstore.Store) {
		st := newStore(t, connect(t, server.Addr()))
		return newSemaphore(t, st, 2), st
	}
	mine, st := newProcess()
	other, _ := newProcess()
	held := mustAcquire(t, mine, 2)
	errs := make(chan error, 16)
	for range 8 {
		go func() {
			_, err := mine.Acquire(context.Background(), "k")
			errs <- err
		}()
	}
	waiting := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprint(n, " wait"), func() bool {
			state, err := other.Inspect(t.Context(), "k")
			return err == nil && state.Waiting == n
		})
	}
	waiting(2) // of the eight, which wait in their process
	next := make(chan *semaphore.Permit, 1)
	go func() {
		permit, err := other.AcquireN(context.Background(), "k", 2)
		if err != nil {
			t.Error(err)
		}
		next <- permit
	}()
	waiting(3)
	for range 8 {
		go func() {
			permit, err := mine.TryAcquire(context.Background(), "k2") // in flight
			if err == nil {
				context.AfterFunc(permit.Context(), permit.ReleaseAsync)
			}
			errs <- err
		}()
	}
	context.AfterFunc(held.Context(), held.ReleaseAsync)
	ok(t, st.Shutdown(t.Context()))
	if state, err := other.Inspect(t.Context(), "k2"); err != nil || state.InUse != 0 {
		t.Errorf("%+v, %v", state, err)
	}
	for range 16 {
		if err := <-errs; err != nil && !errors.Is(err, store.ErrClosed) && !errors.Is(err, semaphore.ErrNotAcquired) {
			t.Error(err)
		}
	}
	wantEnded(t, held, semaphore.ErrClosed)
	select {
	case permit := <-next:
		mustRelease(t, permit)
	case <-time.After(longest): // a lease is longer
		t.Fatal("the other process waits for the expiry of the permits")
	}
	ok(t, st.Close())
}
