package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/internal/waiting"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// A key without waiters costs one plain statement to acquire, and one to release. While several are
// in flight, requests of other callers wait, and share the next one, since commits limit the
// throughput of a server. A shared statement waits for no row that another transaction has locked.
// Every request that a plain statement does not carry out is left to a step of the caller's own.

// freeLeases are the statements that a Store's callers share.
type freeLeases struct {
	acquires *sharing[store.LeaseRequest, waiting.Reply]
	releases *sharing[store.LeaseRef, string]
}

func (s *Store) initFreeLeases() {
	acquire := statement.Call{Operation: opAcquireLease, Writes: true}
	s.free.acquires = share(s, acquire, s.acquireAlone, s.acquireMany)
	release := statement.Call{Operation: opReleaseLeases, Urgency: batch.Finishing, Writes: true}
	s.free.releases = share(s, release, s.releaseAlone, s.releaseMany)
}

// onIsFree is the condition under which a row is that of a free key.
const onIsFree = ` AND s.holder IS NULL AND NOT s.busy AND s.late = 0 AND NOT s.bound`

// acquireKnown grants a key without holds, waiters and tombstones. It returns no row for any other
// key, for a key that has no row, and for one that another transaction changes. It reads the clock
// and the conditions when the row is locked.
var acquireKnown = `UPDATE lk.leases AS s SET
  holder = $2, process = $3, ttl = $4, weight = $5, label = $6, place = 0, untaken = false,
  (fence, first, last, ends, since) = (
    SELECT f.last, f.first, f.last, f.t + $4, f.t FROM (
      SELECT n.t, greatest(s.fence + 1, n.t) AS first,
        CASE WHEN s.fence < n.t THEN n.t + $7 - 1 ELSE s.fence + 1 END AS last
      FROM (SELECT lk.now_us() AS t) n) f)
WHERE s.id = $1 AND s.ctid = ` + newestOf("lk.leases", "$1", "$8") + onIsFree + `
RETURNING s.first, s.last, s.ctid`

// acquireOne is acquireKnown for a key that may have no row.
var acquireOne = `WITH
  made AS (INSERT INTO lk.lease_keys (id, name, key) VALUES ($1, $9, $10) ON CONFLICT DO NOTHING RETURNING id),
  fresh AS (INSERT INTO lk.leases AS l
      (id, holder, process, ttl, weight, label, fence, first, last, ends, since, place, untaken)
    SELECT m.id, $2, $3, $4, $5, $6, n.t + $7 - 1, n.t, n.t + $7 - 1, n.t + $4, n.t, 0, false
    FROM made m, (SELECT lk.now_us() AS t) n
    RETURNING l.first, l.last, l.ctid),
  known AS (` + acquireKnown + `)
SELECT * FROM fresh UNION ALL SELECT * FROM known`

// acquireMany is acquireOne for many keys. It adds the keys in one order, so that two processes do
// not wait for each other.
var acquireMany = `WITH mine AS MATERIALIZED (SELECT * FROM
    unnest($2::uuid[], $3::text[], $4::bigint[], $5::int[], $6::bytea[], $7::bigint[], $8::tid[],
      $9::bytea[], $10::bytea[])
    AS m (key, id, ttl, weight, label, fences, at, name, text)),
  made AS (INSERT INTO lk.lease_keys (id, name, key)
    SELECT m.key, m.name, m.text FROM mine m WHERE m.at IS NULL ORDER BY m.key
    ON CONFLICT DO NOTHING RETURNING id),
  fresh AS (INSERT INTO lk.leases AS l
      (id, holder, process, ttl, weight, label, fence, first, last, ends, since, place, untaken)
    SELECT m.key, m.id, $1, m.ttl, m.weight, m.label, n.t + m.fences - 1,
      n.t, n.t + m.fences - 1, n.t + m.ttl, n.t, 0, false
    FROM made JOIN mine m ON m.key = made.id, (SELECT lk.now_us() AS t) n RETURNING l.id, l.first, l.last, l.ctid),
  locked AS MATERIALIZED (SELECT m.*, l.place, l.fence FROM mine m
    CROSS JOIN LATERAL (SELECT s.ctid AS place, s.fence FROM lk.leases s
      WHERE s.id = m.key AND s.ctid = ` + newestOf("lk.leases", "m.key", "m.at") + onIsFree + `
      FOR NO KEY UPDATE SKIP LOCKED) l),
  granted AS (SELECT k.*, n.t, greatest(k.fence + 1, n.t) AS first,
      CASE WHEN k.fence < n.t THEN n.t + k.fences - 1 ELSE k.fence + 1 END AS last
    FROM (SELECT lk.now_us() AS t FROM (SELECT count(*) FROM locked) c) n, locked k),
  known AS (UPDATE lk.leases AS l SET holder = g.id, process = $1, ttl = g.ttl, weight = g.weight, label = g.label,
      place = 0, untaken = false, fence = g.last, first = g.first, last = g.last, ends = g.t + g.ttl, since = g.t
    FROM granted g WHERE l.ctid = g.place RETURNING l.id, l.first, l.last, l.ctid)
SELECT * FROM fresh UNION ALL SELECT * FROM known`

