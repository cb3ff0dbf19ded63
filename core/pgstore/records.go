package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// A record is a row of operations. The common steps are plain statements: a function that does the
// same takes about half as long again. All other cases are left to a function. The server counts
// the records of a scope, and the bytes of their results, by slices of time: see records.sql.

// The parts of beginSQL and beginScopedSQL. An insert that finds a row waits for a transaction that
// is changing the row: hence NOT EXISTS. Only seenSQL names the columns of a record, since the
// server takes longer to prepare them than to read them.
const (
	startedSQL = `WITH started AS (
  INSERT INTO lk.operations (id, guard, scope, state, effects, owner, fingerprint, number,
    lease_ends, lease, expires, slice, created, changed, holder)
  SELECT $1, $2, $9, 'F', 'M', $3, $4, 1, at + $5, $5, at + $6, lk.slice_1(at, $6), at, at, $8 FROM lk.now_us() at
  WHERE NOT EXISTS (SELECT FROM lk.operations WHERE id = $1) ON CONFLICT (id) DO NOTHING RETURNING slice)`
	seenSQL = `SELECT CASE WHEN state = 'A' OR expires <= at THEN 'ask'
  WHEN fingerprint <> $4 THEN 'mismatched'
  WHEN state IN ('C', 'N') OR state = 'U' AND $7 = '' THEN CASE WHEN lk.confirm_1() THEN 'settled' END
  WHEN state <> 'U' AND owner <> $3 AND lease_ends > at AND lease_ends - at <= lease THEN 'busy'
  ELSE 'ask' END, number, lease_ends - at, state::text, status, CASE state WHEN 'C' THEN data END, owner
  FROM lk.now_us() at, lk.operations WHERE id = $1`
)

// beginSQL begins an operation without a scope, or returns its record if that is not to be taken
// over. It returns no row if another transaction inserted the record at the same time. $9 is empty.
const beginSQL = startedSQL + `
SELECT 'started', 1, 0::bigint, '', 0::smallint, NULL::bytea, '' FROM started UNION ALL ` + seenSQL

// beginScopedSQL is beginSQL with a scope: $9, which has at most $10 records. It fails if the scope
// is full. If it has added up the scope's records, their number is in the column of the rest of a
// lease.
const beginScopedSQL = startedSQL + `
SELECT 'started', 1, lk.add_record_1($9, slice, $10), '', 0::smallint, NULL::bytea, '' FROM started
UNION ALL ` + seenSQL

// lookSQL is seenSQL by itself, which takes less than half the time: see Store.settled. It does not
// wait for replicas, so its result counts only if it is known to be confirmed.
var lookSQL = strings.NewReplacer(
	"$3", "$2", "$4", "$3", "$7", "$4", "CASE WHEN lk.confirm_1() THEN 'settled' END", "'settled'",
).Replace(seenSQL) + ` AND NOT pg_is_in_recovery()`

