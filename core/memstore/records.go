package memstore

import (
	"bytes"
	"context"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/internal/expiry"
	"github.com/lockkeeper/lockkeeper/internal/outage"
)

const (
	// recordBytes is what a record counts without its result.
	recordBytes = 512
	// abandonedFor is for how long a delayed begin of an abandoned attempt is refused.
	abandonedFor = int64(time.Minute / time.Microsecond)
)

// record is what is kept of an operation.
type record struct {
	state       guard.State
	owner       string
	fingerprint string
	number      int
	leaseEnds   int64 // µs of the store's clock
	dirty       bool  // the attempt in flight may have had effects
	priorDirty  bool  // one before it may have
	status      int
	data        []byte
}

type recordShard struct {
	mu        sync.Mutex
	records   expiry.Table[string, record]
	abandoned expiry.Table[string, struct{}] // by owner
	bytes     int
	maxBytes  int
}

func (r *recordShard) init(maxBytes int) {
	r.maxBytes = maxBytes
	r.records = expiry.NewTable[string](max(maxBytes/recordBytes, 1), func(rec *record) { r.bytes -= len(rec.data) })
	r.abandoned = expiry.NewTable[string, struct{}](max(maxBytes/recordBytes, 1), nil)
}

// room reports whether n bytes of result fit beside what is there.
func (r *recordShard) room(n int, now int64) bool {
	if r.records.Len()*recordBytes+r.bytes+n > r.maxBytes {
		r.records.Sweep(expiry.SweepFull, now)
	}
	return r.records.Len()*recordBytes+r.bytes+n <= r.maxBytes
}

// BeginOperation implements guard.Store.
func (s *Store) BeginOperation(ctx context.Context, req guard.BeginRequest) (guard.BeginReply, error) {
	if err := s.ready(ctx); err != nil {
		return guard.BeginReply{}, err
	}
	shard := shardOf(s, s.records, req.ID)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	return shard.begin(req, s.now())
}

func (r *recordShard) begin(req guard.BeginRequest, now int64) (guard.BeginReply, error) {
	if r.abandoned.Get(req.Owner, now) != nil {
		return guard.BeginReply{Outcome: guard.Refused}, nil
	}
	leaseEnds := now + req.Lease.Microseconds()
	expires := now + req.Retention.Microseconds()
	e := r.records.Get(req.ID, now)
	if e == nil {
		if !r.records.Room(1, now) || !r.room(recordBytes, now) {
			return guard.BeginReply{}, outage.ErrFull
		}
		r.records.Add(req.ID, record{
			owner: req.Owner, fingerprint: req.Fingerprint, number: 1, leaseEnds: leaseEnds, dirty: true,
		}, expires, now)
		return guard.BeginReply{Outcome: guard.Started, Number: 1}, nil
	}
	rec := &e.Value
	reply := guard.BeginReply{Number: rec.number}
	switch {
	case rec.fingerprint != req.Fingerprint:
		reply.Outcome = guard.Mismatched
		return reply, nil
	case rec.state == guard.InFlight && rec.owner == req.Owner: // sent twice
		rec.leaseEnds = leaseEnds
		reply.Outcome = guard.Started
		return reply, nil
	case rec.state == guard.InFlight && rec.leaseEnds > now:
		reply.Outcome, reply.Remaining = guard.Busy, time.Duration(rec.leaseEnds-now)*time.Microsecond
		return reply, nil
	case rec.state == guard.InFlight && (rec.dirty || rec.priorDirty) && !req.Rerun:
		reply.Outcome = guard.Undecided
		return reply, nil
	case rec.state == guard.Unknown && req.Rerun, rec.state == guard.InFlight:
		rec.priorDirty = rec.priorDirty || rec.dirty || rec.state == guard.Unknown
		rec.state, rec.owner, rec.leaseEnds, rec.dirty = guard.InFlight, req.Owner, leaseEnds, true
		rec.number++
		e.Expires = expires
		return guard.BeginReply{Outcome: guard.Started, Number: rec.number}, nil
	}
	reply.Outcome, reply.State, reply.Status, reply.Data = guard.Settled, rec.state, rec.status, bytes.Clone(rec.data)
	return reply, nil
}

// SettleOperation implements guard.Store.
func (s *Store) SettleOperation(ctx context.Context, req guard.SettleRequest) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	shard := shardOf(s, s.records, req.ID)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	return shard.settle(req, s.now())
}

func (r *recordShard) settle(req guard.SettleRequest, now int64) (bool, error) {
	if req.State == guard.Completed && !r.room(len(req.Data), now) {
		req.State, req.Data = guard.NotRetained, nil
	}
	expires := now + req.Retention.Microseconds()
	e := r.records.Get(req.ID, now)
	if e == nil { // it is better told late than run again
		if !r.records.Room(1, now) || !r.room(recordBytes+len(req.Data), now) {
			return false, outage.ErrFull
		}
		r.records.Add(req.ID, record{owner: req.Owner, fingerprint: req.Fingerprint, number: req.Number}, expires, now)
		e = r.records.Get(req.ID, now)
	}
	rec := &e.Value
	switch {
	case rec.owner != req.Owner:
		return false, nil
	case rec.state != guard.InFlight: // sent twice
		return true, nil
	}
	rec.state, rec.status, rec.data = req.State, req.Status, bytes.Clone(req.Data)
	r.bytes += len(rec.data)
	e.Expires = expires
	return true, nil
}

// AbandonOperation implements guard.Store.
func (s *Store) AbandonOperation(ctx context.Context, id, owner string) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	shard := shardOf(s, s.records, id)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	return shard.abandon(id, owner, s.now()), nil
}

func (r *recordShard) abandon(id, owner string, now int64) bool {
	if r.abandoned.Get(owner, now) != nil { // sent twice
		return true
	}
	if r.abandoned.Room(1, now) {
		r.abandoned.Add(owner, struct{}{}, now+abandonedFor, now)
	}
	e := r.records.Get(id, now)
	if e == nil || e.Value.owner != owner || e.Value.state != guard.InFlight {
		return false
	}
	if e.Value.priorDirty {
		e.Value.leaseEnds, e.Value.dirty = now, true
		return true
	}
	r.records.Remove(id)
	return true
}

// MarkOperation implements guard.Store.
func (s *Store) MarkOperation(ctx context.Context, id, owner string, dirty bool) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	shard := shardOf(s, s.records, id)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	e := shard.records.Get(id, s.now())
	if e == nil || e.Value.owner != owner || e.Value.state != guard.InFlight {
		return false, nil
	}
	e.Value.dirty = dirty
	return true, nil
}

// RenewOperations implements guard.Store.
func (s *Store) RenewOperations(ctx context.Context, reqs []guard.RenewRequest) ([]bool, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	held := make([]bool, len(reqs))
	for i, req := range reqs {
		held[i] = s.renew(req)
	}
	return held, nil
}

func (s *Store) renew(req guard.RenewRequest) bool {
	shard := shardOf(s, s.records, req.ID)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.now()
	e := shard.records.Get(req.ID, now)
	if e == nil || e.Value.owner != req.Owner || e.Value.state != guard.InFlight {
		return false
	}
	e.Value.leaseEnds = now + req.Lease.Microseconds()
	e.Expires = max(e.Expires, now+req.Retention.Microseconds())
	return true
}
