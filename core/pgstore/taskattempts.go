package pgstore

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// taskBatch is the largest number of tasks in one statement.
const taskBatch = 100

const renewTaskSQL = `UPDATE lk.tasks SET due = lk.now_us() + $5
WHERE queue = $1 AND key = $2 AND put = $3 AND owner = $4 AND running AND due > lk.now_us()`

// RenewTasks implements store.Delays: one statement for each hundred, and one more for each attempt
// that has lost its task, or whose task another transaction has locked.
func (s *Store) RenewTasks(ctx context.Context, refs []store.TaskRef) ([]bool, error) {
	call := statement.Call{Operation: opRenewTasks, Urgency: batch.Finishing, Writes: true}
	owned := make([]bool, len(refs))
	err := eachTask(len(refs), func(numbers []int) (rest []int, err error) {
		var a taskArgs
		for _, i := range numbers {
			a.add(&refs[i])
		}
		renewed, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (renewed []int64, err error) {
			err = c.QueryRow(ctx, s.db.Text(`SELECT lk.renew_tasks_1($1, $2, $3, $4, $5)`),
				a.queues, a.keys, a.ids, a.owners, a.times).Scan(&renewed)
			return renewed, err
		})
		return done(numbers, renewed, owned), err
	}, func(i int) error {
		r := &refs[i]
		tag, err := statement.Run(ctx, s.db, call, statement.Execute(s.db.Text(renewTaskSQL),
			r.Queue, []byte(r.Key), r.ID, r.Owner, r.Lease.Microseconds()))
		owned[i] = err == nil && tag.RowsAffected() == 1
		return err
	})
	return owned, err
}

const (
	settleTasksSQL = `SELECT settled, pushes FROM lk.settle_tasks_1($1, $2, $3, $4, $5, $6, $7, $8, false)`
	settleTaskSQL  = `SELECT owned, pushes FROM lk.settle_task_1($1, $2, $3, $4, $5, $6, $7, $8, $9, false)`
)

// SettleTasks implements store.Delays: one statement for one attempt, or for each hundred, and one
// more for each of many that has lost its task, is a repeat, or whose task another transaction has
// locked.
func (s *Store) SettleTasks(ctx context.Context, reqs []store.SettleTaskRequest) ([]bool, error) {
	call := statement.Call{Operation: opSettleTasks, Urgency: batch.Finishing, Writes: true}
	owned, repeated := make([]bool, len(reqs)), make([]bool, len(reqs))
	err := eachTask(len(reqs), func(numbers []int) (rest []int, err error) {
		var a taskArgs
		for _, i := range numbers {
			a.settle(&reqs[i])
		}
		type reply struct {
			settled  []int64
			repeated bool
		}
		r, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (r reply, err error) {
			var pushes []string
			r.repeated = statement.IsRepeat(ctx)
			err = c.QueryRow(ctx, s.db.Text(settleTasksSQL),
				a.queues, a.keys, a.ids, a.owners, a.hows, a.times, a.reasons, a.uncounted).Scan(&r.settled, &pushes)
			if err == nil {
				s.db.Deliver(pushes)
			}
			return r, err
		})
		for _, i := range numbers {
			repeated[i] = r.repeated
		}
		return done(numbers, r.settled, owned), err
	}, func(i int) (err error) {
		owned[i], err = s.settleTask(ctx, call, &reqs[i], repeated[i])
		return err
	})
	return owned, err
}

// settleTask settles one attempt.
func (s *Store) settleTask(
	ctx context.Context, call statement.Call, req *store.SettleTaskRequest, repeated bool,
) (bool, error) {
	return statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (owned bool, err error) {
		var pushes []string
		args := settleTaskArgs(req, repeated || req.Repeated || statement.IsRepeat(ctx))
		err = c.QueryRow(ctx, s.db.Text(settleTaskSQL), args...).Scan(&owned, &pushes)
		if err == nil {
			s.db.Deliver(pushes)
		}
		return owned, err
	})
}

// settleTaskArgs are the arguments of the function that settles one attempt.
func settleTaskArgs(req *store.SettleTaskRequest, repeated bool) []any {
	return []any{
		req.Queue, []byte(req.Key), req.ID, req.Owner, settlements[req.How], req.After.Microseconds(), reasonOf(req.Reason), req.Uncounted, repeated,
	}
}

var settlements = map[store.Settlement]string{store.TaskDone: "D", store.TaskAgain: "A", store.TaskBuried: "B"}

// reasonOf returns a reason in the form of a record, at most store.MaxReason bytes.
func reasonOf(reason string) []byte { return []byte(reason[:min(len(reason), store.MaxReason)]) }

// taskArgs are the arguments of a statement about several tasks.
type taskArgs struct {
	queues, ids, owners, hows []string
	keys, reasons             [][]byte
	times                     []int64 // the leases of renewals, the After of settlements
	uncounted                 []bool
}

func (a *taskArgs) add(r *store.TaskRef) {
	a.queues, a.keys = append(a.queues, r.Queue), append(a.keys, []byte(r.Key))
	a.ids, a.owners = append(a.ids, r.ID), append(a.owners, r.Owner)
	a.times = append(a.times, r.Lease.Microseconds())
}

func (a *taskArgs) settle(r *store.SettleTaskRequest) {
	a.add(&r.TaskRef)
	a.times[len(a.times)-1] = r.After.Microseconds()
	a.hows, a.uncounted = append(a.hows, settlements[r.How]), append(a.uncounted, r.Uncounted)
	a.reasons = append(a.reasons, reasonOf(r.Reason))
}

// done marks the tasks that a batch has found, by their numbers in it, from 1 on. It returns the
// others.
func done(numbers []int, found []int64, owned []bool) (rest []int) {
	for at, i := range numbers {
		if owned[i] = slices.Contains(found, int64(at+1)); !owned[i] {
			rest = append(rest, i)
		}
	}
	return rest
}

// eachTask calls many for the numbers from 0 to n-1, up to taskBatch at a time, and one for each
// number that many returns, all of these at the same time. A single number goes to one at once. It
// stops at the first batch that fails, and returns all errors.
func eachTask(n int, many func(numbers []int) (rest []int, err error), one func(i int) error) error {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	if n == 1 {
		return one(0)
	}
	var (
		mu   sync.Mutex // guards errs
		errs []error
		wg   sync.WaitGroup
	)
	add := func(err error) {
		mu.Lock()
		defer mu.Unlock()
		errs = append(errs, err)
	}
	for numbers := range slices.Chunk(all, taskBatch) {
		rest, err := many(numbers)
		if err != nil {
			add(err)
			break
		}
		for _, i := range rest {
			wg.Go(func() { add(one(i)) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}
