package zkstore

import (
	"context"
	"errors"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Held returns a check for the caller's Multi on [Store.Conn], or on another connection to the same
// ensemble: the Multi fails with zk.ErrNoNode if the lock is not held any more. No other process
// holds it before the check fails. So only the holder has written what such a Multi writes, even if
// its process was paused for longer than its lease and its session, and the data need no fence:
//
//	check, err := zkstore.Held(lease)
//	if err != nil {
//		return err
//	}
//	_, err = st.Conn().Multi(check, &zk.SetDataRequest{Path: path, Data: data, Version: -1})
//
// The lease's locker is on a [Store]. Make the Multi before Unlock: within the process, an unlocked
// lock may be handed on at once. The nodes of the caller are readable and writable for the
// credentials of the connection.
//
// The error is one of:
//   - the cause with which the lease's context has ended;
//   - lock.ErrLost if the store has no such hold any more;
//   - an error for a shared lease, which does not exclude other holders.
func Held(l *lock.Lease) (check *zk.CheckVersionRequest, err error) {
	if l == nil {
		return nil, errors.New("zkstore: Held: nil lease")
	}
	if l.Shared() {
		return nil, errors.New("zkstore: Held: a shared lease does not exclude other holders")
	}
	err = l.VerifyBy(context.Background(), func(_ context.Context, st store.Leases, ref store.LeaseRef) (bool, error) {
		s, ok := st.(*Store)
		if !ok {
			return false, errors.New("zkstore: Held: the locker's store is not a *zkstore.Store")
		}
		e := s.hold(ref)
		if e == nil {
			return false, nil
		}
		s.entries.mu.Lock()
		defer s.entries.mu.Unlock()
		check = &zk.CheckVersionRequest{Path: e.path(), Version: -1}
		return true, nil
	})
	if err != nil {
		return nil, err
	}
	return check, nil
}
