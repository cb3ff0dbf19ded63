package quorum_test

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/quorum"
	"github.com/lockkeeper/lockkeeper/core/store"
)

func request(key, id string, ttl time.Duration) store.LeaseRequest {
	return store.LeaseRequest{
		Name: store.LockKind + "q", Key: key, ID: id, Weight: store.MaxCapacity, Capacity: store.MaxCapacity, TTL: ttl, Fences: 16, Label: "me",
	}
}

func ref(key, id string, ttl time.Duration) store.LeaseRef {
	return store.LeaseRef{Name: store.LockKind + "q", Key: key, ID: id, TTL: ttl}
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

func mustAcquire(t *testing.T, s store.Leases, key, id string, ttl time.Duration) store.Grant {
	t.Helper()
	reply, err := acquire(t.Context(), s, request(key, id, ttl))
	if err != nil || reply.Outcome != store.Granted {
		t.Fatalf("AcquireLease of %s: %+v, %v", id, reply, err)
	}
	return reply.Grant
}

func req2hold(r store.LeaseRequest) store.LeaseRef {
	return r.Ref(0)
}

// fences has the fence of every grant, by store and ID, for the references of later steps.
var fences sync.Map

type fenceOf struct {
	st store.Leases
	id string
}

func acquire(ctx context.Context, st store.Leases, req store.LeaseRequest) (store.LeaseReply, error) {
	reply, err := st.AcquireLease(ctx, req)
	if err == nil && reply.Outcome == store.Granted {
		fences.Store(fenceOf{st, req.ID}, reply.Fence)
	}
	return reply, err
}

func awaitLease(ctx context.Context, st store.Leases, req store.LeaseRequest) (store.Grant, error) {
	grant, err := st.AwaitLease(ctx, req)
	if err == nil {
		fences.Store(fenceOf{st, req.ID}, grant.Fence)
	}
	return grant, err
}

func named(st store.Leases, ref store.LeaseRef) store.LeaseRef {
	if fence, ok := fences.Load(fenceOf{st, ref.ID}); ok {
		ref.Fence = fence.(int64)
	}
	return ref
}

func renew(ctx context.Context, st store.Leases, refs []store.LeaseRef) ([]bool, error) {
	for i, ref := range refs {
		refs[i] = named(st, ref)
	}
	return st.RenewLeases(ctx, refs)
}

func verify(ctx context.Context, st store.Leases, ref store.LeaseRef) (bool, error) {
	return store.Verify(ctx, st, named(st, ref))
}

// release reports whether the hold was held.
func release(ctx context.Context, st store.Leases, ref store.LeaseRef) (bool, error) {
	outcomes, err := st.ReleaseLeases(ctx, []store.LeaseRef{named(st, ref)})
	return err == nil && outcomes[0] == store.Released, err
}
