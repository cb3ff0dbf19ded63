package zkstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// A waiter whose events are lost, while its connection works, is granted within a beat.
func TestHungWatch(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{"lock", "semaphore"} {
		t.Run(kind, func(t *testing.T) {
			p := newPair(t)
			p.proxy.Pushes(func(string, func(string)) {}) // of connections from now on
			p.proxy.CutAll()
			testpace.Eventually(t, patience, "the store is connected", func() bool { return p.behind.Ping(t.Context()) == nil })
			acquire := func(s *Store) func() {
				if kind == "lock" {
					lease, err := locker(t, s).Lock(t.Context(), "k")
					must(t, err)
					return func() { must(t, lease.Unlock(context.Background())) }
				}
				sem, err := semaphore.New(s, "permits", 1)
				must(t, err)
				permit, err := sem.Acquire(t.Context(), "k")
				must(t, err)
				return func() { must(t, permit.Release(context.Background())) }
			}
			release := acquire(p.other)
			granted := make(chan func(), 1)
			go func() { granted <- acquire(p.behind) }()
			p.awaits(p.behind, 1)
			<-time.After(200 * time.Millisecond) // its watch is set, and its first look is over
			began := time.Now()
			release()
			release = <-granted
			if took := time.Since(began); took > testpace.Scale(1500*time.Millisecond) {
				t.Errorf("it took %v", took)
			}
			release()
		})
	}
}

// Any number of waiters of a process for one key have one watch.
func TestWatchesOfWaiters(t *testing.T) {
	p := newPair(t, WithSession(suiteSession))
	waiters := 1000
	if testpace.Raced {
		waiters = 200
	}
	for _, kind := range []string{store.LockKind, store.SemaphoreKind} {
		held := store.LeaseRequest{
			Name: kind + "locks", Key: "k", ID: "holder", Weight: 4, Capacity: 4, Queue: true, TTL: 3 * time.Minute, Fences: 1,
		}
		reply, err := p.other.AcquireLease(t.Context(), held)
		must(t, err)
		ctx, cancel := context.WithCancel(t.Context())
		before := p.behind.watches.count()
		var all sync.WaitGroup
		for i := range waiters {
			req := held
			req.ID = fmt.Sprint("waiter", i)
			all.Go(func() {
				reply, err := p.behind.AcquireLease(ctx, req)
				if err != nil || reply.Outcome != store.Queued {
					t.Errorf("%+v, %v", reply, err)
				}
				req.Place = reply.Place
				if _, err := p.behind.AwaitLease(ctx, req); ctx.Err() == nil {
					t.Errorf("AwaitLease: %v", err)
				}
				if _, err := p.behind.ReleaseLeases(context.Background(), []store.LeaseRef{req.Ref(0)}); err != nil {
					t.Errorf("ReleaseLeases: %v", err)
				}
			})
		}
		p.awaits(p.behind, waiters)
		<-time.After(300 * time.Millisecond)
		if n := p.behind.watches.count() - before; n > 1 {
			t.Errorf("%s: %d watches", kind, n)
		}
		cancel()
		all.Wait()
		state, err := p.other.InspectLease(t.Context(), held.Name, "k")
		if err != nil || state.Waiting != 0 || state.InUse != 4 {
			t.Errorf("%s: %+v, %v", kind, state, err)
		}
		_, err = p.other.ReleaseLeases(t.Context(), []store.LeaseRef{held.Ref(reply.Fence)})
		must(t, err)
	}
}

