package pgstore

import (
	"context"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// putTaskIn is PutTask in the caller's transaction.
func (s *Store) putTaskIn(ctx context.Context, tx Tx, req store.PutTaskRequest) (store.PutTaskReply, error) {
	if s.hooks.Begun() {
		return store.PutTaskReply{}, store.ErrClosed
	}
	const text = `SELECT outcome, remaining, coalesce(size, -1) FROM lk.put_task_1($1, $2, $3, $4, $5, $6, $7, $8, true)`
	var p putReply
	if err := tx.QueryRow(ctx, s.db.Text(text), s.putArgs(&req)...).Scan(&p.outcome, &p.remaining, &p.size); err != nil {
		return store.PutTaskReply{}, fmt.Errorf("pgstore: PutTask: %w", err)
	}
	return s.put(&req, p)
}

// cancelTaskIn is CancelTask in the caller's transaction.
func (s *Store) cancelTaskIn(ctx context.Context, tx Tx, req store.CancelTaskRequest) (store.CancelOutcome, error) {
	var outcome string
	if err := tx.QueryRow(ctx, s.db.Text(cancelTaskSQL), cancelArgs(&req)...).Scan(&outcome); err != nil {
		return 0, fmt.Errorf("pgstore: CancelTask: %w", err)
	}
	return cancelled(outcome)
}

// settleTaskIn is SettleTasks for one attempt, in the caller's transaction.
func (s *Store) settleTaskIn(ctx context.Context, tx Tx, req store.SettleTaskRequest) (owned bool, err error) {
	const text = `SELECT owned FROM lk.settle_task_1($1, $2, $3, $4, $5, $6, $7, $8, $9, true)`
	err = tx.QueryRow(ctx, s.db.Text(text), settleTaskArgs(&req, req.Repeated)...).Scan(&owned)
	if err != nil {
		err = fmt.Errorf("pgstore: Finish: %w", err)
	}
	return owned, err
}
