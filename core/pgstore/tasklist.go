package pgstore

import (
	"context"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// taskSQL returns tasks as an operator sees them. An attempt whose lease has ended has ended.
const taskSQL = `SELECT key, CASE WHEN over THEN next_put ELSE put END,
  CASE WHEN runs THEN 1 ELSE 0 END, octet_length(CASE WHEN over THEN next_payload ELSE payload END),
  CASE WHEN over THEN 0 ELSE attempt END, fence, CASE WHEN over THEN greatest(next_due, due) ELSE due END - at,
  CASE WHEN runs THEN holder END, next_put IS NOT NULL AND NOT over, NULL::bytea, 0::bigint
FROM (SELECT t.*, at, running AND due > at AS runs, running AND due <= at AND next_put IS NOT NULL AS over
  FROM lk.now_us() at, lk.tasks t) t
WHERE NOT (running AND due <= at AND cancelled AND next_put IS NULL) AND queue = $1`

// buriedTaskSQL is taskSQL for buried tasks.
const buriedTaskSQL = `SELECT key, put, 2, octet_length(payload), attempt, fence, expires - at, NULL::bytea, false,
  reason, greatest(at - buried, 0)
FROM lk.now_us() at, lk.buried_tasks WHERE expires > at AND queue = $1`

// InspectTask implements store.TaskKeeper: one statement, which changes nothing.
func (s *Store) InspectTask(ctx context.Context, queue, key string) (record store.TaskRecord, found bool, err error) {
	const text = "(" + taskSQL + " AND key = $2) UNION ALL (" + buriedTaskSQL + " AND key = $2)"
	records, err := s.tasks(ctx, text, queue, []byte(key))
	if err != nil || len(records) == 0 {
		return record, false, err
	}
	record = records[0]
	for _, r := range records {
		if r.State != store.TaskKeptBuried {
			record = r
		}
	}
	return record, true, nil
}

// tasks runs a statement that begins with taskSQL or buriedTaskSQL.
func (s *Store) tasks(ctx context.Context, text string, args ...any) ([]store.TaskRecord, error) {
	call := statement.Call{Operation: opInspect, Urgency: batch.Reading}
	return statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) ([]store.TaskRecord, error) {
		rows, err := c.Query(ctx, s.db.Text(text), args...)
		if err != nil {
			return nil, err
		}
		return pgx.CollectRows(rows, func(row pgx.CollectableRow) (r store.TaskRecord, err error) {
			var (
				key, holder, reason []byte
				remaining, age      int64
			)
			err = row.Scan(&key, &r.ID, &r.State, &r.Bytes, &r.Attempt, &r.Fence, &remaining, &holder, &r.Follows, &reason, &age)
			r.Key, r.Holder, r.Reason, r.Age = string(key), string(holder), string(reason), micros(age)
			switch r.State {
			case store.TaskWaiting:
				r.Due = micros(remaining)
			case store.TaskTaken:
				r.Lease = micros(remaining)
			case store.TaskKeptBuried:
				r.Expires = micros(remaining)
			}
			return r, err
		})
	})
}

// ListTasks implements store.TaskKeeper: a statement for each 500 tasks, in the order of their
// keys. So a task that is there during the whole listing is listed once.
func (s *Store) ListTasks(ctx context.Context, queue string, buried bool) iter.Seq2[store.TaskRecord, error] {
	text := taskSQL
	if buried {
		text = buriedTaskSQL
	}
	text += " AND key > $2 ORDER BY key LIMIT $3"
	return func(yield func(store.TaskRecord, error) bool) {
		for after, more := []byte{}, true; more; {
			records, err := s.tasks(ctx, text, queue, after, listPage)
			for _, r := range records {
				if !yield(r, nil) {
					return
				}
				after = []byte(r.Key)
			}
			if more = len(records) == listPage; err != nil {
				yield(store.TaskRecord{}, err)
			}
		}
	}
}

// countPage is the number of tasks that are counted together, so that a statement ends in time.
const countPage = 50_000

// countSQL counts a page of tasks, which ends with a key.
const countSQL = `SELECT count(*), count(*) FILTER (WHERE running AND due > at), coalesce(max(at - due), 0),
  coalesce((array_agg(key))[count(*)], '')
FROM lk.now_us() at, (SELECT key, running, due FROM lk.tasks WHERE queue = $1 AND key > $2 ORDER BY key LIMIT $3) page`

const countBuriedSQL = `SELECT count(*) FROM lk.buried_tasks WHERE queue = $1 AND expires > (SELECT lk.now_us())`

// CountTasks implements store.TaskKeeper: a statement for each 50,000 tasks.
func (s *Store) CountTasks(ctx context.Context, queue string) (counts store.TaskCounts, err error) {
	type page struct {
		tasks, running int
		oldest         int64
		last           []byte
	}
	call := statement.Call{Operation: opInspect, Urgency: batch.Reading}
	counts.Buried, err = statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (n int, err error) {
		err = c.QueryRow(ctx, s.db.Text(countBuriedSQL), queue).Scan(&n)
		return n, err
	})
	for p := (page{tasks: countPage, last: []byte{}}); p.tasks == countPage && err == nil; {
		after := p.last
		p, err = statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (p page, err error) {
			err = c.QueryRow(ctx, s.db.Text(countSQL), queue, after, countPage).Scan(&p.tasks, &p.running, &p.oldest, &p.last)
			return p, err
		})
		counts.Running += p.running
		counts.Waiting += p.tasks - p.running
		counts.Oldest = max(counts.Oldest, micros(p.oldest))
	}
	if err != nil {
		return store.TaskCounts{}, err
	}
	return counts, nil
}

// ReviveTask implements store.TaskKeeper: one statement.
func (s *Store) ReviveTask(ctx context.Context, ref store.TaskRef) (bool, error) {
	if s.hooks.Begun() {
		return false, store.ErrClosed
	}
	call := statement.Call{Operation: opPutTask, Writes: true}
	return statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (revived bool, err error) {
		var pushes []string
		err = c.QueryRow(ctx, s.db.Text(`SELECT revived, pushes FROM lk.revive_task_1($1, $2, $3)`),
			ref.Queue, []byte(ref.Key), ref.ID).Scan(&revived, &pushes)
		if err == nil {
			s.db.Deliver(pushes)
		}
		return revived, err
	})
}