// Waits that were given up leave neither nodes nor watches nor entries behind.
func TestWaitsGivenUp(t *testing.T) {
	p := newPair(t)
	waits, at := 2000, 64
	if testing.Short() {
		waits = 200
	}
	held, err := locker(t, p.other).Lock(t.Context(), "k")
	must(t, err)
	l := locker(t, p.behind)
	var all sync.WaitGroup
	for range at {
		all.Go(func() {
			for range waits / at {
				ctx, cancel := context.WithTimeout(t.Context(), 2*time.Millisecond)
				if _, err := l.Lock(ctx, "k"); err == nil {
					t.Error("granted twice")
				}
				cancel()
			}
		})
	}
	all.Wait()
	testpace.Eventually(t, patience, "nothing is left", func() bool {
		return p.state("k").Waiting == 0 && p.behind.entries.empty()
	})
	if n := p.behind.watches.count(); n > 1 { // of the holder, until that has ended
		t.Errorf("%d watches", n)
	}
	must(t, held.Unlock(t.Context()))
	testpace.Eventually(t, patience, "the watch of the holder has fired", func() bool { return p.behind.watches.count() == 0 })
	if n := p.behind.calls.givenUp.Load(); n != 0 {
		t.Errorf("%d calls are in flight", n)
	}
}

// A holder of another process is notified of a revocation, and a reader of a downgrade.
func TestEventsOfHolders(t *testing.T) {
	p := newPair(t)
	l := locker(t, p.behind)
	lease, err := l.Lock(t.Context(), "k")
	must(t, err)
	<-time.After(4 * guardAfter) // its node is watched
	ended, err := p.other.RevokeLease(t.Context(), store.LockKind+"locks", "k", lease.Fence().Number)
	if err != nil || !ended {
		t.Fatal(ended, err)
	}
	select {
	case <-lease.Context().Done():
	case <-time.After(patience):
		t.Fatal("the holder is not notified")
	}
	lease, err = l.Lock(t.Context(), "k")
	must(t, err)
	read := make(chan *lock.Lease, 1)
	go func() {
		lease, err := locker(t, p.other).RLock(t.Context(), "k")
		if err != nil {
			t.Error(err)
		}
		read <- lease
	}()
	p.awaits(p.other, 1)
	must(t, lease.Downgrade(t.Context()))
	reader := <-read
	must(t, lease.Verify(t.Context()))
	must(t, reader.Unlock(t.Context()))
	must(t, lease.Unlock(t.Context()))
}

// Holds of 10,000 keys are renewed by requests that are in flight together.
func TestManyHolds(t *testing.T) {
	if testing.Short() || testpace.Raced {
		t.Skip("10,000 holds")
	}
	s := newTestStore(t)
	const keys = 10_000
	refs := make([]store.LeaseRef, keys)
	indices := make([]int, keys)
	for i := range indices {
		indices[i] = i
	}
	must(t, each(indices, func(i int) error {
		req := store.LeaseRequest{
			Name: store.LockKind + "many", Key: fmt.Sprint(i), ID: fmt.Sprint("holder", i), Weight: 1, Capacity: 1, TTL: 30 * time.Second, Fences: 1,
		}
		reply, err := s.AcquireLease(t.Context(), req)
		if err == nil && reply.Outcome != store.Granted {
			err = fmt.Errorf("%+v", reply)
		}
		refs[i] = req.Ref(reply.Fence)
		return err
	}))
	began := time.Now()
	held, err := s.RenewLeases(t.Context(), refs)
	must(t, err)
	for i, held := range held {
		if !held {
			t.Fatalf("hold %d is lost", i)
		}
	}
	took := time.Since(began)
	one := time.Now()
	for i := range 100 {
		if _, err := s.RenewLeases(t.Context(), refs[i:i+1]); err != nil {
			t.Fatal(err)
		}
	}
	alone := time.Since(one) / 100
	t.Logf("10,000 renewals took %v together, and %v each alone", took, alone)
	if took > keys*alone/2 {
		t.Errorf("10,000 renewals took %v together, and one %v", took, alone)
	}
	outcomes, err := s.ReleaseLeases(t.Context(), refs)
	must(t, err)
	for i, outcome := range outcomes {
		if outcome != store.Released {
			t.Fatalf("release %d: %v", i, outcome)
		}
	}
}
