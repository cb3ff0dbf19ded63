package pgstore

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/internal/waiting"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// leaseBatch is the largest number of leases in one statement.
const leaseBatch = 100

// eachBatch calls do for the numbers from 0 to n-1, up to leaseBatch at a time, in their order. do
// returns the numbers whose keys were locked by other transactions, for which the rest does not
// wait. eachBatch then calls do for each of these alone, all at the same time. It returns the
// errors.
func eachBatch(n int, do func(numbers []int) (locked []int, err error)) error {
	all := make([]int, n)
	for i := range all {
		all[i] = i
	}
	var (
		mu   sync.Mutex // guards errs
		errs []error
		wg   sync.WaitGroup
	)
	call := func(numbers []int) (locked []int) {
		locked, err := do(numbers)
		if err != nil {
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
		}
		return locked
	}
	for numbers := range slices.Chunk(all, leaseBatch) {
		for _, i := range call(numbers) {
			wg.Go(func() { call([]int{i}) })
		}
	}
	wg.Wait()
	return errors.Join(errs...)
}

// batchReply is the reply to one of several steps.
type batchReply[T any] struct {
	number int64
	value  *T // nil if the key was locked
	next   int64
}

// runBatch runs a statement that takes several steps. Each row has the step's number, from 1 on,
// its result, and its pushes.
func runBatch[T any](
	ctx context.Context, s *Store, op statement.Operation, sql string, args ...any,
) ([]batchReply[T], error) {
	// A repeated release has to be marked as such, so its caller repeats it.
	call := statement.Call{Operation: op, Urgency: batch.Finishing, Writes: true, Once: op == opReleaseLeases}
	if op == opBeat {
		call.Urgency = batch.Ordinary
	}
	return statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) ([]batchReply[T], error) {
		rows, err := c.Query(ctx, s.db.Text(sql), args...)
		if err != nil {
			return nil, err
		}
		var pushes []string
		replies, err := pgx.CollectRows(rows, func(row pgx.CollectableRow) (r batchReply[T], err error) {
			var more []string
			err = row.Scan(&r.number, &r.value, &r.next, &more)
			pushes = append(pushes, more...)
			return r, err
		})
		if err == nil {
			s.db.Deliver(pushes)
		}
		return replies, err
	})
}

// leaseArgs are the arguments of a statement about several leases.
type leaseArgs struct {
	keys         []leaseKey
	ids          []string
	fences, ttls []int64
	repeated     []bool
	names, texts [][]byte
}

func (s *Store) leaseArgs(refs []store.LeaseRef, numbers []int) (a leaseArgs) {
	for _, i := range numbers {
		r := &refs[i]
		a.keys, a.ids = append(a.keys, s.leaseKey(r.Name, r.Key)), append(a.ids, r.ID)
		a.fences, a.ttls = append(a.fences, r.Fence), append(a.ttls, r.TTL.Microseconds())
		a.repeated = append(a.repeated, r.Repeated)
		name, text := s.tombstone(r)
		a.names, a.texts = append(a.names, name), append(a.texts, text)
	}
	return a
}

// tombstone returns the name and the key if a release has to leave a tombstone. The database may
// have no other record of the key.
func (s *Store) tombstone(ref *store.LeaseRef) (name, key []byte) {
	if !s.waiting.MayArrive(ref.ID) {
		return nil, nil
	}
	return []byte(ref.Name), s.shown(ref.Key)
}

// RenewLeases implements store.Leases: one statement for each hundred.
func (s *Store) RenewLeases(ctx context.Context, refs []store.LeaseRef) ([]bool, error) {
	held := make([]bool, len(refs))
	err := eachBatch(len(refs), func(numbers []int) (locked []int, err error) {
		a := s.leaseArgs(refs, numbers)
		replies, err := runBatch[bool](ctx, s, opRenewLeases,
			"SELECT number, held, 0::bigint, pushes FROM lk.renew_leases_1($1, $2, $3, $4, $5, $6)",
			s.db.Inbox(), waiting.Elapsed(), a.keys, a.ids, a.fences, a.ttls)
		for _, r := range replies {
			if i := numbers[r.number-1]; r.value == nil {
				locked = append(locked, i)
			} else {
				held[i] = *r.value
			}
		}
		return locked, err
	})
	return held, err
}

