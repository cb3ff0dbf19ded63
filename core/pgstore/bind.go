package pgstore

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Bind binds the caller's transaction to a lock that it holds. Until the transaction ends, the lock
// is not granted again, even if the lease ends before. So only the holder has written the data
// that the transaction commits, even if its process was paused for longer than the lease, and the
// data need no fence. The lease's locker is on a [Store]. The transaction is one of the same
// database, and its user has the rights of [Grants]. Bind before the first statement whose result
// depends on the lock.
//
// It returns nil if the transaction is bound. After any error the caller must roll back. The error
// is one of:
//   - the cause with which the lease's context has ended;
//   - lock.ErrLost if the store has no such hold any more;
//   - an error for a shared lease, which does not exclude other holders;
//   - one that matches store.ErrUnavailable;
//   - an error of the database;
//   - an error if the transaction's isolation level is not READ COMMITTED: it may not see the loss
//     of a hold;
//   - an error if its idle_in_transaction_session_timeout is 0: a holder whose machine has stopped
//     would never lose the lock. With a timeout, it loses the lock at most that time after its last
//     statement.
//
// Unlock after the end of the transaction, not before: within the process, an unlocked lock is
// handed on at once. After Bind in a savepoint the transaction stays bound only if the savepoint is
// not rolled back. The first Bind of a hold takes three round trips, a further one takes one.
// Waiters notice the end of a transaction that outlived its lease within about a second.
func Bind(ctx context.Context, tx Tx, l *lock.Lease) error {
	if l.Shared() {
		return errors.New("pgstore: Bind: a shared lease excludes no other holder")
	}
	return l.VerifyBy(ctx, func(ctx context.Context, st store.Leases, ref store.LeaseRef) (bool, error) {
		s, ok := st.(*Store)
		if !ok {
			return false, errors.New("pgstore: Bind: the locker's store is not a *pgstore.Store")
		}
		outcome, err := s.bind(ctx, tx, ref)
		if err == nil && outcome == "mark" {
			if err := s.mark(ctx, ref); err != nil {
				return false, err
			}
			outcome, err = s.bind(ctx, tx, ref)
		}
		switch {
		case err != nil:
			return false, fmt.Errorf("pgstore: Bind: %w", err)
		case outcome == "isolation":
			return false, errors.New("pgstore: Bind: the transaction's isolation level is not READ COMMITTED: " +
				"it may not see that the lock was lost")
		case outcome == "timeout":
			return false, errors.New("pgstore: Bind: idle_in_transaction_session_timeout is 0: " +
				"set it, or a holder that stops never releases the lock")
		}
		return outcome == "bound", nil
	})
}

// bind binds a transaction. It returns "mark" if the key is to be marked first.
func (s *Store) bind(ctx context.Context, tx Tx, ref store.LeaseRef) (outcome string, err error) {
	key := s.leaseKey(ref.Name, ref.Key)
	err = tx.QueryRow(ctx, s.db.Text(`SELECT lk.bind_lease_1($1::text::uuid, $2, $3)`), key.Name(), ref.ID, ref.Fence).
		Scan(&outcome)
	return outcome, err
}

// mark marks a key, so that the next grant looks for bound transactions.
func (s *Store) mark(ctx context.Context, ref store.LeaseRef) error {
	call := statement.Call{Operation: opInspect, Urgency: batch.Finishing}
	_, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (struct{}, error) {
		_, err := c.Exec(ctx, s.db.Text(`SELECT lk.mark_lease_1($1)`), s.leaseKey(ref.Name, ref.Key))
		return struct{}{}, err
	})
	return err
}
