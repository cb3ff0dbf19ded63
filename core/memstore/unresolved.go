package memstore

import (
	"bytes"
	"container/list"
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
)

// AwaitOperation implements store.AwaitedRecords.
func (s *Store) AwaitOperation(ctx context.Context, ref store.OperationRef) error {
	for {
		if err := s.acceptsNew(ctx); err != nil {
			return err
		}
		ended, left := s.recordShard(ref).ended(ref, s.now())
		if ended == nil {
			return nil
		}
		timer := time.NewTimer(left)
		select {
		case <-ended:
			timer.Stop()
			return nil
		case <-timer.C: // renewed, or not
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		case <-s.hooks.Over():
			timer.Stop()
			return store.ErrClosed
		}
	}
}

// ended returns a channel that is closed when the attempt in flight ends, and the rest of its
// lease; nil if there is none.
func (r *recordShard) ended(ref store.OperationRef, now int64) (<-chan struct{}, time.Duration) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.records.Get(ref.ID, now)
	if e == nil || !e.Value.inFlight() || e.Value.leaseEnds <= now {
		return nil, 0
	}
	rec := e.Value
	if rec.ended == nil {
		rec.ended = make(chan struct{})
	}
	return rec.ended, time.Duration(rec.leaseEnds-now) * time.Microsecond
}

// InspectOperation implements store.ResolvableRecords.
func (s *Store) InspectOperation(ctx context.Context, ref store.OperationRef) (store.OperationRecord, bool, error) {
	if err := s.ready(ctx); err != nil {
		return store.OperationRecord{}, false, err
	}
	r, now := s.recordShard(ref), s.now()
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.records.Get(ref.ID, now)
	if e == nil || e.Value.ref != ref {
		return store.OperationRecord{}, false, nil
	}
	return inspected(e, now), true, nil
}

// inspected returns a record in the form for operators.
func inspected(e *expiry.Entry[string, *record], now int64) store.OperationRecord {
	rec := e.Value
	since := func(t int64) time.Duration { return time.Duration(max(now-t, 0)) * time.Microsecond }
	state := store.OperationRecord{
		OperationRef: rec.ref, State: rec.state, Number: rec.number, Effects: rec.effects, Holder: rec.holder, Age: since(rec.created),
		Changed: since(rec.changed), Expires: time.Duration(e.Expires-now) * time.Microsecond, Status: rec.status, Bytes: len(rec.data), Version: rec.version(),
	}
	if rec.priorDirty {
		state.Effects = store.MayHaveEffects
	}
	if rec.inFlight() {
		state.Lease = time.Duration(max(rec.leaseEnds-now, 0)) * time.Microsecond
	}
	for _, step := range rec.steps {
		state.Steps = append(state.Steps, step.Name)
	}
	return state
}

func (rec *record) version() string { return fmt.Sprint(rec.changes, rec.owner) }

// ListUnresolved implements store.ResolvableRecords.
func (s *Store) ListUnresolved(ctx context.Context, guard string) iter.Seq2[store.OperationRecord, error] {
	return func(yield func(store.OperationRecord, error) bool) {
		for i := range s.records {
			if err := s.ready(ctx); err != nil {
				yield(store.OperationRecord{}, err)
				return
			}
			for _, state := range s.records[i].unresolved(guard, s.now()) {
				if !yield(state, nil) {
					return
				}
			}
		}
	}
}

func (r *recordShard) unresolved(guard string, now int64) (found []store.OperationRecord) {
	r.mu.Lock()
	defer r.mu.Unlock()
	for _, sc := range r.scopes {
		var next *list.Element
		for at := sc.all.Front(); at != nil; at = next {
			next = at.Next() // Get may remove the record
			rec := at.Value.(*record)
			if rec.ref.Guard != guard || rec.state != store.Unknown && !rec.inFlight() {
				continue
			}
			if e := r.records.Get(rec.ref.ID, now); e != nil {
				if state := inspected(e, now); state.Unresolved() {
					found = append(found, state)
				}
			}
		}
	}
	return found
}

// ResolveOperation implements store.ResolvableRecords.
func (s *Store) ResolveOperation(ctx context.Context, req store.ResolveRequest) (store.ResolveOutcome, error) {
	if err := s.ready(ctx); err != nil {
		return 0, err
	}
	req.Data = bytes.Clone(req.Data)
	r := s.recordShard(req.OperationRef)
	outcome, fits := r.resolve(&req, s.now())
	if !fits && s.makeRoom(len(req.Data), 0) {
		outcome, fits = r.resolve(&req, s.now())
	}
	if !fits {
		return 0, store.ErrFull
	}
	return outcome, nil
}

// resolve resolves an operation. It returns false if there is no room for its result.
func (r *recordShard) resolve(req *store.ResolveRequest, now int64) (outcome store.ResolveOutcome, fits bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.records.Get(req.ID, now)
	if e == nil || e.Value.ref != req.OperationRef {
		return store.RecordChanged, true
	}
	rec, resolved := e.Value, "resolved:"+req.Owner // the owner of nothing in flight
	if rec.owner == resolved {                      // a repeat
		return store.Resolved, true
	}
	if mine := rec.state == store.Reconciling && rec.owner == req.Owner; !mine {
		switch {
		case req.Version != rec.version():
			return store.RecordChanged, true
		case !rec.inFlight() && rec.state != store.Unknown:
			return store.RecordResolved, true
		case rec.inFlight() && rec.leaseEnds > now:
			return store.RecordInUse, true
		}
	}
	if !r.room.take(len(req.Data)) {
		return 0, false
	}
	r.dropSteps(rec)
	rec.state, rec.owner, rec.status, rec.leaseEnds, rec.effects, rec.priorDirty = req.State, resolved, req.Status, now, store.NoEffects, false
	r.keep(rec, req.Data)
	rec.end(now)
	extend(e, now+micros(req.Retention))
	return store.Resolved, true
}
