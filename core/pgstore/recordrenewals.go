package pgstore

import (
	"context"
	"slices"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// maxRenewals is the largest number of attempts whose leases one statement renews.
const maxRenewals = 100

// renewSQL locks the records in the order of their IDs, so that two processes do not wait for each
// other. It leaves out:
//   - a record that another transaction has locked, such as that of [Complete]: it would delay all
//     others;
//   - a record that is to be counted in another slice.
const renewSQL = `WITH mine AS (
  SELECT o.id, r.lease, r.retention FROM lk.operations o
  JOIN unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[]) AS r(id, owner, lease, retention)
    ON o.id = r.id AND o.owner = r.owner
  WHERE o.state IN ('F', 'R') ORDER BY o.id FOR UPDATE OF o SKIP LOCKED)
UPDATE lk.operations o SET
  lease_ends = at + mine.lease, lease = mine.lease, expires = greatest(o.expires, at + mine.retention)
FROM lk.now_us() at, mine WHERE o.id = mine.id AND o.expires > at AND o.slice >= at + mine.retention RETURNING o.id`

// RenewOperations implements store.Records. It takes one statement for each hundred, and one more
// for each attempt that has lost its record, or whose record is counted in another slice from now
// on.
func (s *Store) RenewOperations(ctx context.Context, reqs []store.RenewRequest) ([]bool, error) {
	owned := make([]bool, len(reqs))
	var failed error
	for at := 0; at < len(reqs) && failed == nil; at += maxRenewals {
		end := min(at+maxRenewals, len(reqs))
		failed = s.renew(ctx, reqs[at:end], owned[at:end])
	}
	return owned, failed
}

func (s *Store) renew(ctx context.Context, reqs []store.RenewRequest, owned []bool) error {
	var (
		ids, owners       []string
		leases, retention []int64
	)
	for i, r := range reqs {
		if owned[i] = s.transacts(r.Owner); !owned[i] {
			ids, owners = append(ids, r.ID), append(owners, r.Owner)
			leases, retention = append(leases, r.Lease.Microseconds()), append(retention, r.Retention.Microseconds())
		}
	}
	if len(ids) == 0 {
		return nil
	}
	call := statement.Call{Operation: opRenewOperations, Urgency: batch.Finishing, Writes: true}
	renewed, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) ([]string, error) {
		rows, err := c.Query(ctx, s.db.Text(renewSQL), ids, owners, leases, retention)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, pgx.RowTo[string])
	})
	if err != nil {
		return err
	}
	var failed error
	for i, r := range reqs {
		if owned[i] = owned[i] || slices.Contains(renewed, r.ID); owned[i] {
			continue
		}
		var err error
		owned[i], err = statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (mine bool, err error) {
			err = c.QueryRow(ctx, s.db.Text(`SELECT lk.renew_operation_1($1, $2, $3, $4)`),
				r.ID, r.Owner, r.Lease.Microseconds(), r.Retention.Microseconds()).
				Scan(&mine)
			return mine, err
		})
		if err != nil {
			failed = err
		}
	}
	return failed
}
