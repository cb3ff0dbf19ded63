package pgstore

import (
	"context"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/internal/denials"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// buckets is the part of a Store that is about token buckets.
type buckets struct {
	denials   denials.Cache
	decisions *batch.Batcher[*decision]
	spare     sync.Pool // of *decision
	rows      rowPlaces
}

const (
	// maxCharges bounds the rows of one statement, which stay locked until it ends.
	maxCharges = 64
	// maxWork bounds a batch, which may take several statements. It is larger than maxCharges, so that
	// a hot bucket is written less often.
	maxWork = 4 * maxCharges
	// statements is the number of statements in flight from which charges are batched. More of them
	// keep the server no busier.
	statements = 2
)

func (s *Store) initBuckets() {
	if !s.config.noDenialCache {
		s.buckets.denials.Init()
	}
	most := max(s.config.connections-2, 1) // other calls need some
	s.buckets.decisions = statement.Batch(s.db, batch.Config[*decision]{
		Send: s.decide, Few: min(statements, most), Most: most, MaxWork: maxWork,
	})
}

// TakeTokens implements store.Buckets. It takes one statement, or a part of one, or none for a
// denial from the cache. The cache has denials of single requests. A denial that is not cached may
// take two statements.
func (s *Store) TakeTokens(
	ctx context.Context, r store.TokenRequest, more ...store.TokenRequest,
) (store.TakeReply, error) {
	if err := s.begins(ctx); err != nil {
		return store.TakeReply{}, err
	}
	times := max(r.AtMost, 1)
	if len(more) > 0 {
		return s.takeTokens(ctx, times, false, &r, more)
	}
	return s.buckets.denials.Around(&r, func(deniedLately bool) (store.TakeReply, error) {
		return s.takeTokens(ctx, times, deniedLately, &r, nil)
	})
}

func (s *Store) takeTokens(
	ctx context.Context, times int64, mayFail bool, r *store.TokenRequest, more []store.TokenRequest,
) (store.TakeReply, error) {
	d, _ := s.buckets.spare.Get().(*decision)
	if d == nil {
		d = new(decision)
	}
	d.times, d.mayFail = times, mayFail
	s.ask(d, r)
	for i := range more {
		s.ask(d, &more[i])
	}
	if len(d.ids) > 0 {
		if err := s.buckets.decisions.Do(ctx, d, batch.Ordinary); err != nil {
			return store.TakeReply{}, err // a statement may still have it
		}
	} else {
		d.reply = store.TakeReply{Allowed: true, Taken: times}
	}
	reply := d.reply
	if r.AtMost == 0 {
		reply.Taken = 0
	}
	clear(d.charges)
	d.reply, d.charges, d.ids = store.TakeReply{}, d.charges[:0], d.ids[:0]
	s.buckets.spare.Put(d)
	return reply, nil
}

// ask adds a request to a decision.
func (s *Store) ask(d *decision, r *store.TokenRequest) {
	for i := range r.Charges {
		d.charges = append(d.charges, &r.Charges[i])
		d.ids = append(d.ids, s.bucketID(r, i))
	}
}

func (s *Store) bucketID(r *store.TokenRequest, i int) [16]byte {
	return s.digest("bucket", r.Limiter, r.Key, r.Charges[i].Bucket)
}

func (s *Store) bucketIDs(r *store.TokenRequest) []pgtype.UUID {
	ids := make([][16]byte, len(r.Charges))
	for i := range ids {
		ids[i] = s.bucketID(r, i)
	}
	return uuids(ids)
}

// uuids returns ids in the form that pgx knows in all of its modes, also without prepared
// statements.
func uuids(ids [][16]byte) []pgtype.UUID {
	all := make([]pgtype.UUID, len(ids))
	for i, id := range ids {
		all[i] = pgtype.UUID{Bytes: id, Valid: true}
	}
	return all
}

// SettleTokens implements store.Buckets: one statement, or a part of one, also after Shutdown.
func (s *Store) SettleTokens(ctx context.Context, r store.TokenRequest) (store.TakeReply, error) {
	if err := ctx.Err(); err != nil {
		return store.TakeReply{}, err
	}
	r.AtMost = 0
	reply, err := s.takeTokens(ctx, settles, false, &r, nil)
	s.buckets.denials.Settled(&r) // also if the outcome is unknown
	return reply, err
}

// begins returns an error if the store does not begin a call.
func (s *Store) begins(ctx context.Context) error {
	if s.hooks.Begun() {
		return store.ErrClosed
	}
	return ctx.Err()
}

// longestHold is the longest hold in µs: its end can still be represented.
const longestHold = 9e15

// HoldTokens implements store.Buckets: one statement, which may be sent twice. A hold ends by the
// server's clock: if that steps back, the hold begins again at the next request that meets it.
func (s *Store) HoldTokens(ctx context.Context, r store.TokenRequest, d time.Duration) error {
	if err := s.begins(ctx); err != nil || d <= 0 || len(r.Charges) == 0 {
		return err
	}
	length := int64(min((d-1)/time.Microsecond+1, longestHold))
	_, err := statement.Run(ctx, s.db, statement.Call{Operation: opHoldTokens},
		statement.Execute(s.db.Text("SELECT lk.hold_tokens_1($1, $2)"), s.bucketIDs(&r), length))
	s.buckets.denials.Remove(r.Limiter, r.Key) // so that the next denial has the hold
	return err
}

// ResetTokens implements store.Buckets: one statement, which may be sent twice.
func (s *Store) ResetTokens(ctx context.Context, r store.TokenRequest) error {
	if len(r.Charges) == 0 {
		return nil
	}
	_, err := statement.Run(ctx, s.db, statement.Call{Operation: opResetTokens},
		statement.Execute(s.db.Text(resetBuckets), s.bucketIDs(&r)))
	s.buckets.denials.Remove(r.Limiter, r.Key) // also if the outcome is unknown
	return err
}

const (
	// resetBuckets locks the rows in the order of their ids, as all statements do, before it removes
	// any.
	resetBuckets = `WITH locked AS MATERIALIZED (SELECT id FROM lk.buckets WHERE id = ANY ($1) ORDER BY id FOR UPDATE)
DELETE FROM lk.buckets b USING locked WHERE b.id = locked.id`

	// sweepBuckets removes buckets that have been full for a minute, since the clock may step back.
	// There is no index of full buckets, which would make each charge dearer. So it looks at 2,048
	// pages of the table, from a random one on.
	sweepBuckets = `WITH pages AS MATERIALIZED (
  SELECT greatest(floor(
    random() * (pg_relation_size('lk.buckets') / current_setting('block_size')::int + 2047))::bigint - 2047, 0) AS first
)
DELETE FROM lk.buckets WHERE ctid = ANY (ARRAY(
  SELECT ctid FROM lk.buckets
  WHERE ctid >= (SELECT format('(%s,0)', first)::tid FROM pages)
    AND ctid < (SELECT format('(%s,0)', first + 2048)::tid FROM pages)
    AND CASE WHEN ends IS NULL THEN debt / 1000 ELSE ends END < lk.now_us() - 60000000
    AND coalesce(held, 0) < lk.now_us() - 60000000
  LIMIT 1000 FOR UPDATE SKIP LOCKED))`
)