// acquireAlone requests a lease by the statement for free keys, and by a step if that grants
// nothing. For a single key it takes three quarters of the time of acquireMany.
func (s *Store) acquireAlone(
	ctx context.Context, c *pgx.Conn, req *store.LeaseRequest, key leaseKey,
) (waiting.Reply, error) {
	reply, err := s.acquireOne(ctx, c, req, key)
	if errors.Is(err, pgx.ErrNoRows) {
		return s.acquireStep(ctx, c, req, key)
	}
	return reply, err
}

func (s *Store) acquireOne(
	ctx context.Context, c *pgx.Conn, req *store.LeaseRequest, key leaseKey,
) (r waiting.Reply, err error) {
	if statement.IsRepeat(ctx) { // the statement that was sent before may come later
		s.waiting.Late(req.ID)
	}
	text := acquireKnown
	at := s.rows.get(key)
	args := []any{key, req.ID, s.db.Inbox(), req.TTL.Microseconds(), req.Weight, []byte(req.Label), int64(req.Fences), at}
	if !at.Valid {
		text, args = acquireOne, append(args, []byte(req.Name), s.shown(req.Key))
	}
	r.Outcome, r.Sent, r.TTL = store.Granted, time.Now(), req.TTL
	if err = c.QueryRow(ctx, s.db.Text(text), args...).Scan(&r.Fence, &r.LastFence, &at); err == nil {
		s.rows.set(key, at)
	}
	return r, err
}

// acquireMany returns the replies to the requests that are granted.
func (s *Store) acquireMany(
	ctx context.Context, c *pgx.Conn, all []*sharer[store.LeaseRequest, waiting.Reply],
) (map[leaseKey]waiting.Reply, error) {
	n := len(all)
	var (
		asked                = make(map[leaseKey]*store.LeaseRequest, n)
		keys                 = make([][16]byte, 0, n)
		ids                  = make([]string, 0, n)
		ttls, fences         = make([]int64, 0, n), make([]int64, 0, n)
		weights              = make([]int32, 0, n)
		labels, names, texts = make([][]byte, 0, n), make([][]byte, 0, n), make([][]byte, 0, n)
		places               = make([]pgtype.TID, 0, n)
	)
	for _, a := range all {
		req := a.asked
		if statement.IsRepeat(ctx) {
			s.waiting.Late(req.ID)
		}
		asked[a.key] = req
		keys, ids, ttls = append(keys, a.key), append(ids, req.ID), append(ttls, req.TTL.Microseconds())
		weights, labels = append(weights, int32(req.Weight)), append(labels, []byte(req.Label)) //nolint:gosec // checked
		fences, places = append(fences, int64(req.Fences)), append(places, s.rows.get(a.key))
		names, texts = append(names, []byte(req.Name)), append(texts, s.shown(req.Key))
	}
	sent := time.Now()
	rows, err := c.Query(ctx, s.db.Text(acquireMany),
		s.db.Inbox(), uuids(keys), ids, ttls, weights, labels, fences, places, names, texts)
	if err != nil {
		return nil, err
	}
	replies := make(map[leaseKey]waiting.Reply, n)
	var (
		id pgtype.UUID
		at pgtype.TID
		r  = waiting.Reply{LeaseReply: store.LeaseReply{Outcome: store.Granted, Grant: store.Grant{Sent: sent}}}
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &r.Fence, &r.LastFence, &at}, func() error {
		r.TTL = asked[id.Bytes].TTL
		replies[id.Bytes] = r
		s.rows.set(id.Bytes, at)
		return nil
	})
	return replies, err
}

