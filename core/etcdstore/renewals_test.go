package etcdstore

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/etcdtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// 10,000 holds of a process cost one keep-alive a second, and a read transaction for each 120 renewals.
func TestManyHolds(t *testing.T) {
	t.Parallel()
	holds := 10_000
	if testpace.Raced {
		holds = 2_000
	}
	server := etcdtest.Shared(t)
	p := newProxy(t, server.Addr())
	s := open(t, connect(t, p.address), WithPrefix(newPrefix()))
	refs := make([]store.LeaseRef, holds)
	var all sync.WaitGroup
	for part := range 50 {
		all.Go(func() {
			for i := part; i < holds; i += 50 {
				req := newRequest(fmt.Sprint("k", i), 0)
				reply, err := s.AcquireLease(context.Background(), req)
				if err != nil || reply.Outcome != store.Granted {
					t.Errorf("AcquireLease: %+v, %v", reply, err)
					return
				}
				refs[i] = req.Ref(reply.Fence)
				if held, err := s.RenewLeases(context.Background(), refs[i:i+1]); err != nil || !held[0] {
					t.Errorf("the first renewal: %v, %v", held, err)
				}
			}
		})
	}
	all.Wait()
	if t.Failed() {
		return
	}
	// As the keeper does, in batches of 100, for some seconds.
	const seconds = 5
	<-time.After(idleFor + 2*keepEvery) // no request waits any more
	keeps, reads, renewed := p.calls("LeaseKeepAlive"), p.calls("Txn")+p.calls("Range"), 0
	began := time.Now()
	for time.Since(began) < seconds*time.Second {
		from := renewed % holds
		part := refs[from:min(from+100, holds)]
		held, err := s.RenewLeases(t.Context(), part)
		if err != nil {
			t.Fatal(err)
		}
		for i, ok := range held {
			if !ok {
				t.Fatalf("hold %d is lost", from+i)
			}
		}
		renewed += len(part)
	}
	took := time.Since(began).Seconds()
	keeps, reads = p.calls("LeaseKeepAlive")-keeps, p.calls("Txn")+p.calls("Range")-reads
	t.Logf("%d renewals in %.1fs: %d keep-alives, %d reads", renewed, took, keeps, reads)
	if float64(keeps) > took*1.2+1 {
		t.Errorf("%d keep-alives in %.1f seconds, want one a second", keeps, took)
	}
	if most := 2 * (renewed/100 + 1); reads > most {
		t.Errorf("%d reads for %d renewals, want at most %d", reads, renewed, most)
	}
	if outcomes, err := s.ReleaseLeases(t.Context(), refs); err != nil || outcomes[0] != store.Released || outcomes[holds-1] != store.Released {
		t.Errorf("ReleaseLeases: %v", err)
	}
}

// A process whose lease the server has ended loses its holds at once, and their contexts end.
func TestLostLease(t *testing.T) {
	t.Parallel()
	server := etcdtest.Shared(t)
	c := connect(t, server.URL())
	s := open(t, c, WithPrefix(newPrefix()))
	lost := make(chan string, 4)
	defer s.NotifyLost(func(id string) { lost <- id })()
	req := newRequest("k", 0)
	reply := acquire(t, s, req, store.Granted)
	ref := req.Ref(reply.Fence)
	if held, err := s.RenewLeases(t.Context(), []store.LeaseRef{ref}); err != nil || !held[0] {
		t.Fatal(held, err)
	}
	s.mu.Lock()
	id := s.find(s.path(req.Name, req.Key), req.ID).lease.id
	s.mu.Unlock()
	if _, err := c.Revoke(t.Context(), id); err != nil {
		t.Fatal(err)
	}
	select {
	case got := <-lost:
		if got != req.ID {
			t.Errorf("%q is lost", got)
		}
	case <-time.After(10 * time.Second):
		t.Error("its holder is not told")
	}
	if held, err := s.RenewLeases(t.Context(), []store.LeaseRef{ref}); err != nil || held[0] {
		t.Errorf("a hold whose lease has ended is renewed: %v, %v", held, err)
	}
	again := acquire(t, s, newRequest("k", 0), store.Granted)
	if again.Fence <= reply.LastFence {
		t.Errorf("fence %d after %d", again.Fence, reply.LastFence)
	}
}

// A revocation ends the context of a holder in another process.
func TestRevokedByAnotherProcess(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), WithPrefix(newPrefix())
	s, other := open(t, connect(t, server.URL()), prefix), open(t, connect(t, server.URL()), prefix)
	lost := make(chan string, 64)
	defer s.NotifyLost(func(id string) { lost <- id })()
	testpace.Eventually(t, 20*time.Second, "a holder is told of a revocation", func() bool {
		req := newRequest("k", 0)
		reply := acquire(t, s, req, store.Granted)
		if ended, err := other.RevokeLease(t.Context(), req.Name, req.Key, reply.LastFence); err != nil || !ended {
			t.Fatal(ended, err)
		}
		select {
		case id := <-lost:
			return id == req.ID
		case <-time.After(200 * time.Millisecond):
			return false
		}
	})
}
