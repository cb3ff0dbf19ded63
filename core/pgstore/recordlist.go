package pgstore

import (
	"context"
	"fmt"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// recordSQL returns records as an operator sees them.
const recordSQL = `SELECT id, scope, state::text, number, CASE WHEN prior THEN 'M' ELSE effects::text END,
  greatest(at - created, 0), greatest(at - changed, 0), lk.left_1(o, at), expires - at, status,
  CASE WHEN state = 'C' THEN coalesce(octet_length(data), 0) ELSE 0 END, changed || owner, holder,
  (SELECT array_agg(s.name ORDER BY s.place) FROM lk.operation_steps s WHERE s.id = o.id AND o.steps > 0)
FROM lk.now_us() at, lk.operations o WHERE state <> 'A' AND expires > at`

// InspectOperation implements store.ResolvableRecords: one statement, which changes nothing.
func (s *Store) InspectOperation(
	ctx context.Context, ref store.OperationRef,
) (record store.OperationRecord, found bool, err error) {
	records, err := s.records(ctx, flowOf(&ref), ref.Guard,
		recordSQL+" AND id = $1 AND guard = $2 AND scope = $3", ref.ID, ref.Guard, ref.Scope)
	if err != nil || len(records) == 0 {
		return record, false, err
	}
	return records[0], true, nil
}

// records runs a statement that begins with recordSQL.
func (s *Store) records(ctx context.Context, flow, guard, text string, args ...any) ([]store.OperationRecord, error) {
	call := statement.Call{Operation: opInspect, Urgency: batch.Reading, Flow: flow}
	return statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) ([]store.OperationRecord, error) {
		rows, err := c.Query(ctx, s.db.Text(text), args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r store.OperationRecord, err error) {
			var (
				state, dirty                 string
				age, changed, lease, expires int64
				holder                       []byte
				steps                        [][]byte
			)
			err = row.Scan(&r.ID, &r.Scope, &state, &r.Number, &dirty, &age, &changed, &lease, &expires,
				&r.Status, &r.Bytes, &r.Version, &holder, &steps)
			r.Guard, r.State, r.Effects, r.Holder = guard, states[state], effects[dirty], string(holder)
			r.Age, r.Changed, r.Lease, r.Expires = micros(age), micros(changed), micros(lease), micros(expires)
			for _, name := range steps {
				r.Steps = append(r.Steps, string(name))
			}
			return r, err
		})
	})
}

// pagesListed is the number of pages of the table that a listing reads at a time.
const pagesListed = 1024

// ListUnresolved implements store.ResolvableRecords. It reads the whole table, 8 MiB at a time, since an
// index of unresolved records would make every settlement dearer.
func (s *Store) ListUnresolved(ctx context.Context, guard string) iter.Seq2[store.OperationRecord, error] {
	return func(yield func(store.OperationRecord, error) bool) {
		call := statement.Call{Operation: opInspect, Urgency: batch.Reading, Flow: guard}
		pages, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (pages int64, err error) {
			err = c.QueryRow(ctx,
				s.db.Text("SELECT pg_relation_size('lk.operations') / current_setting('block_size')::int")).Scan(&pages)
			return pages, err
		})
		for from := int64(0); from < pages && err == nil; from += pagesListed {
			var records []store.OperationRecord
			records, err = s.records(ctx, guard, guard,
				recordSQL+` AND guard = $1 AND o.ctid >= $2::text::tid AND o.ctid < $3::text::tid
				AND (state = 'U' OR state IN ('F', 'R') AND lk.left_1(o, at) = 0 AND (effects <> 'N' OR prior))`,
				guard, fmt.Sprintf("(%d,0)", from), fmt.Sprintf("(%d,0)", from+pagesListed))
			for _, r := range records {
				if !yield(r, nil) {
					return
				}
			}
		}
		if err != nil {
			yield(store.OperationRecord{}, err)
		}
	}
}

const resolveSQL = `SELECT outcome, waiting
FROM lk.resolve_operation_1($1, $2, $3, $4, $5, $6::text::"char", $7::smallint, $8, $9)`

// ResolveOperation implements store.ResolvableRecords: one statement.
func (s *Store) ResolveOperation(ctx context.Context, req store.ResolveRequest) (store.ResolveOutcome, error) {
	letter, ok := letters[req.State]
	if !ok || req.State == store.Unknown {
		return 0, fmt.Errorf("pgstore: ResolveOperation: state %d resolves nothing", req.State)
	}
	if req.State != store.Completed {
		req.Data = nil
	}
	type resolved struct {
		outcome string
		waiting []string
	}
	call := statement.Call{
		Operation: opSettleOperation, Urgency: batch.Finishing, Writes: true, Flow: flowOf(&req.OperationRef),
	}
	r, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (r resolved, err error) {
		err = c.QueryRow(ctx, s.db.Text(resolveSQL),
			req.ID, req.Guard, req.Scope, req.Owner, req.Version, letter, req.Status, req.Data, req.Retention.Microseconds()).
			Scan(&r.outcome, &r.waiting)
		return r, err
	})
	if err != nil {
		return 0, err
	}
	s.tell(r.waiting, endedPush(&req.OperationRef))
	outcome, known := resolveOutcomes[r.outcome]
	if !known {
		return 0, fmt.Errorf("%w: pgstore: odd reply to a resolution: %q", store.ErrUnavailable, r.outcome)
	}
	return outcome, nil
}

var resolveOutcomes = map[string]store.ResolveOutcome{
	"resolved": store.Resolved, "changed": store.RecordChanged, "in use": store.RecordInUse, "known": store.RecordResolved,
}
