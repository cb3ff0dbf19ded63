package memstore

import (
	"bytes"
	"cmp"
	"container/list"
	"context"
	"fmt"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/heap"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
)

const (
	// recordBytes is the accounted size of a record without its result.
	recordBytes = 512
	// abandonTombstoneFor is how long a delayed begin of an abandoned attempt is refused.
	abandonTombstoneFor = int64(time.Minute / time.Microsecond)
)

// record is the record of an operation.
type record struct {
	ref         store.OperationRef
	state       store.RecordState
	owner       string
	fingerprint string
	number      int
	holder      string
	created     int64 // µs of the store's clock
	changed     int64
	changes     int
	leaseEnds   int64
	effects     store.Effects // of the attempt in flight
	lastMark    int           // the highest Seq of its marks
	priorDirty  bool          // an earlier attempt may have had effects
	steps       []store.Step
	status      int
	data        []byte
	ended       chan struct{} // closed when the attempt in flight ends; nil if nothing waits for it

	scope    *recordScope
	place    *list.Element // in scope.all
	resultAt *list.Element // in scope.results; nil without a result
}

// change records a change at a time.
func (rec *record) change(now int64) {
	rec.changed = now
	rec.changes++
}

// end records that no attempt is in flight any more.
func (rec *record) end(now int64) {
	rec.change(now)
	if rec.ended != nil {
		close(rec.ended)
		rec.ended = nil
	}
}

// inFlight reports whether the operation has an owner at work, or one that has died.
func (rec *record) inFlight() bool {
	return rec.state == store.InFlight || rec.state == store.Reconciling
}

// recordShard has the records of some scopes, and of some operations without one.
type recordShard struct {
	mu        sync.Mutex
	records   expiry.Table[string, *record]
	abandoned expiry.Table[string, struct{}] // by owner
	scopes    map[string]*recordScope
	fullest   heap.Heap[*recordScope]
	room      *recordRoom
}

func (r *recordShard) init(room *recordRoom, maxAbandoned int) {
	r.room = room
	r.records = expiry.NewTable[string](math.MaxInt, func(rec **record) { r.removed(*rec) })
	r.abandoned = expiry.NewTable[string, struct{}](max(maxAbandoned, 1), nil)
	r.scopes = make(map[string]*recordScope)
}

func (s *Store) recordShard(ref store.OperationRef) *recordShard {
	return shardOf(s, s.records, cmp.Or(ref.Scope, ref.ID))
}

// add adds and returns a new record; the caller has taken room for it.
func (r *recordShard) add(ref store.AttemptRef, fingerprint string, number int, expires, now int64) *expiry.Entry[string, *record] {
	rec := &record{ref: ref.OperationRef, owner: ref.Owner, fingerprint: fingerprint, number: number, created: now, scope: r.scope(ref.Scope)}
	rec.change(now)
	rec.place = rec.scope.all.PushBack(rec)
	r.records.Add(ref.ID, rec, expires, now)
	return r.records.Get(ref.ID, now)
}

// removed is called for every record that the table has removed.
func (r *recordShard) removed(rec *record) {
	rec.end(rec.changed)
	r.dropData(rec)
	r.dropSteps(rec)
	r.room.free(recordBytes)
	sc := rec.scope
	if sc.all.Remove(rec.place); sc.all.Len() == 0 {
		delete(r.scopes, sc.name)
		r.fullest.Remove(sc)
	}
}

// keep sets a record's result; the caller has taken room for it.
func (r *recordShard) keep(rec *record, data []byte) {
	if rec.data = data; len(data) > 0 {
		rec.resultAt = rec.scope.results.PushBack(rec)
		r.resize(rec.scope, len(data))
	}
}

// dropData drops a record's result, if any, and returns its size.
func (r *recordShard) dropData(rec *record) int {
	n := len(rec.data)
	if rec.data = nil; n > 0 {
		rec.scope.results.Remove(rec.resultAt)
		rec.resultAt = nil
		r.resize(rec.scope, -n)
		r.room.free(n)
	}
	return n
}

// dropSteps drops a record's steps.
func (r *recordShard) dropSteps(rec *record) {
	for _, step := range rec.steps {
		r.room.free(sizeOf(step))
	}
	rec.steps = nil
}

// sizeOf returns the accounted size of a step.
func sizeOf(step store.Step) int { return 64 + len(step.Name) + len(step.Data) }

// extend sets when a record expires.
func extend(e *expiry.Entry[string, *record], expires int64) {
	e.Expires = expires
	e.Value.scope.all.MoveToBack(e.Value.place)
}

// BeginOperation implements store.Records.
func (s *Store) BeginOperation(ctx context.Context, req store.BeginRequest) (store.BeginReply, error) {
	if err := s.ready(ctx); err != nil {
		return store.BeginReply{}, err
	}
	shard := s.recordShard(req.OperationRef)
	reply, fits := shard.begin(&req, s.now())
	if !fits && s.makeRoom(recordBytes, 0) {
		reply, fits = shard.begin(&req, s.now())
	}
	if !fits {
		return store.BeginReply{}, store.ErrFull
	}
	return reply, nil
}

