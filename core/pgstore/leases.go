package pgstore

import (
	"context"
	"errors"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/internal/waiting"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// leases is the part of a Store that is about leases.
type leases struct {
	waiting *waiting.Process[leaseKey]
	// busy marks keys that were found to have waiters, or several holds. A step of such a key is left
	// to the server's function at once.
	busy keyMarks
	rows rowPlaces
	free freeLeases
}

func (s *Store) initLeases() {
	s.waiting = waiting.New(waiting.Store[leaseKey]{
		Hooks: &s.hooks, Life: s.db.Life(), Start: s.db.Start, Listen: s.db.Listen,
		Broken:  func() bool { return !s.db.Listens() },
		Acquire: s.acquireLease, Beat: s.beat, Release: s.releaseUnwanted,
	})
	s.initFreeLeases()
}

// AcquireLease implements store.Leases: one statement if the key is free, and up to two if not.
func (s *Store) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	if s.hooks.Begun() {
		return store.LeaseReply{}, store.ErrClosed
	}
	if req.Weight > req.Capacity-req.Reserve { // it leaves the queue, if it is there
		_, err := s.ReleaseLeases(ctx, []store.LeaseRef{req.Ref(0)})
		return store.LeaseReply{Outcome: store.Taken}, err
	}
	reply, err := s.waiting.Acquire(ctx, req, s.leaseKey(req.Name, req.Key))
	return reply.LeaseReply, err
}

// AwaitLease implements store.Leases.
func (s *Store) AwaitLease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	return s.waiting.Await(ctx, req, s.leaseKey(req.Name, req.Key))
}

// acquireLease requests a lease, or asks for it again.
func (s *Store) acquireLease(
	ctx context.Context, req store.LeaseRequest, key leaseKey,
) (reply waiting.Reply, err error) {
	req.Fences = min(max(req.Fences, 1), store.MaxFences)
	made := false
	if req.Place == 0 && !s.busy.has(key) {
		reply, made, _, err = s.free.acquires.do(ctx, &req, key)
	}
	if !made && err == nil {
		call := statement.Call{Operation: opAcquireLease, Writes: true}
		reply, err = statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (waiting.Reply, error) {
			return s.acquireStep(ctx, c, &req, key)
		})
	}
	if err != nil && (ctx.Err() != nil || errors.Is(err, store.ErrUnconfirmed)) {
		s.waiting.Late(req.ID)
	}
	return reply, err
}

const acquireStep = `SELECT
  outcome, coalesce(first, 0), coalesce(last, 0), coalesce(place, 0), coalesce(lasts, 0), coalesce(repeated, false),
  coalesce(label, ''), coalesce(remaining, 0), coalesce(used, 0), coalesce(waiting, 0), coalesce(next, 0), pushes, at
FROM lk.step_lease_1('acquire', $1, $2, $3, $4,
  my_ttl => $5, my_weight => $6, my_room => $7, my_reserve => $8, my_fences => $9, my_label => $10,
  my_place => $11, my_queue => $12, most => $13, my_span => $14, my_name => $15, my_text => $16, my_at => $17)`

func (s *Store) acquireStep(
	ctx context.Context, c *pgx.Conn, req *store.LeaseRequest, key leaseKey,
) (r waiting.Reply, err error) {
	if statement.IsRepeat(ctx) { // the statement that was sent before may come later
		s.waiting.Late(req.ID)
	}
	var (
		outcome                          string
		label                            []byte
		lasts, remaining, next, in, many int64
		pushes                           []string
	)
	at := s.rows.get(key)
	r.Sent = time.Now()
	err = c.QueryRow(ctx, s.db.Text(acquireStep), key, s.db.Inbox(), waiting.Elapsed(),
		req.ID, req.TTL.Microseconds(), req.Weight, int64(req.Capacity-req.Reserve), req.Reserve, req.Fences,
		[]byte(req.Label), req.Place, req.Queue, req.MaxWaiting,
		s.waiting.DeadAfter().Microseconds(), []byte(req.Name), s.shown(req.Key), at).
		Scan(&outcome, &r.Fence, &r.LastFence, &r.Place, &lasts, &r.Repeated,
			&label, &remaining, &in, &many, &next, &pushes, &at)
	if err != nil {
		return r, err
	}
	s.rows.set(key, at)
	s.busy.set(key, outcome != "granted")
	s.db.Deliver(pushes)
	r.Outcome = map[string]store.AcquireOutcome{
		"granted": store.Granted, "queued": store.Queued, "withdrawn": store.Withdrawn,
		"taken": store.Taken, "full": store.Taken,
	}[outcome]
	r.QueueFull = outcome == "full"
	r.TTL, r.Holder, r.Remaining, r.Next = micros(lasts), string(label), micros(remaining), micros(next)
	r.InUse, r.Waiting = int(in), int(many)
	return r, nil
}

// DowngradeLease implements store.LeaseDowngrader: one statement.
func (s *Store) DowngradeLease(ctx context.Context, ref store.LeaseRef, weight int) (bool, error) {
	return s.stepOf(ctx, opReleaseLeases,
		"SELECT outcome = 'yes', pushes FROM lk.step_lease_1('downgrade', $1, $2, $3, $4, $5, my_ttl => $6, my_weight => $7)",
		s.leaseKey(ref.Name, ref.Key), s.db.Inbox(), waiting.Elapsed(),
		ref.ID, ref.Fence, ref.TTL.Microseconds(), max(weight, 1))
}

// RevokeLease implements store.LeaseRevoker: one statement. The holder gets a push.
func (s *Store) RevokeLease(ctx context.Context, name, key string, fence int64) (bool, error) {
	return s.stepOf(ctx, opReleaseLeases,
		"SELECT outcome = 'yes', pushes FROM lk.step_lease_1('revoke', $1, $2, $3, my_fence => $4)",
		s.leaseKey(name, key), s.db.Inbox(), waiting.Elapsed(), fence)
}

// stepOf takes a step that reports whether it was taken.
func (s *Store) stepOf(ctx context.Context, op statement.Operation, sql string, args ...any) (bool, error) {
	call := statement.Call{Operation: op, Urgency: batch.Finishing, Writes: true}
	return statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (done bool, err error) {
		var pushes []string
		if err = c.QueryRow(ctx, s.db.Text(sql), args...).Scan(&done, &pushes); err == nil {
			s.db.Deliver(pushes)
		}
		return done, err
	})
}

const verifyLease = `SELECT
  EXISTS (SELECT FROM lk.leases l WHERE l.id = $1 AND l.holder = $2 AND l.first = $3 AND l.ends > lk.now_us()) OR
  EXISTS (SELECT FROM lk.lease_holds h WHERE h.lease = $1 AND h.id = $2 AND h.first = $3 AND h.ends > lk.now_us())`

// VerifyLease implements store.LeaseVerifier: one statement, which changes nothing.
func (s *Store) VerifyLease(ctx context.Context, ref store.LeaseRef) (bool, error) {
	key := s.leaseKey(ref.Name, ref.Key)
	call := statement.Call{Operation: opInspect, Brief: true}
	return statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (held bool, err error) {
		err = c.QueryRow(ctx, s.db.Text(verifyLease), key, ref.ID, ref.Fence).Scan(&held)
		return held, err
	})
}

// NotifyLost implements store.LeaseRevoker: f is called for holds that RevokeLease ends.
func (s *Store) NotifyLost(f func(id string)) (remove func()) { return s.waiting.NotifyLost(f) }
