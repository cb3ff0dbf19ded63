package etcdstore

import (
	"context"
	"errors"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Held returns the comparison that a lock is held, for the caller's own transaction in the same cluster:
//
//	held, err := etcdstore.Held(lease)
//	// …
//	reply, err := client.Txn(ctx).If(held).Then(clientv3.OpPut("balance", "7")).Commit()
//
// As long as the comparison succeeds no other process holds the lock. So a write under it is
// exclusive, also if the holder was paused for longer than its lease: its transaction then does not
// succeed, and reply.Succeeded is false. The data need no fence.
//
// Unlock after the transaction, not before: within the process, an unlocked lock is handed on at once, with
// the same comparison. The comparison is of this hold; take a new one for each lease. The lease's locker is on
// a [Store]. Held returns without a step of the server. The error is one of:
//   - the cause with which the lease's context has ended;
//   - lock.ErrLost if this process has no such hold any more;
//   - an error for a shared lease, which does not exclude other holders.
func Held(l *lock.Lease) (clientv3.Cmp, error) {
	if l == nil {
		return clientv3.Cmp{}, errors.New("etcdstore: Held: nil lease")
	}
	if l.Shared() {
		return clientv3.Cmp{}, errors.New("etcdstore: Held: a shared lease does not exclude other holders")
	}
	var held clientv3.Cmp
	err := l.VerifyBy(context.Background(), func(_ context.Context, st store.Leases, ref store.LeaseRef) (bool, error) {
		s, ok := st.(*Store)
		if !ok {
			return false, errors.New("etcdstore: Held: the locker's store is not an *etcdstore.Store")
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		r := s.find(s.path(ref.Name, ref.Key), ref.ID)
		if r == nil || r.stage != holding || r.entry.firstFence() != ref.Fence {
			return false, nil
		}
		held = clientv3.Compare(clientv3.CreateRevision(r.entry.at), "=", r.entry.Created)
		return true, nil
	})
	return held, err
}
