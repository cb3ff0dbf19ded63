package storetest

import (
	"bytes"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// scopeOf returns a function that makes operations of one scope with limits of records and of bytes
// of results.
func scopeOf(t *testing.T, h Harness[store.Records], records, bytes int) func() op {
	scope := unique("scope")
	return func() op {
		o := newOp(t, h)
		o.scope, o.maxRecords, o.maxBytes = scope[len(scope)-22:], records, bytes
		return o
	}
}

// refused fails the test unless the scope has no room for an operation.
func (o op) refused() {
	o.t.Helper()
	o.wantFull(o.begin(newOwner(), longLease, true))
}

// full is refused in a scope that has no room for a retention since it began. It returns true if
// that may be over, so that the check is inconclusive.
func (o op) full(began time.Time, retention time.Duration) (late bool) {
	o.t.Helper()
	o.retention = retention
	reply := o.begin(newOwner(), longLease, true)
	if expect(o.t, "BeginOperation: outcome", reply.Outcome, store.ScopeFull, began, retention) {
		return true
	}
	o.wantFull(reply)
	return false
}

func (o op) wantFull(reply store.BeginReply) {
	o.t.Helper()
	o.want(reply, store.ScopeFull, 0)
	if reply.Remaining < 0 || reply.Remaining > o.retention*9/8 {
		o.t.Errorf("there is room in %v, with a retention of %v", reply.Remaining, o.retention)
	}
}

func scopeFull(t *testing.T, h Harness[store.Records]) {
	next := scopeOf(t, h, 4, 1000)
	running, done, unknown, gone := next(), next(), next(), next()
	runs, finishes := newOwner(), newOwner()
	running.started(runs, longLease, false, 1)
	done.started(finishes, longLease, false, 1)
	done.settle(finishes, store.Completed, []byte("kept"), true)
	unknown.started(finishes, longLease, false, 1)
	unknown.settle(finishes, store.Unknown, nil, true)
	late := newOwner()
	gone.settle(late, store.Completed, []byte("late"), true) // its record was lost: it counts, and is never refused
	for range 3 {
		next().refused()
		running.started(runs, longLease, false, 1) // a repeat
		running.want(running.begin(newOwner(), longLease, false), store.Busy, 1)
		for o, want := range map[*op]string{&done: "kept", &gone: "late"} {
			if reply := o.begin(newOwner(), longLease, false); reply.Outcome != store.Settled || string(reply.Data) != want {
				t.Errorf("got %+v, want the result %q", reply, want)
			}
		}
		other := done
		other.fp = "g" + other.fp[1:]
		other.want(other.begin(newOwner(), longLease, false), store.Mismatched, 1)
		o := next()
		o.settle(newOwner(), store.Completed, []byte("later still"), true)
		if reply := o.begin(newOwner(), longLease, false); string(reply.Data) != "later still" {
			t.Errorf("the late result is %+v", reply)
		}
	}
	running.renew(runs, longLease, true)
	running.settle(runs, store.Completed, []byte("ran"), true)
}

func scopeFills(t *testing.T, h Harness[store.Records]) {
	next := scopeOf(t, h, 16, 1000)
	for n := range 16 {
		o, owner := next(), newOwner()
		reply := o.begin(owner, longLease, false)
		o.want(reply, store.Started, 1)
		if reply.Records != n+1 && (n > 0 || reply.Records != 0) { // of the first there is nothing to add up
			t.Errorf("record %d of the scope: it has %d", n+1, reply.Records)
		}
		o.settle(owner, store.Completed, []byte("x"), true)
	}
	next().refused()
	o := newOp(t, h)
	o.maxRecords = 1
	if reply := o.begin(newOwner(), longLease, false); reply.Records != 0 {
		t.Errorf("without a scope there are %d records of it", reply.Records)
	}
}

func fullScopeTakenOver(t *testing.T, h Harness[store.Records]) {
	next := scopeOf(t, h, 2, 1000)
	dead, unknown, ended := next(), next(), newOwner()
	dead.dies(newOwner(), true, 1)
	unknown.started(ended, longLease, true, 1)
	unknown.settle(ended, store.Unknown, nil, true)
	next().refused()
	for _, o := range []op{dead, unknown} {
		second := newOwner()
		o.started(second, longLease, true, 2)
		o.settle(second, store.Completed, []byte("second"), true)
	}
	next().refused()
}

func scopesApart(t *testing.T, h Harness[store.Records]) {
	alice, bob := scopeOf(t, h, 2, 0), scopeOf(t, h, 2, 0)
	for range 2 {
		alice().started(newOwner(), longLease, false, 1)
		bob().started(newOwner(), longLease, false, 1)
	}
	alice().refused()
	bob().refused()
	for range 5 {
		o := newOp(t, h)
		o.maxRecords, o.maxBytes = 2, 2
		owner := newOwner()
		o.started(owner, longLease, false, 1)
		o.settle(owner, store.Completed, []byte("kept"), true)
		if reply := o.begin(newOwner(), longLease, false); string(reply.Data) != "kept" {
			t.Errorf("without a scope: %+v", reply)
		}
	}
}

func abandonLeavesRoom(t *testing.T, h Harness[store.Records]) {
	next := scopeOf(t, h, 2, 0)
	next().started(newOwner(), longLease, false, 1)
	for range 5 {
		o, owner := next(), newOwner()
		o.started(owner, longLease, false, 1)
		next().refused()
		o.abandon(owner, true)
		o.abandon(owner, true) // a repeat
		o.abandon(newOwner(), false)
	}
	o := next() // one more than was abandoned has room only if an abandon counted twice
	o.started(newOwner(), longLease, false, 1)
	next().refused()
}

func retentionLeavesRoom(t *testing.T, h Harness[store.Records]) {
	inTime(t, 160*time.Millisecond, func(retention time.Duration) (late bool) {
		next := scopeOf(t, h, 3, 1000)
		for range 2 {
			began := time.Now()
			for range 3 {
				o, owner := next(), newOwner()
				o.retention = retention
				o.started(owner, longLease, false, 1)
				o.settle(owner, store.Completed, []byte("kept"), true)
			}
			if next().full(began, retention) {
				return true
			}
			h.Advance(retention + retention/16 + 20*time.Millisecond)
		}
		return false
	})
}

func renewedTakesRoom(t *testing.T, h Harness[store.Records]) {
	inTime(t, 200*time.Millisecond, func(retention time.Duration) (late bool) {
		next := scopeOf(t, h, 1, 0)
		o, owner := next(), newOwner()
		o.retention = retention
		began := time.Now()
		o.started(owner, longLease, false, 1)
		for range 3 {
			h.Advance(retention / 2)
			renewed := time.Now()
			if expect(t, "RenewOperations", o.renews(owner, longLease), true, began, retention) || next().full(renewed, retention) {
				return true
			}
			began = renewed
		}
		owned, err := h.Store.AbandonOperation(background(), o.ref(owner))
		if err != nil {
			t.Fatalf("AbandonOperation: %v", err)
		}
		if expect(t, "AbandonOperation", owned, true, began, retention) {
			return true
		}
		next().started(newOwner(), longLease, false, 1)
		return false
	})
}

func concurrentScope(t *testing.T, h Harness[store.Records]) {
	next := scopeOf(t, h, 10, 0)
	var (
		wg            sync.WaitGroup
		started, full atomic.Int64
	)
	for range 32 {
		o := next()
		wg.Go(func() {
			reply, err := h.Store.BeginOperation(background(), store.BeginRequest{
				AttemptRef: o.ref(newOwner()), Fingerprint: o.fp, Lease: longLease, Retention: time.Hour, MaxRecords: o.maxRecords,
			})
			switch {
			case err != nil:
				t.Errorf("BeginOperation: %v", err)
			case reply.Outcome == store.Started:
				started.Add(1)
			case reply.Outcome == store.ScopeFull:
				full.Add(1)
			}
		})
	}
	wg.Wait()
	if started.Load() != 10 || full.Load() != 22 {
		t.Errorf("%d started and %d were refused, of 32", started.Load(), full.Load())
	}
}

func largeScope(t *testing.T, h Harness[store.Records]) {
	next := scopeOf(t, h, 100, 10_000)
	started, kept := 0, 0
	for range 150 {
		o, owner := next(), newOwner()
		if o.begin(owner, longLease, false).Outcome != store.Started {
			continue
		}
		started++
		o.settle(owner, store.Completed, bytes.Repeat([]byte("x"), 150), true)
		if o.begin(newOwner(), longLease, false).State == store.Completed {
			kept++
		}
	}
	if started < 100 || started > 106 || kept*150 < 9850 || kept*150 > 10_625 {
		t.Errorf("%d began and %d results were kept; want 100 and 66, or up to a sixteenth more", started, kept)
	}
}

func scopeBytes(t *testing.T, h Harness[store.Records]) {
	next := scopeOf(t, h, 100, 1000)
	settled := func(size int, want store.RecordState) {
		t.Helper()
		o, owner := next(), newOwner()
		o.started(owner, longLease, false, 1)
		for range 2 {
			o.settle(owner, store.Completed, bytes.Repeat([]byte("x"), size), true)
		}
		reply := o.begin(newOwner(), longLease, true)
		o.want(reply, store.Settled, 1)
		if reply.State != want || reply.Status != 201 || want == store.Completed && len(reply.Data) != size {
			t.Errorf("a result of %d bytes: state %d, status %d, %d bytes, want state %d", size, reply.State, reply.Status, len(reply.Data), want)
		}
	}
	settled(1001, store.NotRetained)
	settled(600, store.Completed)
	settled(401, store.NotRetained)
	settled(400, store.Completed)
	settled(63, store.NotRetained) // a scope may have a sixteenth more
	settled(0, store.Completed)
}

func resultsLeaveRoom(t *testing.T, h Harness[store.Records]) {
	inTime(t, 160*time.Millisecond, func(retention time.Duration) (late bool) {
		next := scopeOf(t, h, 100, 1000)
		for range 2 {
			began := time.Now()
			for _, want := range []store.RecordState{store.Completed, store.NotRetained} {
				o, owner := next(), newOwner()
				o.retention = retention
				o.started(owner, longLease, false, 1)
				o.settle(owner, store.Completed, bytes.Repeat([]byte("x"), 1000), true)
				reply := o.begin(newOwner(), longLease, true)
				if expect(t, "the state of a result", reply.State, want, began, retention) {
					return true
				}
			}
			h.Advance(retention + retention/16 + 20*time.Millisecond)
		}
		return false
	})
}

// keptInScope checks that a scope counts a record for as long as its settlement keeps it.
func keptInScope(t *testing.T, h Harness[store.Records]) {
	o := newOp(t, h)
	o.scope, o.maxRecords, o.retention = unique("scope")[:22], 2, time.Hour
	for range 10 { // forgotten as soon as they are settled
		o.id = newOp(t, h).id
		owner := newOwner()
		o.started(owner, longLease, false, 1)
		o.retention = time.Millisecond
		o.settle(owner, store.Completed, []byte("x"), true)
		o.retention = time.Hour
		h.Advance(20 * time.Millisecond)
	}
	o.retention = 160 * time.Millisecond
	for range 2 { // kept for longer than they were begun for
		o.id = newOp(t, h).id
		owner := newOwner()
		o.started(owner, 20*time.Millisecond, false, 1)
		o.retention = time.Hour
		o.settle(owner, store.Completed, []byte("x"), true)
		o.retention = 160 * time.Millisecond
	}
	h.Advance(200 * time.Millisecond)
	o.id = newOp(t, h).id
	if reply := o.begin(newOwner(), longLease, false); reply.Outcome != store.ScopeFull {
		t.Errorf("begun in a full scope: %+v", reply)
	}
}