// BeginOperation implements store.Records: one statement, and a second one if the operation is
// taken over, or was abandoned.
func (s *Store) BeginOperation(ctx context.Context, req store.BeginRequest) (store.BeginReply, error) {
	if t := transactionOf(ctx, s); t != nil {
		return t.begin(ctx, &req)
	}
	unknown := ""
	switch {
	case req.Rerun:
		unknown = "rerun"
	case req.Reconcile:
		unknown = "reconcile"
	}
	key := markOf(req.ID)
	call := statement.Call{
		Operation: opBeginOperation, Writes: true, Brief: s.settled.has(key), Flow: flowOf(&req.OperationRef),
	}
	scope := markOf(req.Scope)
	full := req.Scope != "" && s.full.has(scope) // to insert and undo it each time would leave dead rows
	reply, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (reply store.BeginReply, err error) {
		var b begun
		if call.Brief {
			err := c.QueryRow(ctx, s.db.Text(lookSQL), req.ID, req.Owner, req.Fingerprint, unknown).
				Scan(&b.outcome, &b.number, &b.remaining, &b.state, &b.status, &b.data, &b.owner)
			if err == nil && b.outcome != "ask" && (b.outcome != "settled" || s.confirmed.has(markOf(req.ID+b.owner))) {
				return b.reply()
			} else if err != nil && !errors.Is(err, pgx.ErrNoRows) {
				return reply, err
			}
			b = begun{}
		}
		text := s.db.Text(beginSQL)
		args := []any{
			req.ID, req.Guard, req.Owner, req.Fingerprint, req.Lease.Microseconds(), req.Retention.Microseconds(),
			unknown, holderOf(req.Holder), req.Scope,
		}
		if req.Scope != "" {
			text, args = s.db.Text(beginScopedSQL), append(args, req.MaxRecords)
		}
		plain := func() error {
			return c.QueryRow(ctx, text, args...).
				Scan(&b.outcome, &b.number, &b.remaining, &b.state, &b.status, &b.data, &b.owner)
		}
		ask := full
		if !ask {
			if err = plain(); errors.Is(err, pgx.ErrNoRows) { // another transaction's record, which is visible now
				err = plain()
			}
			ask = errors.Is(err, pgx.ErrNoRows) || isScopeFull(err) || err == nil && b.outcome == "ask"
		}
		if ask {
			number := max(b.number, 1)
			if b, err = s.begin(ctx, c, &req, unknown); statement.IsCode(err, statement.LockNotAvailable) {
				// Another transaction begins it, or completes it: see Complete.
				return store.BeginReply{Outcome: store.Busy, Number: number, Remaining: req.Lease}, nil
			}
		}
		if err != nil {
			return reply, err
		}
		if b.owner != "" && b.outcome == "settled" {
			s.confirmed.set(markOf(req.ID+b.owner), true)
		}
		return b.reply()
	})
	s.settled.set(key, err == nil && reply.Outcome == store.Settled)
	s.full.set(scope, err == nil && reply.Outcome == store.ScopeFull)
	return reply, err
}

const beginAnywaySQL = `SELECT outcome, coalesce(number, 0), coalesce(remaining, 0), coalesce(state, ''),
  coalesce(status, 0::smallint), data, coalesce(effects, ''), names, steps
FROM lk.begin_operation_1($1, $2, $3, $4, $5, $6, $7, $8, $9, $10)`

// flowOf returns the flow by which calls about records take turns. Each operation without a scope
// has a flow of its own.
func flowOf(ref *store.OperationRef) string { return cmp.Or(ref.Scope, ref.ID) }

// begin is BeginOperation without a shortcut.
func (s *Store) begin(ctx context.Context, c *pgx.Conn, req *store.BeginRequest, unknown string) (b begun, err error) {
	err = c.QueryRow(ctx, s.db.Text(beginAnywaySQL),
		req.ID, req.Guard, req.Scope, req.Owner, req.Fingerprint, req.Lease.Microseconds(), req.Retention.Microseconds(),
		unknown, req.MaxRecords, holderOf(req.Holder)).
		Scan(&b.outcome, &b.number, &b.remaining, &b.state, &b.status, &b.data, &b.effects, &b.names, &b.steps)
	var answer *pgconn.PgError
	if isScopeFull(err) && errors.As(err, &answer) { // other operations have filled it
		b.outcome = "full"
		b.remaining, err = strconv.ParseInt(answer.Detail, 10, 64)
	}
	return b, err
}

// isScopeFull reports whether a scope was filled while a statement ran, which was rolled back.
func isScopeFull(err error) bool { return statement.IsCode(err, "LK001") }

// holderOf returns a holder in the form of a record, at most store.MaxHolder bytes.
func holderOf(holder string) []byte { return []byte(holder[:min(len(holder), store.MaxHolder)]) }

// begun is the result of a statement that begins an operation.
type begun struct {
	outcome      string
	number       int
	remaining    int64 // µs; for a new record: the number of the scope's records, if they were added up
	state        string
	status       int
	owner        string // of the attempt that settled it, if that is known
	effects      string
	data         []byte
	names, steps [][]byte
}

var outcomes = map[string]store.BeginOutcome{
	"started": store.Started, "reconcile": store.ToReconcile, "settled": store.Settled, "busy": store.Busy,
	"mismatched": store.Mismatched, "undecided": store.Undecided, "refused": store.Refused, "full": store.ScopeFull,
}

