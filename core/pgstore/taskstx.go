package pgstore

import (
	"context"
	"fmt"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// PutTaskIn is PutTask in the caller's transaction: the task is put by its commit, and with the
// caller's own changes or not at all. It waits from now on, and not from the commit. A process that
// waits for it is woken by the commit.
//
// The transaction is one of the same database, and its user has the rights of [Grants]. The key's
// task is locked until it ends: it is not taken before, and other steps of the key wait, the
// settlement of a running one too. So PutTaskIn belongs at the end of a transaction. With an
// isolation level above READ COMMITTED another step of the key may fail the transaction (40001),
// which is then run again.
//
// After an error the caller must roll back. The error is store.ErrClosed after Shutdown, or one of
// the database. The outcome is that of PutTask, if the transaction is committed. A repeat of the
// transaction with the same ID changes nothing.
func (s *Store) PutTaskIn(ctx context.Context, tx Tx, req store.PutTaskRequest) (store.PutTaskReply, error) {
	if s.hooks.Begun() {
		return store.PutTaskReply{}, store.ErrClosed
	}
	const text = `SELECT outcome, remaining, coalesce(size, -1) FROM lk.put_task_1($1, $2, $3, $4, $5, $6, $7, true)`
	var p putReply
	if err := tx.QueryRow(ctx, s.db.Text(text), s.putArgs(&req)...).Scan(&p.outcome, &p.remaining, &p.size); err != nil {
		return store.PutTaskReply{}, fmt.Errorf("pgstore: PutTaskIn: %w", err)
	}
	return s.put(&req, p)
}

// CancelTaskIn is CancelTask in the caller's transaction. Its outcome holds if the transaction is
// committed: nobody takes the task before. After a rollback the task is as it was. What
// [Store.PutTaskIn] says of the transaction, and of errors, is true of this method too.
func (s *Store) CancelTaskIn(ctx context.Context, tx Tx, req store.CancelTaskRequest) (store.CancelOutcome, error) {
	var outcome string
	if err := tx.QueryRow(ctx, s.db.Text(cancelTaskSQL), cancelArgs(&req)...).Scan(&outcome); err != nil {
		return 0, fmt.Errorf("pgstore: CancelTaskIn: %w", err)
	}
	return cancelled(outcome)
}
