package pgstore

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

// transaction is a transaction of the caller's database that runs an operation. Its record, its
// effects and its result are committed together. Until then no other transaction can see a record,
// and an advisory lock excludes other transactions of the same operation. So there is no lease, and
// a crash leaves nothing behind.
type transaction struct {
	conn       connection
	store      *Store
	owner      string
	maxRecords int
	begun      bool // a request to begin has begun an attempt
	open       bool // the database's transaction is open
	// outside is true if the attempt was begun in the store, because the operation had a record
	// already.
	outside bool
}

// connection is a connection to the application's database, by pgx or database/sql. No two methods
// are called at the same time.
type connection interface {
	// begin begins a transaction, and returns the row of a query, if there is one.
	begin(ctx context.Context, query string, args []any, into ...any) error
	// query returns the row of a query in the transaction.
	query(ctx context.Context, query string, args []any, into ...any) error
	// commit runs a query, if there is one, and commits the transaction if that does not fail.
	commit(ctx context.Context, query string, args []any, into ...any) error
	// rollback ends the transaction, if it has not ended, and gives the connection back.
	rollback()
}

// transactionKey is the context key of the transaction in which a call begins an operation.
type transactionKey struct{}

// transactionOf returns the transaction in which a call is to begin an operation, or nil.
func transactionOf(ctx context.Context, s *Store) *transaction {
	t, _ := ctx.Value(transactionKey{}).(*transaction)
	if t == nil || t.begun { // fn may begin other operations
		return nil
	}
	t.store = s
	return t
}

// transacts reports whether an attempt runs in a transaction, or did and was undone.
func (s *Store) transacts(owner string) bool {
	_, ok := s.transactions.Load(owner)
	return ok
}

// begin is BeginOperation in the transaction. If the operation has a record, the store reads it.
func (t *transaction) begin(ctx context.Context, req *store.BeginRequest) (store.BeginReply, error) {
	var (
		outcome   string
		remaining int64
	)
	err := t.conn.begin(ctx,
		t.store.db.Text(`SELECT outcome, coalesce(remaining, 0) FROM lk.enter_operation_1($1, $2, $3, $4)`),
		[]any{req.ID, req.Scope, req.Owner, req.MaxRecords}, &outcome, &remaining)
	if err == nil && outcome == "started" {
		t.begun, t.open, t.owner, t.maxRecords = true, true, req.Owner, req.MaxRecords
		t.store.transactions.Store(t.owner, t)
		return store.BeginReply{Outcome: store.Started, Number: 1, Records: int(remaining)}, nil
	}
	t.conn.rollback()
	switch {
	case err != nil:
		return store.BeginReply{}, statement.Explain(err, false)
	case outcome == "locked":
		return store.BeginReply{Outcome: store.Busy, Number: 1, Remaining: req.Lease}, nil
	case outcome == "full":
		return store.BeginReply{Outcome: store.ScopeFull, Remaining: micros(remaining)}, nil
	}
	t.begun = true
	reply, err := t.store.BeginOperation(ctx, *req)
	t.outside = err == nil && reply.Outcome == store.Started
	t.begun = t.outside
	return reply, err
}

// commit settles the attempt, and commits. If there is no reply, it leaves the commit to end by
// itself, and finds out its outcome.
func (t *transaction) commit(ctx context.Context, _ store.Records, req store.SettleRequest) (owned bool, err error) {
	if err := ctx.Err(); err != nil {
		return false, context.Cause(ctx)
	}
	t.open = false
	type reply struct {
		owned bool
		err   error
	}
	r := reply{err: context.DeadlineExceeded}
	done := make(chan reply, 1)
	running, end := t.store.db.Committing(ctx, t.store.db.Unhurried(), func() {})
	go func() {
		defer end()
		owned, err := t.settle(running, &req)
		t.conn.rollback()
		done <- reply{owned, err}
	}()
	timeout := time.NewTimer(t.store.db.Unhurried())
	defer timeout.Stop()
	select {
	case r = <-done:
	case <-timeout.C:
	}
	var answer *pgconn.PgError
	if r.err == nil || errors.As(r.err, &answer) && statement.EndsStatement(answer) {
		return r.owned, r.err
	}
	return t.findOut(ctx, req.AttemptRef, r.err)
}

// settle settles the attempt, and commits if the attempt owned its record.
func (t *transaction) settle(ctx context.Context, req *store.SettleRequest) (owned bool, err error) {
	s := t.store
	if t.outside {
		var outcome string
		if err = t.conn.query(ctx, s.db.Text(completeSQL), settleArgs(req), &outcome); err != nil || outcome != "owned" {
			return false, err
		}
		err = t.conn.commit(ctx, "", nil)
	} else {
		var none any
		const leave = `SELECT lk.leave_operation_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)::text`
		err = t.conn.commit(ctx, s.db.Text(leave), []any{
			req.ID, req.Guard, req.Scope, req.Owner, req.Fingerprint, letters[req.State], req.Status, req.Data,
			req.Retention.Microseconds(), t.maxRecords, int64(req.MaxBytes), holderOf(req.Holder),
		}, &none)
	}
	return err == nil, err
}

// findOut finds out whether the transaction was committed, and makes sure that it is not committed
// later. While the caller waits, and for ten seconds at most, it waits for a server that does not
// reply, and for a transaction that has not ended.
func (t *transaction) findOut(ctx context.Context, ref store.AttemptRef, cause error) (committed bool, err error) {
	s := t.store
	type end struct{ settled, open bool }
	until := time.Now().Add(10 * time.Second)
	for {
		call := statement.Call{
			Operation: opSettleOperation, Urgency: batch.Finishing, Writes: true, Flow: flowOf(&ref.OperationRef),
		}
		running := context.WithoutCancel(ctx)
		e, err := statement.Run(running, s.db, call, func(ctx context.Context, c *pgx.Conn) (e end, err error) {
			err = c.QueryRow(ctx, s.db.Text(`SELECT settled, open FROM lk.undo_operation_1($1, $2, $3, $4)`),
				ref.ID, ref.Guard, ref.Scope, ref.Owner).
				Scan(&e.settled, &e.open)
			return e, err
		})
		switch {
		case err == nil && e.settled:
			return true, nil
		case err == nil && !e.open:
			return false, fmt.Errorf("%w: the transaction was rolled back: %w", store.ErrUnavailable, cause)
		case ctx.Err() != nil || s.db.Life().Err() != nil || time.Now().After(until):
			s.transactions.Delete(t.owner) // the guard then abandons the attempt
			return false, fmt.Errorf("%w: commit: %w", store.ErrUnconfirmed, cause)
		}
		backoff.Sleep(ctx, 50*time.Millisecond+rand.N(50*time.Millisecond))
	}
}

// end rolls the transaction back, if it is open.
func (t *transaction) end() {
	if t.open {
		t.open = false
		t.conn.rollback()
	}
}

// forget is called when the attempt is settled.
func (t *transaction) forget() {
	if t.store != nil {
		t.store.transactions.Delete(t.owner)
	}
}
