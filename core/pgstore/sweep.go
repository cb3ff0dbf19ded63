package pgstore

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

// sweeps are statements that each delete at most 1,000 expired rows: PostgreSQL expires nothing by
// itself.
var sweeps = slices.Concat(leaseSweeps, []string{
	sweepBuckets,
	// The record of an abandoned attempt prevents the commit of its transaction. So it stays while a
	// transaction of the operation is open, which has the advisory lock of the operation.
	`DELETE FROM lk.operations WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM lk.operations WHERE slice <= lk.now_us() AND expires <= lk.now_us() AND (withdrawn IS NULL OR
			changed < lk.now_us() - 60000000 AND lk.operation_key_1(id) <> ALL (ARRAY(
				SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1)))
		ORDER BY slice LIMIT 1000 FOR UPDATE SKIP LOCKED))`,
	`DELETE FROM lk.scopes WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM lk.scopes WHERE slice <= lk.now_us() ORDER BY slice LIMIT 1000 FOR UPDATE SKIP LOCKED))`,
	`DELETE FROM lk.latch_participants WHERE ctid = ANY (ARRAY(
		SELECT p.ctid FROM lk.latches l JOIN lk.latch_participants p ON p.latch = l.id
		WHERE l.ends <= lk.now_us() LIMIT 1000))`,
	`DELETE FROM lk.latches WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM lk.latches l
		WHERE ends <= lk.now_us() - 60000000 AND NOT EXISTS (SELECT FROM lk.latch_participants p WHERE p.latch = l.id)
		ORDER BY ends LIMIT 1000 FOR UPDATE SKIP LOCKED))`,
	`DELETE FROM lk.latch_waiters WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM lk.latch_waiters WHERE ends <= lk.now_us() LIMIT 1000))`,
	`DELETE FROM lk.buried_tasks WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM lk.buried_tasks WHERE expires <= (SELECT lk.now_us())
		ORDER BY expires LIMIT 1000 FOR UPDATE SKIP LOCKED))`,
	`DELETE FROM lk.cancelled_tasks WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM lk.cancelled_tasks WHERE ends <= (SELECT lk.now_us())
		ORDER BY ends LIMIT 1000 FOR UPDATE SKIP LOCKED))`,
	`DELETE FROM lk.task_waiters WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM lk.task_waiters WHERE ends <= lk.now_us() LIMIT 1000 FOR UPDATE SKIP LOCKED))`,
	`DELETE FROM lk.documents WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM lk.documents
		WHERE expires <= (SELECT lk.now_us()) - 3600000000 AND put <= (SELECT lk.now_us()) - 3600000000
		ORDER BY expires LIMIT 1000 FOR UPDATE SKIP LOCKED))`,
})

const (
	sweepEvery = time.Minute
	sweepRows  = 1000
)

// sweep removes expired rows every minute, if no other process does so at the time.
func (s *Store) sweep() {
	for backoff.Sleep(s.db.Life(), sweepEvery/2+rand.N(sweepEvery)) {
		for s.sweepOnce(s.db.Life()) {
		}
	}
}

// sweepOnce runs each statement once. It reports whether there are more rows to remove.
func (s *Store) sweepOnce(ctx context.Context) (more bool) {
	for _, text := range sweeps {
		call := statement.Call{Operation: opSweep}
		rows, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (rows int64, err error) {
			err = pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
				var mine bool
				if err := tx.QueryRow(ctx,
					s.db.Text("SELECT pg_try_advisory_xact_lock(hashtextextended('lk.sweep', 0))")).
					Scan(&mine); err != nil || !mine {
					return err
				}
				tag, err := tx.Exec(ctx, s.db.Text(text))
				rows = tag.RowsAffected()
				return err
			})
			return rows, err
		})
		more = more || err == nil && rows >= sweepRows
	}
	return more
}

// leaseSweeps remove rows without a purpose:
//   - old tombstones;
//   - processes that wait no more;
//   - keys that have been idle for an hour, if the clock has passed their last fence. For these
//     they look at some pages of a large table at a time: an index on columns that change would
//     cost every step.
var leaseSweeps = []string{
	`DELETE FROM lk.lease_tombstones WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM lk.lease_tombstones WHERE until < lk.now_us() LIMIT 1000 FOR UPDATE SKIP LOCKED))`,
	`DELETE FROM lk.lease_processes WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM lk.lease_processes WHERE beat + greatest(60000000, span) < lk.now_us()
		LIMIT 1000 FOR UPDATE SKIP LOCKED))`,
	`SELECT FROM lk.sweep_leases_1(100)`,
	`WITH idle AS (DELETE FROM lk.leases WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM lk.leases
		TABLESAMPLE SYSTEM ((SELECT least(100, 1000 * 100.0 * 8192 / greatest(pg_relation_size('lk.leases'), 1))))
		WHERE NOT busy AND (holder IS NULL OR ends < lk.now_us() - 3600000000)
			AND greatest(fence, number, late) < lk.now_us() - 3600000000
			AND (NOT bound OR pg_try_advisory_xact_lock(lk.bind_key_1(id)))
		LIMIT 1000 FOR UPDATE SKIP LOCKED)) RETURNING id)
	DELETE FROM lk.lease_keys WHERE id = ANY (ARRAY(
		SELECT k.id FROM lk.lease_keys k JOIN idle i ON i.id = k.id FOR UPDATE OF k SKIP LOCKED))`,
}
