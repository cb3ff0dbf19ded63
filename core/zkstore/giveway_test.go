package zkstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// A request that has lost its place with its session is queued anew at its number, before the later
// ones of its own process and of others.
func TestQueuedAnewBeforeOthers(t *testing.T) {
	t.Parallel()
	for _, kind := range []string{store.LockKind, store.SemaphoreKind} {
		t.Run(kind, func(t *testing.T) {
			p := newPair(t)
			req := func(id string) store.LeaseRequest {
				return store.LeaseRequest{
					Name: kind + "locks", Key: "k", ID: id, Weight: 4, Capacity: 4, Queue: true, TTL: 20 * time.Second, Fences: 1,
				}
			}
			held := req("holder")
			reply, err := p.other.AcquireLease(t.Context(), held)
			must(t, err)
			holder := held.Ref(reply.Fence)
			order := make(chan string, 4)
			fences := make(chan int64, 4)
			var all sync.WaitGroup
			defer all.Wait()
			for i, s := range []*Store{p.behind, p.other, p.behind, p.other} {
				waits := req(fmt.Sprint("waiter", i))
				reply, err := s.AcquireLease(t.Context(), waits)
				if err != nil || reply.Outcome != store.Queued {
					t.Fatalf("%+v, %v", reply, err)
				}
				waits.Place = reply.Place
				all.Go(func() {
					grant, err := s.AwaitLease(t.Context(), waits)
					if err != nil {
						t.Error(err)
					}
					order <- waits.ID
					fences <- grant.Fence
					if _, err := s.ReleaseLeases(context.Background(), []store.LeaseRef{waits.Ref(grant.Fence)}); err != nil {
						t.Error(err)
					}
				})
			}
			p.awaits(p.behind, 2)
			p.awaits(p.other, 2)
			endSession(t, p.behind, p.server)
			inOrder := func() bool { // of the server, by the numbers of all
				list, err := p.other.children(t.Context(), p.other.placeOf(held.Name, "k"), reads)
				if err != nil || len(list) != 5 {
					return false
				}
				for i, c := range list[1:] {
					if c.id != fmt.Sprint("waiter", i) {
						return false
					}
				}
				return true
			}
			testpace.Eventually(t, patience, "later requests give way", inOrder)
			_, err = p.other.ReleaseLeases(t.Context(), []store.LeaseRef{holder})
			must(t, err)
			last := reply.Fence
			for i := range 4 {
				if got, want := <-order, fmt.Sprint("waiter", i); got != want {
					t.Errorf("number %d is %s", i, got)
				}
				if fence := <-fences; fence <= last {
					t.Errorf("fence %d after %d", fence, last)
				} else {
					last = fence
				}
			}
		})
	}
}

// A request that gives way has one node afterwards, also if it was queued anew just before, and the server did
// not reply to what follows the creation.
func TestGivingWayLeavesNoNode(t *testing.T) {
	p := newPair(t)
	held, err := locker(t, p.other).Lock(t.Context(), "k")
	must(t, err)
	granted := make(chan error, 1)
	go func() {
		lease, err := locker(t, p.behind).Lock(t.Context(), "k")
		if err == nil {
			err = lease.Unlock(context.Background())
		}
		granted <- err
	}()
	p.awaits(p.behind, 1)
	s := p.behind
	s.entries.mu.Lock()
	var e *entry
	for _, k := range s.entries.keys {
		e = k.awaited()[0]
	}
	e.session = nil
	to := child{place: e.number - 1, seq: e.node.seq + 1}
	s.entries.mu.Unlock()
	moved, err := s.moveBehind(t.Context(), e.place, to, nil)
	if err != nil || !moved {
		t.Fatal(moved, err)
	}
	if list, err := s.children(t.Context(), e.place, reads); err != nil || len(list) != 2 {
		t.Errorf("the holder and a request have the nodes %+v, %v", list, err)
	}
	must(t, held.Unlock(t.Context()))
	select {
	case err := <-granted:
		must(t, err)
	case <-time.After(patience):
		t.Fatal("the request waits for its own node")
	}
	p.empty("k", patience)
}