// onIsOnly is the condition under which a row is that of a key with one hold, the caller's, and no
// waiters.
func onIsOnly(id, fence string) string {
	return ` AND s.holder = ` + id + ` AND (s.first = ` + fence + ` OR ` + fence + ` = 0)` +
		` AND NOT s.busy AND NOT s.untaken`
}

// setReleased ends a hold in its key's row. returningReleased returns the outcome, and makes the
// commit not wait for the disk: see schema/leases.sql.
const (
	setReleased = ` SET holder = NULL,
  released = s.holder, released_fence = s.first, released_held = s.ends > lk.now_us()`
	returningReleased = ` RETURNING s.id, CASE WHEN s.released_held THEN 'yes' ELSE 'no' END, s.ctid,
  set_config('synchronous_commit', 'off', true)`
)

// releaseOne releases the only hold of a key without waiters, and returns no row for any other.
var releaseOne = `UPDATE lk.leases AS s` + setReleased + `
WHERE s.id = $1 AND s.ctid = ` + newestOf("lk.leases", "$1", "$4") + onIsOnly("$2", "$3") + returningReleased

// releaseMany is releaseOne for many keys.
var releaseMany = `WITH
  mine AS MATERIALIZED (SELECT *
    FROM unnest($1::uuid[], $2::text[], $3::bigint[], $4::tid[]) AS m (key, id, fence, at)),
  locked AS MATERIALIZED (SELECT l.place FROM mine m CROSS JOIN LATERAL (SELECT s.ctid AS place FROM lk.leases s
    WHERE s.id = m.key AND s.ctid = ` + newestOf("lk.leases", "m.key", "m.at") + onIsOnly("m.id", "m.fence") + `
    FOR NO KEY UPDATE SKIP LOCKED) l)
UPDATE lk.leases AS s` + setReleased + ` FROM locked k WHERE s.ctid = k.place` + returningReleased

// releaseAlone releases by the statement for the only hold of a key, and by a step if that releases
// nothing.
func (s *Store) releaseAlone(ctx context.Context, c *pgx.Conn, ref *store.LeaseRef, key leaseKey) (string, error) {
	outcome, err := s.releaseOne(ctx, c, ref, key)
	if errors.Is(err, pgx.ErrNoRows) {
		return s.releaseStep(ctx, c, ref, key, nil, nil)
	}
	return outcome, err
}

func (s *Store) releaseOne(
	ctx context.Context, c *pgx.Conn, ref *store.LeaseRef, key leaseKey,
) (outcome string, err error) {
	at := s.rows.get(key)
	if err = c.QueryRow(ctx, s.db.Text(releaseOne), key, ref.ID, ref.Fence, at).Scan(nil, &outcome, &at, nil); err == nil {
		s.rows.set(key, at)
	}
	return outcome, err
}

// releaseMany returns the outcomes of the releases that are made.
func (s *Store) releaseMany(
	ctx context.Context, c *pgx.Conn, all []*sharer[store.LeaseRef, string],
) (map[leaseKey]string, error) {
	n := len(all)
	var (
		keys   = make([][16]byte, 0, n)
		ids    = make([]string, 0, n)
		fences = make([]int64, 0, n)
		places = make([]pgtype.TID, 0, n)
	)
	for _, r := range all {
		keys, ids = append(keys, r.key), append(ids, r.asked.ID)
		fences, places = append(fences, r.asked.Fence), append(places, s.rows.get(r.key))
	}
	rows, err := c.Query(ctx, s.db.Text(releaseMany), uuids(keys), ids, fences, places)
	if err != nil {
		return nil, err
	}
	outcomes := make(map[leaseKey]string, n)
	var (
		id      pgtype.UUID
		at      pgtype.TID
		outcome string
	)
	_, err = pgx.ForEachRow(rows, []any{&id, &outcome, &at, nil}, func() error {
		outcomes[id.Bytes] = outcome
		s.rows.set(id.Bytes, at)
		return nil
	})
	return outcomes, err
}
