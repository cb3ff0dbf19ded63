package etcdstore

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/testing/etcdtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// Fences grow over another lease, another process, a restart of the server, a raise of their base, and a
// restore that sets back the revisions; and they exceed those of a store that counted microseconds before.
func TestFencesGrow(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	c := connect(t, server.URL())
	last := time.Now().UnixMicro() // as on Redis and PostgreSQL
	locks := func(when string, s *Store) {
		t.Helper()
		req := newRequest("k", 0)
		req.Fences = store.MaxFences
		var grant store.Grant
		testpace.Eventually(t, 10*time.Second, "a grant "+when, func() bool {
			reply, err := s.AcquireLease(context.Background(), req)
			grant = reply.Grant
			return err == nil && reply.Outcome == store.Granted
		})
		if grant.Fence <= last {
			t.Errorf("%s: fence %d after %d", when, grant.Fence, last)
		}
		last = grant.LastFence
		release(t, s, req)
	}
	first, second := open(t, c), open(t, c)
	for range 3 {
		locks("in one process", first)
		locks("in another one", second)
	}
	s := open(t, c)
	locks("on another lease", s)
	server.Restart()
	locks("after a restart", s)
	if err := first.RaiseFences(t.Context()); err != nil {
		t.Fatal(err)
	}
	locks("after the base was raised by another process", s)
	locks("after the base was raised", first)

	restored := etcdtest.Start(t) // a cluster whose revisions begin anew
	after := connect(t, restored.URL())
	base, err := c.Get(t.Context(), s.fenceKey())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := after.Put(t.Context(), s.fenceKey(), string(base.Kvs[0].Value)); err != nil {
		t.Fatal(err)
	}
	s = open(t, after)
	if err := s.RaiseFences(t.Context()); err != nil {
		t.Fatal(err)
	}
	locks("after a restore", s)
}

// Fences grow when another member of the cluster leads.
func TestFencesOfAnotherLeader(t *testing.T) {
	t.Parallel()
	members := etcdtest.StartCluster(t, 3)
	c := connect(t, members[0].URL(), members[1].URL(), members[2].URL())
	s := open(t, c)
	last := int64(0)
	for range 3 {
		req := newRequest("k", 0)
		testpace.Eventually(t, 20*time.Second, "a grant", func() bool {
			reply, err := s.AcquireLease(context.Background(), req)
			if err != nil || reply.Outcome != store.Granted {
				return false
			}
			if reply.Fence <= last {
				t.Errorf("fence %d after %d", reply.Fence, last)
			}
			last = reply.LastFence
			return true
		})
		release(t, s, req)
		leader := etcdtest.Leader(t, members)
		leader.Stop()
		leader.Restart()
	}
}

// Requests that are in flight while another process raises fences are granted by the new ones.
func TestRaisedFencesDuringAcquires(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), WithPrefix(newPrefix())
	c := connect(t, server.URL())
	s, other := open(t, c, prefix), open(t, c, prefix)
	acquire(t, s, newRequest("first", 0), store.Granted)
	for range 20 {
		if err := other.RaiseFences(t.Context()); err != nil {
			t.Fatal(err)
		}
		var all sync.WaitGroup
		for range 16 {
			all.Go(func() {
				req := newRequest(naming.NewID(), 0)
				reply, err := s.AcquireLease(t.Context(), req)
				if err != nil || reply.Outcome != store.Granted {
					t.Errorf("a free lock: %+v, %v", reply, err)
				}
				_, _ = s.ReleaseLeases(t.Context(), []store.LeaseRef{req.Ref(0)})
			})
		}
		all.Wait()
	}
}
