package pgstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// PutTask is [delay.Queue.Put] in the caller's transaction: the task is put by its commit, with the
// caller's own changes or not at all. Its delay begins now, not with the commit. Workers that wait
// are woken by the commit. The queue is on a [Store].
//
// The transaction is one of the same database, and its user has the rights of [Grants]. The key's
// task is locked until it ends: it is not taken before, and other steps of the key wait. So PutTask
// belongs at the end of a transaction. With an isolation level above READ COMMITTED another step of
// the key may fail the transaction (40001), which is then run again.
//
// After an error the caller must roll back. It is one of those of Put, or of the database.
func PutTask(
	ctx context.Context, tx Tx, q *delay.Queue, key string, payload []byte, after time.Duration, opts ...delay.PutOption,
) (delay.Put, error) {
	return q.PutBy(ctx, key, payload, after, func(ctx context.Context, st store.Delays, req store.PutTaskRequest) (store.PutTaskReply, error) {
		s, err := ownStore(st, "PutTask")
		if err != nil {
			return store.PutTaskReply{}, err
		}
		return s.putTaskIn(ctx, tx, req)
	}, opts...)
}

// CancelTask is [delay.Queue.Cancel] in the caller's transaction. Its outcome holds if the
// transaction is committed: no worker takes the task before. After a rollback the task is as it
// was. [PutTask] describes the transaction, and the errors.
func CancelTask(ctx context.Context, tx Tx, q *delay.Queue, key string) (delay.Cancelled, error) {
	return q.CancelBy(ctx, key, func(ctx context.Context, st store.Delays, req store.CancelTaskRequest) (store.CancelOutcome, error) {
		s, err := ownStore(st, "CancelTask")
		if err != nil {
			return 0, err
		}
		return s.cancelTaskIn(ctx, tx, req)
	})
}

var errFinished = errors.New("pgstore: the task is done when the transaction is committed")

// Finish ends a task in the caller's transaction, which has the task's effects: both are committed,
// or neither is, so that the effects happen once, without a guard. The task's queue is on a
// [Store]. [PutTask] describes the transaction. Finish is the last step before the commit.
//
// It returns nil if the task is done once the transaction is committed; the function of
// [delay.Queue.Run] then returns nil. After a rollback it returns an error, and the task runs
// again.
//
// After an error the caller must roll back. It is [delay.ErrLost] if the lease had ended: another
// worker may have the task; delay.ErrSettled if the task was settled before; or one of the
// database.
func Finish(ctx context.Context, tx Tx, t *delay.Task) error {
	err := t.SettleBy(ctx, func(ctx context.Context, st store.Delays, req store.SettleTaskRequest) (owned bool, err error) {
		s, err := ownStore(st, "Finish")
		if err != nil {
			return false, err
		}
		if owned, err = s.settleTaskIn(ctx, tx, req); owned {
			return false, errFinished
		}
		return false, err
	})
	if errors.Is(err, errFinished) {
		return nil
	}
	return err
}

func ownStore(st store.Delays, function string) (*Store, error) {
	s, ok := st.(*Store)
	if !ok {
		return nil, fmt.Errorf("pgstore: %s: the queue's store is not a *pgstore.Store", function)
	}
	return s, nil
}