// begin begins an operation. It returns false if there is no room.
func (r *recordShard) begin(req *store.BeginRequest, now int64) (reply store.BeginReply, fits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.abandoned.Get(req.Owner, now) != nil {
		return store.BeginReply{Outcome: store.Refused}, true
	}
	leaseEnds := now + req.Lease.Microseconds()
	expires := now + req.Retention.Microseconds()
	e := r.records.Get(req.ID, now)
	if e == nil {
		if left, full := r.scopeFull(req, now); full {
			return store.BeginReply{Outcome: store.ScopeFull, Remaining: left}, true
		}
		if !r.room.take(recordBytes) {
			return reply, false
		}
		rec := r.add(req.AttemptRef, req.Fingerprint, 1, expires, now).Value
		rec.leaseEnds, rec.holder = leaseEnds, req.Holder
		reply.Outcome, reply.Number = store.Started, 1
		if req.Scope != "" {
			reply.Records = rec.scope.all.Len()
		}
		return reply, true
	}
	rec := e.Value
	reply.Number = rec.number
	unknown := rec.state != store.InFlight || rec.priorDirty || rec.effects == store.MayHaveEffects // unless it is settled
	switch {
	case rec.fingerprint != req.Fingerprint:
		reply.Outcome = store.Mismatched
	case rec.inFlight() && rec.owner == req.Owner: // a repeat
		rec.leaseEnds = leaseEnds
		reply.Outcome, reply.Effects, reply.Steps = store.Started, rec.effects, slices.Clone(rec.steps)
		if rec.state == store.Reconciling {
			reply.Outcome = store.ToReconcile
		}
	case rec.inFlight() && rec.leaseEnds > now:
		reply.Outcome, reply.Remaining = store.Busy, time.Duration(rec.leaseEnds-now)*time.Microsecond
	case rec.inFlight() && !unknown || (rec.inFlight() || rec.state == store.Unknown) && req.Rerun:
		rec.priorDirty = rec.priorDirty || unknown
		if rec.state != store.InFlight || rec.effects != store.EffectsInSteps {
			rec.effects = store.MayHaveEffects
		}
		rec.state, rec.owner, rec.holder, rec.leaseEnds, rec.lastMark = store.InFlight, req.Owner, req.Holder, leaseEnds, 0
		rec.number++
		rec.change(now)
		extend(e, expires)
		return store.BeginReply{Outcome: store.Started, Number: rec.number, Effects: rec.effects, Steps: slices.Clone(rec.steps)}, true
	case (rec.inFlight() || rec.state == store.Unknown) && req.Reconcile:
		rec.state, rec.owner, rec.leaseEnds, rec.effects, rec.lastMark = store.Reconciling, req.Owner, leaseEnds, store.MayHaveEffects, 0
		rec.change(now)
		extend(e, expires)
		reply.Outcome = store.ToReconcile
	case rec.inFlight():
		reply.Outcome = store.Undecided
	default:
		reply.Outcome, reply.State, reply.Status, reply.Data = store.Settled, rec.state, rec.status, bytes.Clone(rec.data)
	}
	return reply, true
}

// scopeFull reports whether a scope has its maximum of records, and when the first one expires.
func (r *recordShard) scopeFull(req *store.BeginRequest, now int64) (left time.Duration, full bool) {
	sc := r.scopes[req.Scope]
	if req.Scope == "" || req.MaxRecords <= 0 || sc == nil || sc.all.Len() < req.MaxRecords {
		return 0, false
	}
	first := r.first(sc, now)
	if first == nil || sc.all.Len() < req.MaxRecords {
		return 0, false
	}
	return time.Duration(first.Expires-now) * time.Microsecond, true
}

// SettleOperation implements store.Records.
func (s *Store) SettleOperation(ctx context.Context, req store.SettleRequest) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	req.Data = bytes.Clone(req.Data)
	shard := s.recordShard(req.OperationRef)
	owned, missing, bytesOfScope := shard.settle(&req, s.now(), false)
	if missing > 0 {
		s.makeRoom(missing, bytesOfScope)
		owned, missing, _ = shard.settle(&req, s.now(), true)
	}
	if missing > 0 {
		return false, store.ErrFull
	}
	return owned, nil
}

// settle settles an attempt. If there is no room, it returns how many bytes are missing, and how
// many its scope would have. On the last try, a result without room is not retained.
func (r *recordShard) settle(req *store.SettleRequest, now int64, last bool) (owned bool, missing, bytesOfScope int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	expires := now + req.Retention.Microseconds()
	e := r.records.Get(req.ID, now)
	if e != nil && e.Value.owner != req.Owner {
		return false, 0, 0
	}
	if e != nil && !e.Value.inFlight() { // a repeat
		return true, 0, 0
	}
	state, data := req.State, req.Data
	if !r.scopeKeeps(req, now) {
		state, data = store.NotRetained, nil
	}
	if !r.room.take(len(data)) {
		if !last {
			return false, len(data), r.bytesOf(req.Scope) + len(data)
		}
		state, data = store.NotRetained, nil
	}
	if e = r.records.Get(req.ID, now); e == nil { // a late result is better than another run
		if !r.room.take(recordBytes) {
			r.room.free(len(data))
			return false, recordBytes, 0
		}
		e = r.add(req.AttemptRef, req.Fingerprint, req.Number, expires, now)
		e.Value.holder = req.Holder
	}
	rec := e.Value
	rec.state, rec.status = state, req.Status
	r.dropSteps(rec)
	r.keep(rec, data)
	rec.end(now)
	extend(e, expires)
	return true, 0, 0
}