func (b *begun) reply() (r store.BeginReply, err error) {
	outcome, known := outcomes[b.outcome]
	if !known || len(b.names) != len(b.steps) {
		return r, fmt.Errorf("pgstore: odd reply to a begin: %q", b.outcome)
	}
	r = store.BeginReply{Outcome: outcome, Number: b.number}
	switch outcome {
	case store.Started, store.ToReconcile:
		r.Effects, r.Records = effects[b.effects], int(b.remaining)
		for i, name := range b.names {
			r.Steps = append(r.Steps, store.Step{Name: string(name), Data: b.steps[i]})
		}
	case store.Busy, store.ScopeFull:
		r.Remaining = micros(b.remaining)
	case store.Settled:
		r.State, r.Status, r.Data = states[b.state], b.status, b.data
	}
	return r, nil
}

// The letters of states and effects in a record.
var (
	states = map[string]store.RecordState{
		"F": store.InFlight, "R": store.Reconciling, "C": store.Completed, "N": store.NotRetained, "U": store.Unknown,
	}
	letters = map[store.RecordState]string{
		store.InFlight: "F", store.Completed: "C", store.NotRetained: "N", store.Unknown: "U",
	}
	effects  = map[string]store.Effects{"M": store.MayHaveEffects, "N": store.NoEffects, "S": store.EffectsInSteps}
	letterOf = map[store.Effects]string{store.MayHaveEffects: "M", store.NoEffects: "N", store.EffectsInSteps: "S"}
)

// settleSQL settles an attempt that owns its record, and has no steps. If it returns no row,
// another statement has to do it. With a scope, $7, the record has to stay in its slice.
const settleSQL = `UPDATE lk.operations SET
  state = $3::text::"char", status = $4, data = $5, lease_ends = 0, lease = 0, expires = at + $6,
  slice = CASE WHEN lk.fits_1(slice, at + $6, $6) THEN slice ELSE lk.slice_1(at, $6) END,
  changed = greatest(at, changed + 1)
FROM lk.now_us() at
WHERE id = $1 AND owner = $2 AND state IN ('F', 'R') AND steps = 0 AND ($7 = '' OR lk.fits_1(slice, at + $6, $6))
RETURNING inboxes`

// settleScopedSQL is settleSQL with a result that counts in the scope, $7: $8 bytes, of at most $9.
// It fails if there is no room.
const settleScopedSQL = `WITH done AS (
  UPDATE lk.operations SET
    state = $3::text::"char", status = $4, data = $5, lease_ends = 0, lease = 0, expires = at + $6,
    changed = greatest(at, changed + 1)
  FROM lk.now_us() at
  WHERE id = $1 AND owner = $2 AND state IN ('F', 'R') AND steps = 0 AND lk.fits_1(slice, at + $6, $6)
  RETURNING slice, inboxes)
SELECT inboxes FROM done WHERE CASE WHEN lk.add_bytes_1($7, slice, $8, $9) THEN true ELSE lk.refuse_1(0) IS NULL END`

const settleAnywaySQL = `SELECT owned, waiting FROM
  lk.settle_operation_1($1, $2, $3, $4, $5, $6, $7::text::"char", $8::smallint, $9, $10, $11, $12)`

// SettleOperation implements store.Records: one statement, and a second one if the plain one does
// not settle the record. It sends a push to processes that wait for the end of the attempt, in a
// transaction of its own.
func (s *Store) SettleOperation(ctx context.Context, req store.SettleRequest) (bool, error) {
	if s.transacts(req.Owner) { // its transaction settles it
		return false, nil
	}
	letter, ok := letters[req.State]
	if !ok || req.State == store.InFlight {
		return false, fmt.Errorf("pgstore: SettleOperation: state %d settles nothing", req.State)
	}
	if req.State != store.Completed {
		req.Data = nil
	}
	text := s.db.Text(settleSQL)
	args := []any{req.Owner, letter, req.Status, req.Data, req.Retention.Microseconds(), req.Scope}
	if req.Scope != "" && len(req.Data) > 0 {
		text, args = s.db.Text(settleScopedSQL), append(args, len(req.Data), req.MaxBytes)
	}
	args = append([]any{req.ID}, args...)
	owned, err := s.finish(ctx, &req.OperationRef, func(ctx context.Context, c *pgx.Conn) (e ended, err error) {
		e.owned = true
		err = c.QueryRow(ctx, text, args...).Scan(&e.waiting)
		if errors.Is(err, pgx.ErrNoRows) || isScopeFull(err) {
			err = c.QueryRow(ctx, s.db.Text(settleAnywaySQL), settleArgs(&req)...).Scan(&e.owned, &e.waiting)
		}
		return e, err
	})
	if err == nil && owned {
		s.settled.set(markOf(req.ID), true)
		s.confirmed.set(markOf(req.ID+req.Owner), true)
	}
	return owned, err
}

