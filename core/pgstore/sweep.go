package pgstore

import (
	"context"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/internal/pause"
)

// sweeps are statements that each delete at most 1,000 rows of what has expired: PostgreSQL expires
// nothing by itself.
var sweeps = slices.Concat(leaseSweeps, []string{
	sweepBuckets,
	// Of an attempt that was abandoned, while a transaction of its operation is open, the record says that this
	// must not be committed. The transaction has the advisory lock of the operation.
	`DELETE FROM lk.operations WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM lk.operations WHERE slice <= lk.now_us() AND expires <= lk.now_us() AND (withdrawn IS NULL OR
			changed < lk.now_us() - 60000000 AND lk.operation_key_1(id) <> ALL (ARRAY(
				SELECT (classid::bigint << 32) | objid::bigint FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 1)))
		ORDER BY slice LIMIT 1000 FOR UPDATE SKIP LOCKED))`,
	`DELETE FROM lk.scopes WHERE ctid = ANY (ARRAY(SELECT ctid FROM lk.scopes WHERE slice <= lk.now_us() ORDER BY slice LIMIT 1000 FOR UPDATE SKIP LOCKED))`,
	`DELETE FROM lk.latch_participants WHERE ctid = ANY (ARRAY(
		SELECT p.ctid FROM lk.latches l JOIN lk.latch_participants p ON p.latch = l.id WHERE l.ends <= lk.now_us() LIMIT 1000))`,
	`DELETE FROM lk.latches WHERE ctid = ANY (ARRAY(
		SELECT ctid FROM lk.latches l WHERE ends <= lk.now_us() - 60000000 AND NOT EXISTS (SELECT FROM lk.latch_participants p WHERE p.latch = l.id)
		ORDER BY ends LIMIT 1000 FOR UPDATE SKIP LOCKED))`,
	`DELETE FROM lk.latch_waiters WHERE ctid = ANY (ARRAY(SELECT ctid FROM lk.latch_waiters WHERE ends <= lk.now_us() LIMIT 1000))`,
})

const (
	sweepEvery = time.Minute
	sweepRows  = 1000
)

// sweep removes what has expired, every minute, unless another process is about it.
func (s *Store) sweep() {
	for pause.Sleep(s.life, sweepEvery/2+rand.N(sweepEvery)) {
		for s.sweepOnce(s.life) {
		}
	}
}

// sweepOnce runs each statement once. It reports whether there is more to remove.
func (s *Store) sweepOnce(ctx context.Context) (more bool) {
	for _, statement := range sweeps {
		rows, err := run(ctx, s, step{operation: opSweep}, func(ctx context.Context, c *pgx.Conn) (rows int64, err error) {
			err = pgx.BeginFunc(ctx, c, func(tx pgx.Tx) error {
				var mine bool
				if err := tx.QueryRow(ctx, s.sql("SELECT pg_try_advisory_xact_lock(hashtextextended('lk.sweep', 0))")).Scan(&mine); err != nil || !mine {
					return err
				}
				tag, err := tx.Exec(ctx, s.sql(statement))
				rows = tag.RowsAffected()
				return err
			})
			return rows, err
		})
		more = more || err == nil && rows >= sweepRows
	}
	return more
}
