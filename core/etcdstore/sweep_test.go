package etcdstore

import (
	"context"
	"errors"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/etcdtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// A request whose place has ended, and that is awaited again before the entry is deleted, is not granted by
// the entry that the deletion takes.
func TestAnEntryThatIsBeingDeleted(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), WithPrefix(newPrefix())
	c := connect(t, server.URL())
	other, s := open(t, c, prefix), open(t, c, prefix, WithTimeout(testpace.Scale(3*time.Second)))
	hold, next := newRequest("k", 0), newRequest("k", 0)
	acquire(t, other, hold, store.Granted)
	next.Place = acquire(t, s, next, store.Queued).Place
	s.mu.Lock()
	s.sweeping = true // by nothing: the deletion is late
	s.condemn(s.find(s.path(next.Name, next.Key), next.ID))
	s.mu.Unlock()
	release(t, other, hold)
	grant, err := s.AwaitLease(t.Context(), next)
	s.sweep()
	if err == nil {
		if held, err := s.VerifyLease(t.Context(), next.Ref(grant.Fence)); err != nil || !held {
			t.Errorf("fence %d was granted, and is not held: %v, %v", grant.Fence, held, err)
		}
	} else if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("AwaitLease: %v", err)
	}
	g := receive(t, await(t.Context(), s, next), "a request after the deletion")
	if held, err := s.VerifyLease(t.Context(), next.Ref(g.grant.Fence)); err != nil || !held {
		t.Errorf("fence %d is not held: %v, %v", g.grant.Fence, held, err)
	}
	release(t, s, next)
}

// A deletion whose first try reaches the server late, after the second one, does not take the entry that
// the request has since.
func TestALateDeletion(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), WithPrefix(newPrefix())
	p := newProxy(t, server.Addr())
	other, s := open(t, connect(t, server.URL()), prefix), open(t, connect(t, p.address), prefix)
	for _, keys := range [][]string{{"k"}, {"k1", "k2"}} {
		var holds, waiters []store.LeaseRequest
		var fences []int64
		for _, key := range keys {
			hold, next := newRequest(key, 0), newRequest(key, 0)
			acquire(t, other, hold, store.Granted)
			next.Place = acquire(t, s, next, store.Queued).Place
			holds, waiters = append(holds, hold), append(waiters, next)
		}
		s.mu.Lock()
		s.sweeping = true // by the call below, of all at once
		for _, w := range waiters {
			s.condemn(s.find(s.path(w.Name, w.Key), w.ID)) // as of one that no call awaits
		}
		s.mu.Unlock()
		arrive := p.keep(t, "Txn", 1, func() {})
		s.sweep()
		for i, w := range waiters {
			granted := await(t.Context(), s, w)
			release(t, other, holds[i])
			fences = append(fences, receive(t, granted, "a request that was queued anew").grant.Fence)
		}
		for i, w := range waiters {
			if held, err := s.RenewLeases(t.Context(), []store.LeaseRef{w.Ref(fences[i])}); err != nil || !held[0] {
				t.Fatalf("RenewLeases: %v, %v", held, err)
			}
		}
		arrive()
		for i, w := range waiters {
			if held, err := s.VerifyLease(t.Context(), w.Ref(fences[i])); err != nil || !held {
				t.Errorf("of %d keys, %s is not held: %v, %v", len(keys), w.Key, held, err)
			}
			release(t, s, w)
		}
	}
}

// The server loses the lease of tombstones: releases and revocations that leave something on it get another.
func TestALostLeaseOfTombstones(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), WithPrefix(newPrefix())
	c := connect(t, server.URL())
	s, other := open(t, c, prefix), open(t, c, prefix)
	lose := func() {
		t.Helper()
		on, err := s.leases.forTombstones(t.Context())
		if err == nil {
			_, err = c.Revoke(t.Context(), on)
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	req := newRequest("k", 0)
	acquire(t, s, req, store.Granted)
	s.mu.Lock()
	s.find(s.path(req.Name, req.Key), req.ID).late = true // so that it leaves a tombstone
	s.mu.Unlock()
	lose()
	if outcome := release(t, s, req); outcome != store.Released {
		t.Errorf("released: %v", outcome)
	}
	if reply := acquire(t, s, req, store.Withdrawn); reply.Fence != 0 {
		t.Errorf("a released request: %+v", reply)
	}
	req = newRequest("k", 0)
	fence := acquire(t, other, req, store.Granted).Fence
	lose()
	if ended, err := s.RevokeLease(t.Context(), req.Name, req.Key, fence); err != nil || !ended {
		t.Errorf("revoked: %v, %v", ended, err)
	}
}

// The message about a revocation ends by itself, also if its process is dead and the one that has revoked
// lives on.
func TestAMessageToADeadProcess(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), newPrefix()
	c := connect(t, server.URL())
	s, dead := open(t, c, WithPrefix(prefix)), open(t, c, WithPrefix(prefix))
	req := newRequest("k", 0)
	fence := acquire(t, dead, req, store.Granted).Fence
	dead.end() // without a release
	if ended, err := s.RevokeLease(t.Context(), req.Name, req.Key, fence); err != nil || !ended {
		t.Fatal(ended, err)
	}
	reply, err := c.Get(context.Background(), prefix+"/i/", clientv3.WithPrefix())
	if err != nil || len(reply.Kvs) != 1 {
		t.Fatalf("%+v, %v", reply, err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if on := s.leases.of(clientv3.LeaseID(reply.Kvs[0].Lease)); on != nil || reply.Kvs[0].Lease == 0 {
		t.Errorf("it is on the lease %+v, which is kept alive", on)
	}
}

// Close waits for the goroutines of the store to end, also if a server that does not reply has used up the time
// for the entries that are being deleted.
func TestCloseEndsGoroutines(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	s := open(t, connect(t, server.URL()), WithTimeout(testpace.Scale(2*time.Second)))
	hold, next := newRequest("k", 0), newRequest("k", 0)
	acquire(t, s, hold, store.Granted)
	next.Place = acquire(t, s, next, store.Queued).Place
	waits := await(context.Background(), s, next)
	server.Pause()
	defer server.Continue()
	if _, err := s.ReleaseLeases(t.Context(), []store.LeaseRef{hold.Ref(0)}); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a release without a server: %v", err)
	}
	_ = s.Close()
	if n := s.running.Running(); n != 0 {
		t.Errorf("%d goroutines run", n)
	}
	if g := <-waits; !errors.Is(g.err, store.ErrUnavailable) {
		t.Errorf("a wait ended with %+v", g)
	}
}