// settleArgs are the arguments of the function that settles.
func settleArgs(req *store.SettleRequest) []any {
	return []any{
		req.ID, req.Guard, req.Scope, req.Owner, req.Fingerprint, req.Number, letters[req.State], req.Status, req.Data,
		req.Retention.Microseconds(), int64(req.MaxBytes), holderOf(req.Holder),
	}
}

// AbandonOperation implements store.Records: one statement.
func (s *Store) AbandonOperation(ctx context.Context, ref store.AttemptRef) (bool, error) {
	if s.transacts(ref.Owner) { // its transaction was rolled back
		return true, nil
	}
	return s.finish(ctx, &ref.OperationRef, func(ctx context.Context, c *pgx.Conn) (e ended, err error) {
		err = c.QueryRow(ctx, s.db.Text(`SELECT owned, waiting FROM lk.abandon_operation_1($1, $2, $3, $4)`),
			ref.ID, ref.Guard, ref.Scope, ref.Owner).
			Scan(&e.owned, &e.waiting)
		return e, err
	})
}

// ended is the result of a statement that ends an attempt: whether the caller owned it, and the
// inboxes that wait for it.
type ended struct {
	owned   bool
	waiting []string
}

// finish runs a statement that ends an attempt, and sends a push to the inboxes that wait for it.
func (s *Store) finish(
	ctx context.Context, ref *store.OperationRef, f func(ctx context.Context, c *pgx.Conn) (ended, error),
) (bool, error) {
	e, err := statement.Run(ctx, s.db, statement.Call{
		Operation: opSettleOperation, Urgency: batch.Finishing, Writes: true, Flow: flowOf(ref),
	}, f)
	if err == nil {
		s.tell(e.waiting, endedPush(ref))
	}
	return e.owned, err
}

// MarkOperation implements store.Records: one statement.
func (s *Store) MarkOperation(ctx context.Context, req store.MarkRequest) (bool, error) {
	if s.transacts(req.Owner) {
		return true, nil
	}
	return s.owns(ctx, &req.OperationRef, `UPDATE lk.operations SET
		effects = CASE WHEN marks < $4 THEN $3::text::"char" ELSE effects END,
		marks = greatest(marks, $4),
		changed = CASE WHEN marks < $4 THEN greatest(changed + 1, at) ELSE changed END
		FROM lk.now_us() at WHERE id = $1 AND owner = $2 AND state IN ('F', 'R') AND expires > at`,
		req.ID, req.Owner, letterOf[req.Effects], int64(min(req.Seq, store.MaxSeq)))
}

// owns runs a statement that changes a row if the caller owns it.
func (s *Store) owns(ctx context.Context, ref *store.OperationRef, text string, args ...any) (bool, error) {
	call := statement.Call{Operation: opSettleOperation, Urgency: batch.Finishing, Writes: true, Flow: flowOf(ref)}
	tag, err := statement.Run(ctx, s.db, call, statement.Execute(s.db.Text(text), args...))
	return tag.RowsAffected() == 1, err
}

// RecordStep implements store.StepRecords: one statement.
func (s *Store) RecordStep(ctx context.Context, req store.StepRequest) (bool, error) {
	if s.transacts(req.Owner) {
		return false, errors.New("pgstore: an operation in a transaction has no steps: " +
			"all its effects are undone if it fails")
	}
	data := append([]byte{}, req.Data...) // not null
	call := statement.Call{
		Operation: opSettleOperation, Urgency: batch.Finishing, Writes: true, Flow: flowOf(&req.OperationRef),
	}
	n, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (n int, err error) {
		err = c.QueryRow(ctx, s.db.Text(`SELECT lk.record_step_1($1, $2, $3, $4, $5)`),
			req.ID, req.Owner, []byte(req.Name), data, store.MaxSteps).Scan(&n)
		return n, err
	})
	if err == nil && n < 0 {
		return false, fmt.Errorf("%w: an operation has at most %d steps", store.ErrFull, store.MaxSteps)
	}
	return n == 1, err
}