// ReleaseLeases implements store.Leases. It takes one statement for one lease without waiters, up
// to two for one with waiters, and one for each hundred of many.
func (s *Store) ReleaseLeases(ctx context.Context, refs []store.LeaseRef) ([]store.ReleaseOutcome, error) {
	outcomes := make([]store.ReleaseOutcome, len(refs))
	done := func(i int, outcome string) {
		outcomes[i] = map[string]store.ReleaseOutcome{"yes": store.Released, "no": store.NotHeld}[outcome]
		s.waiting.Released(refs[i].ID)
	}
	if len(refs) == 1 {
		outcome, err := s.releaseLease(ctx, refs[0])
		if err == nil {
			done(0, outcome)
		}
		return outcomes, err
	}
	err := eachBatch(len(refs), func(numbers []int) (locked []int, err error) {
		a := s.leaseArgs(refs, numbers)
		replies, err := runBatch[string](ctx, s, opReleaseLeases,
			"SELECT number, outcome, 0::bigint, pushes FROM lk.release_leases_1($1, $2, $3, $4, $5, $6, $7, $8)",
			s.db.Inbox(), waiting.Elapsed(), a.keys, a.ids, a.fences, a.repeated, a.names, a.texts)
		for _, r := range replies {
			if i := numbers[r.number-1]; r.value == nil {
				locked = append(locked, i)
			} else {
				done(i, *r.value)
			}
		}
		return locked, err
	})
	return outcomes, err
}

const releaseStep = `SELECT outcome, pushes, at
FROM lk.step_lease_1('release', $1, $2, $3, $4, $5, my_name => $6, my_text => $7, repeated => $8, my_at => $9)`

func (s *Store) releaseLease(ctx context.Context, ref store.LeaseRef) (string, error) {
	key := s.leaseKey(ref.Name, ref.Key)
	name, text := s.tombstone(&ref)
	if name == nil && !s.busy.has(key) {
		outcome, made, maybe, err := s.free.releases.do(ctx, &ref, key)
		if made || err != nil {
			return outcome, err
		}
		ref.Repeated = ref.Repeated || maybe
	}
	call := statement.Call{Operation: opReleaseLeases, Urgency: batch.Finishing, Writes: true}
	return statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (string, error) {
		return s.releaseStep(ctx, c, &ref, key, name, text)
	})
}

func (s *Store) releaseStep(
	ctx context.Context, c *pgx.Conn, ref *store.LeaseRef, key leaseKey, name, text []byte,
) (outcome string, err error) {
	at := s.rows.get(key)
	var pushes []string
	err = c.QueryRow(ctx, s.db.Text(releaseStep), key, s.db.Inbox(), waiting.Elapsed(),
		ref.ID, ref.Fence, name, text, ref.Repeated || statement.IsRepeat(ctx), at).
		Scan(&outcome, &pushes, &at)
	if err == nil {
		if at.Valid {
			s.rows.set(key, at)
		}
		s.busy.set(key, len(pushes) > 0)
		s.db.Deliver(pushes)
	}
	return outcome, err
}

// releaseUnwanted releases a grant that no request of this process waits for.
func (s *Store) releaseUnwanted(record, id string, fence int64) {
	_, _ = s.stepOf(s.db.Life(), opReleaseLeases,
		"SELECT outcome = 'yes', pushes FROM lk.step_lease_1('release', $1::text::uuid, $2, $3, $4, $5, exact => true)",
		record, s.db.Inbox(), waiting.Elapsed(), id, fence)
}

// beat sends heartbeats, and handles the replies.
func (s *Store) beat(due []*waiting.Key[leaseKey]) {
	again := s.beatEach(due, func(*waiting.Key[leaseKey]) bool { return false })
	s.beatEach(again, s.waiting.Resets)
}

// beatEach sends heartbeats. It returns the keys for which the database has requests that the
// process does not have.
func (s *Store) beatEach(
	due []*waiting.Key[leaseKey], resets func(*waiting.Key[leaseKey]) bool,
) (surplus []*waiting.Key[leaseKey]) {
	var mu sync.Mutex // guards surplus
	_ = eachBatch(len(due), func(numbers []int) (locked []int, err error) {
		var keys []leaseKey
		var reset []bool
		for _, i := range numbers {
			keys, reset = append(keys, due[i].Record), append(reset, resets(due[i]))
		}
		replies, err := runBatch[int64](s.db.Life(), s, opBeat,
			"SELECT number, waiting, next, pushes FROM lk.beat_leases_1($1, $2, $3, $4, $5)",
			s.db.Inbox(), waiting.Elapsed(), s.waiting.DeadAfter().Microseconds(), keys, reset)
		if err != nil {
			for _, i := range numbers {
				s.waiting.Silent(due[i], err)
			}
			return nil, err
		}
		for _, r := range replies {
			if i := numbers[r.number-1]; r.value == nil {
				locked = append(locked, i)
			} else if s.waiting.Heard(due[i], int(*r.value), micros(r.next)) {
				mu.Lock()
				surplus = append(surplus, due[i])
				mu.Unlock()
			}
		}
		return locked, nil
	})
	return surplus
}
