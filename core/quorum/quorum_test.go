package quorum_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/quorum"
	"github.com/lockkeeper/lockkeeper/core/store"
)

func request(key, id string, ttl time.Duration) store.LockRequest {
	return store.LockRequest{Name: "q", Key: key, ID: id, TTL: ttl, Fences: 16, Holder: "me"}
}

func ref(key, id string, ttl time.Duration) store.LockRef {
	return store.LockRef{Name: "q", Key: key, ID: id, TTL: ttl}
}

func newQuorum(t *testing.T, peers []*peer) *quorum.Store {
	t.Helper()
	members := make([]quorum.Member, len(peers))
	for i, p := range peers {
		members[i] = p
	}
	return must(quorum.New(members...))
}

// inQuorum runs a test with faked time and n members that have been up for an hour.
func inQuorum(t *testing.T, n int, test func(t *testing.T, q *quorum.Store, peers []*peer)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Cleanup(func() { time.Sleep(3 * time.Minute) }) // longer than retries in the background
		peers := make([]*peer, n)
		for i := range peers {
			peers[i] = &peer{store: memstore.New(), calls: map[string]int{}}
			t.Cleanup(func() { _ = peers[i].store.Close() })
		}
		time.Sleep(time.Hour)
		test(t, newQuorum(t, peers), peers)
	})
}

func holders(t *testing.T, peers []*peer, key string) int {
	t.Helper()
	n := 0
	for _, p := range peers {
		if p.has(t, key) {
			n++
		}
	}
	return n
}

func mustAcquire(t *testing.T, s store.Locks, key, id string, ttl time.Duration) store.Grant {
	t.Helper()
	reply, err := s.AcquireLock(t.Context(), request(key, id, ttl))
	if err != nil || reply.Outcome != store.Granted {
		t.Fatalf("AcquireLock of %s: %+v, %v", id, reply, err)
	}
	return reply.Grant
}

func req2hold(r store.LockRequest) store.LockRef {
	return store.LockRef{Name: r.Name, Key: r.Key, ID: r.ID, TTL: r.TTL, Delay: r.Delay}
}