// scopeKeeps reports whether a scope has room for one more result.
func (r *recordShard) scopeKeeps(req *store.SettleRequest, now int64) bool {
	if req.Scope == "" || req.MaxBytes <= 0 || r.bytesOf(req.Scope)+len(req.Data) <= req.MaxBytes {
		return true
	}
	if sc := r.scopes[req.Scope]; sc != nil {
		r.first(sc, now)
	}
	return r.bytesOf(req.Scope)+len(req.Data) <= req.MaxBytes
}

// AbandonOperation implements store.Records.
func (s *Store) AbandonOperation(ctx context.Context, ref store.AttemptRef) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	shard := s.recordShard(ref.OperationRef)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	return shard.abandon(ref, s.now()), nil
}

func (r *recordShard) abandon(ref store.AttemptRef, now int64) bool {
	if r.abandoned.Get(ref.Owner, now) != nil { // a repeat
		return true
	}
	if r.abandoned.Room(1, now) {
		r.abandoned.Add(ref.Owner, struct{}{}, now+abandonTombstoneFor, now)
	}
	rec := r.inFlight(ref, now)
	if rec == nil {
		return false
	}
	switch {
	case rec.state == store.Reconciling:
		rec.state = store.Unknown
		r.dropSteps(rec)
	case rec.priorDirty:
		rec.effects = store.MayHaveEffects
	case rec.effects != store.EffectsInSteps:
		r.records.Remove(ref.ID)
		return true
	}
	rec.leaseEnds, rec.owner = now, "" // late steps of the attempt have no effect
	rec.end(now)
	return true
}

// inFlight returns the record of an attempt in flight, or nil if the attempt does not own it.
func (r *recordShard) inFlight(ref store.AttemptRef, now int64) *record {
	e := r.records.Get(ref.ID, now)
	if e == nil || e.Value.owner != ref.Owner || !e.Value.inFlight() {
		return nil
	}
	return e.Value
}

// MarkOperation implements store.Records.
func (s *Store) MarkOperation(ctx context.Context, req store.MarkRequest) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	shard := s.recordShard(req.OperationRef)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	rec := shard.inFlight(req.AttemptRef, s.now())
	if rec == nil {
		return false, nil
	}
	if req.Seq > rec.lastMark {
		rec.effects, rec.lastMark = req.Effects, req.Seq
		rec.change(s.now())
	}
	return true, nil
}

// RecordStep implements store.StepRecords.
func (s *Store) RecordStep(ctx context.Context, req store.StepRequest) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	req.Data = bytes.Clone(req.Data)
	shard := s.recordShard(req.OperationRef)
	owned, fits, err := shard.recordStep(&req, s.now())
	if !fits && s.makeRoom(sizeOf(req.Step), 0) {
		owned, fits, err = shard.recordStep(&req, s.now())
	}
	if !fits {
		return false, store.ErrFull
	}
	return owned, err
}

// recordStep records a step. It returns false for fits if there is no room.
func (r *recordShard) recordStep(req *store.StepRequest, now int64) (owned, fits bool, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	rec := r.inFlight(req.AttemptRef, now)
	switch {
	case rec == nil:
		return false, true, nil
	case slices.ContainsFunc(rec.steps, func(s store.Step) bool { return s.Name == req.Name }):
		return true, true, nil
	case len(rec.steps) >= store.MaxSteps:
		return false, true, fmt.Errorf("%w: an operation has at most %d steps", store.ErrFull, store.MaxSteps)
	case !r.room.take(sizeOf(req.Step)):
		return false, false, nil
	}
	rec.steps = append(rec.steps, req.Step)
	rec.change(now)
	return true, true, nil
}

// RenewOperations implements store.Records.
func (s *Store) RenewOperations(ctx context.Context, reqs []store.RenewRequest) ([]bool, error) {
	if err := s.ready(ctx); err != nil {
		return nil, err
	}
	held := make([]bool, len(reqs))
	for i, req := range reqs {
		held[i] = s.renew(req)
	}
	return held, nil
}

func (s *Store) renew(req store.RenewRequest) bool {
	shard := s.recordShard(req.OperationRef)
	shard.mu.Lock()
	defer shard.mu.Unlock()
	now := s.now()
	rec := shard.inFlight(req.AttemptRef, now)
	if rec == nil {
		return false
	}
	rec.leaseEnds = now + req.Lease.Microseconds()
	if e := shard.records.Get(req.ID, now); e.Expires < now+req.Retention.Microseconds() {
		extend(e, now+req.Retention.Microseconds())
	}
	return true
}
