package storetest

import (
	"bytes"
	"context"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Records is the contract of store.Records.
func Records[S store.Records](t *testing.T, run Runner[S]) {
	runAll(t, run, []testCase[store.Records]{
		{"one attempt begins, others find it busy", oneBegins},
		{"begin recognises its own repeat", beginTwice},
		{"a completed operation is replayed, byte for byte", replays},
		{"settle recognises its own repeat", settleTwice},
		{"another fingerprint is a mismatch in every state", mismatches},
		{"a result that is not retained leaves its status", notRetained},
		{"an unknown outcome stays unknown", staysUnknown},
		{"an unknown outcome may be re-run if that is allowed", unknownRerun},
		{"a dead attempt that is dirty stays undecided", deadDirty},
		{"a dead attempt is taken over if re-runs are allowed", deadRerun},
		{"a dead attempt that is clean is taken over", deadClean},
		{"a dead attempt that was marked dirty again is not taken over", deadDirtyAgain},
		{"a late mark does not undo a later one", lateMark},
		{"marks of an attempt that took over count from 1 again", marksOfTakeover},
		{"an attempt that was taken over owns nothing", lostOwner},
		{"an expired attempt may settle until another takes over", lateSettle},
		{"abandon releases the operation", abandons},
		{"abandon recognises its own repeat", abandonTwice},
		{"a begin after its own abandon is refused", beginAfterAbandon},
		{"abandon keeps the evidence of an earlier attempt", abandonKeepsEvidence},
		{"a late step after an abandon changes nothing", lateAfterAbandon},
		{"an abandon by another owner changes nothing", abandonByStranger},
		{"a settled operation cannot be abandoned, marked or renewed", settledIsFinal},
		{"renewal extends the lease", renews},
		{"renewal of a missing operation reports false", renewNothing},
		{"settle restores a lost record", settleGone},
		{"retention ends the record", retentionEnds},
		{"a full scope refuses new operations, and replays old ones", scopeFull},
		{"a scope that fills is seen", scopeFills},
		{"a full scope lets attempts be taken over", fullScopeTakenOver},
		{"each scope has its own limit, and the empty scope none", scopesApart},
		{"an abandoned operation leaves room in its scope", abandonLeavesRoom},
		{"expired records leave room in their scope", retentionLeavesRoom},
		{"a renewed record still takes room in its scope", renewedTakesRoom},
		{"concurrent begins do not exceed the limit of a scope", concurrentScope},
		{"a scope exceeds its limit by less than a sixteenth", largeScope},
		{"results beyond the byte limit of their scope are not retained", scopeBytes},
		{"expired results leave room in their scope", resultsLeaveRoom},
		{"one of many concurrent begins starts", concurrentBegins},
		{"an operation is inspected in every state", inspectedStates},
		{"a step is recorded once, and the attempt that takes over has it", stepsTakenOver},
		{"an abandoned attempt leaves its steps", abandonLeavesSteps},
		{"steps belong to their owner, and have bounds", stepsBounds},
		{"one owner reconciles an unknown outcome", reconciles},
		{"an unknown outcome is resolved", resolves},
		{"a known outcome, a live lease and a changed record are not resolved", resolvesNothingElse},
		{"unresolved operations are listed", listsUnresolved},
		{"a dead attempt is unresolved if it may have had effects", unresolvedEffects},
		{"a scope counts what is kept for shorter and longer", keptInScope},
		{"await returns when the attempt ends", awaitsEnd},
		{"await returns at once if no attempt is in flight", awaitsNothing},
		{"shutdown calls the registered hooks", shutdownCalls},
		{"a closed store is unavailable", closedGuard},
	})
}

const longLease = time.Minute

func oneBegins(t *testing.T, h Harness[store.Records]) {
	o := newOp(t, h)
	o.started(newOwner(), longLease, true, 1)
	reply := o.begin(newOwner(), longLease, true)
	o.want(reply, store.Busy, 1)
	if reply.Remaining <= 0 || reply.Remaining > longLease {
		t.Errorf("%v remain of a lease of %v", reply.Remaining, longLease)
	}
	newOp(t, h).started(newOwner(), longLease, false, 1)
}

func beginTwice(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.started(owner, longLease, false, 1)
}

func replays(t *testing.T, h Harness[store.Records]) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, data := range [][]byte{nil, all, bytes.Repeat(all, 256)} {
		o, owner := newOp(t, h), newOwner()
		o.started(owner, longLease, false, 1)
		o.settle(owner, store.Completed, data, true)
		for _, rerun := range []bool{false, true} {
			reply := o.begin(newOwner(), longLease, rerun)
			o.want(reply, store.Settled, 1)
			if reply.State != store.Completed || reply.Status != 201 || !bytes.Equal(reply.Data, data) {
				t.Errorf("replay of %d bytes: state %d, status %d, %d bytes", len(data), reply.State, reply.Status, len(reply.Data))
			}
		}
	}
}

func settleTwice(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.settle(owner, store.Completed, []byte("first"), true)
	o.settle(owner, store.Completed, []byte("second"), true)
	if reply := o.begin(newOwner(), longLease, false); string(reply.Data) != "first" {
		t.Errorf("the repeat overwrote the result: %q", reply.Data)
	}
}

func mismatches(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	other := o
	other.fp = strings.Repeat("g", 43)
	o.started(owner, longLease, false, 1)
	other.want(other.begin(newOwner(), longLease, true), store.Mismatched, 1)
	o.settle(owner, store.Completed, nil, true)
	other.want(other.begin(newOwner(), longLease, true), store.Mismatched, 1)

	o = newOp(t, h)
	other.id = o.id
	o.dies(newOwner(), true, 1)
	other.want(other.begin(newOwner(), longLease, true), store.Mismatched, 1)
	o.started(newOwner(), longLease, true, 2)
}

func notRetained(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.settle(owner, store.NotRetained, nil, true)
	reply := o.begin(newOwner(), longLease, true)
	o.want(reply, store.Settled, 1)
	if reply.State != store.NotRetained || reply.Status != 201 {
		t.Errorf("got state %d, status %d", reply.State, reply.Status)
	}
}

func staysUnknown(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.settle(owner, store.Unknown, nil, true)
	for range 2 {
		reply := o.begin(newOwner(), longLease, false)
		o.want(reply, store.Settled, 1)
		if reply.State != store.Unknown {
			t.Errorf("got state %d", reply.State)
		}
	}
}

func unknownRerun(t *testing.T, h Harness[store.Records]) {
	o, owner, second := newOp(t, h), newOwner(), newOwner()
	o.started(owner, longLease, true, 1)
	o.settle(owner, store.Unknown, nil, true)
	o.started(second, longLease, true, 2)
	o.settle(owner, store.Completed, nil, false)
	o.settle(second, store.Completed, nil, true)
}

func deadDirty(t *testing.T, h Harness[store.Records]) {
	o := newOp(t, h)
	o.dies(newOwner(), false, 1)
	for range 2 {
		o.want(o.begin(newOwner(), longLease, false), store.Undecided, 1)
		h.Advance(30 * time.Millisecond)
	}
}

func deadRerun(t *testing.T, h Harness[store.Records]) {
	o := newOp(t, h)
	o.dies(newOwner(), true, 1)
	o.dies(newOwner(), true, 2)
	o.started(newOwner(), longLease, true, 3)
	o.want(o.begin(newOwner(), longLease, true), store.Busy, 3)
}

func deadClean(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.mark(owner, 1, store.NoEffects, true)
	o.renew(owner, 20*time.Millisecond, true)
	h.Advance(30 * time.Millisecond)
	second := newOwner()
	o.started(second, longLease, false, 2)
	// The second one begins dirty, as every attempt does.
	o.renew(second, 20*time.Millisecond, true)
	h.Advance(30 * time.Millisecond)
	o.want(o.begin(newOwner(), longLease, false), store.Undecided, 2)
}

func deadDirtyAgain(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.mark(owner, 1, store.NoEffects, true)
	o.mark(owner, 2, store.MayHaveEffects, true)
	o.renew(owner, 20*time.Millisecond, true)
	h.Advance(30 * time.Millisecond)
	o.want(o.begin(newOwner(), longLease, false), store.Undecided, 1)
}

func effectsOf(dirty bool) store.Effects {
	if dirty {
		return store.MayHaveEffects
	}
	return store.NoEffects
}

// The last mark counts, in whatever order marks arrive.
func lateMark(t *testing.T, h Harness[store.Records]) {
	for _, c := range []struct {
		seqs []int // the odd ones are clean
		want store.BeginOutcome
	}{
		{[]int{2, 1}, store.Undecided},
		{[]int{1, 2, 1}, store.Undecided},
		{[]int{2, 2, 1, 1}, store.Undecided},
		{[]int{3, 2}, store.Started},
		{[]int{3, 1, 2, 3}, store.Started},
		{[]int{10, 9}, store.Undecided},
		{[]int{101, 20}, store.Started},
		{[]int{store.MaxSeq - 1, 1, store.MaxSeq - 2}, store.Undecided},
	} {
		o, owner := newOp(t, h), newOwner()
		o.started(owner, longLease, false, 1)
		for _, seq := range c.seqs {
			o.mark(owner, seq, effectsOf(seq%2 == 0), true)
		}
		o.renew(owner, 20*time.Millisecond, true)
		h.Advance(30 * time.Millisecond)
		if reply := o.begin(newOwner(), longLease, false); reply.Outcome != c.want {
			t.Errorf("marks %v: outcome %d, want %d", c.seqs, reply.Outcome, c.want)
		}
		if c.want == store.Undecided {
			o.settle(owner, store.Completed, []byte("kept"), true)
			if reply := o.begin(newOwner(), longLease, false); string(reply.Data) != "kept" {
				t.Errorf("marks %v: the result is %q", c.seqs, reply.Data)
			}
		}
	}
}

func marksOfTakeover(t *testing.T, h Harness[store.Records]) {
	o, owner, second := newOp(t, h), newOwner(), newOwner()
	o.started(owner, 20*time.Millisecond, false, 1)
	o.mark(owner, 5, store.NoEffects, true)
	h.Advance(30 * time.Millisecond)
	o.started(second, longLease, false, 2)
	o.mark(owner, 7, store.MayHaveEffects, false)
	o.mark(second, 1, store.NoEffects, true)
	o.renew(second, 20*time.Millisecond, true)
	h.Advance(30 * time.Millisecond)
	o.started(newOwner(), longLease, false, 3)
}

func lostOwner(t *testing.T, h Harness[store.Records]) {
	o, owner, second := newOp(t, h), newOwner(), newOwner()
	o.dies(owner, true, 1)
	o.started(second, longLease, true, 2)
	o.renew(owner, longLease, false)
	o.mark(owner, 1, store.NoEffects, false)
	o.settle(owner, store.Completed, []byte("stale"), false)
	o.abandon(owner, false)
	o.settle(second, store.Completed, []byte("good"), true)
	if reply := o.begin(newOwner(), longLease, true); string(reply.Data) != "good" {
		t.Errorf("the result is %q", reply.Data)
	}
}

func lateSettle(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	o.dies(owner, false, 1)
	o.settle(owner, store.Completed, []byte("late"), true)
	if reply := o.begin(newOwner(), longLease, true); string(reply.Data) != "late" {
		t.Errorf("the result is %q", reply.Data)
	}
}

func abandons(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.abandon(owner, true)
	o.started(newOwner(), longLease, false, 1)
}

func abandonTwice(t *testing.T, h Harness[store.Records]) {
	o, owner, second := newOp(t, h), newOwner(), newOwner()
	o.started(owner, longLease, false, 1)
	o.abandon(owner, true)
	o.started(second, longLease, false, 1)
	o.abandon(owner, true)
	o.settle(second, store.Completed, nil, true)
}

func beginAfterAbandon(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	o.abandon(owner, false)
	o.want(o.begin(owner, longLease, false), store.Refused, 0)
	o.started(newOwner(), longLease, false, 1)
}

func abandonKeepsEvidence(t *testing.T, h Harness[store.Records]) {
	o, second := newOp(t, h), newOwner()
	o.dies(newOwner(), true, 1)
	o.started(second, longLease, true, 2)
	o.mark(second, 1, store.NoEffects, true)
	o.abandon(second, true)
	o.want(o.begin(newOwner(), longLease, false), store.Undecided, 2)
	o.started(newOwner(), longLease, true, 3)
}

// Also if the record is kept because of an earlier attempt.
func lateAfterAbandon(t *testing.T, h Harness[store.Records]) {
	o, second := newOp(t, h), newOwner()
	o.dies(newOwner(), true, 1)
	o.started(second, longLease, true, 2)
	o.abandon(second, true)
	o.renew(second, longLease, false)
	o.mark(second, 1, store.NoEffects, false)
	o.want(o.begin(second, longLease, true), store.Refused, 0)
	o.want(o.begin(newOwner(), longLease, false), store.Undecided, 2)
	o.started(newOwner(), longLease, true, 3)
	o.renew(second, longLease, false)

	fresh, owner := newOp(t, h), newOwner()
	fresh.started(owner, longLease, false, 1)
	fresh.abandon(owner, true)
	fresh.renew(owner, longLease, false)
	fresh.mark(owner, 1, store.NoEffects, false)
	fresh.started(newOwner(), longLease, false, 1)
}

func abandonByStranger(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.abandon(newOwner(), false)
	o.want(o.begin(newOwner(), longLease, false), store.Busy, 1)
	o.settle(owner, store.Completed, nil, true)
}

func settledIsFinal(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.settle(owner, store.Completed, []byte("kept"), true)
	o.abandon(owner, false)
	o.mark(owner, 1, store.NoEffects, false)
	o.renew(owner, longLease, false)
	if reply := o.begin(newOwner(), longLease, true); string(reply.Data) != "kept" {
		t.Errorf("the result is %q", reply.Data)
	}
}

func renews(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, 20*time.Millisecond, true, 1)
	o.renew(owner, longLease, true)
	h.Advance(30 * time.Millisecond)
	o.want(o.begin(newOwner(), longLease, true), store.Busy, 1)
	o.renew(owner, longLease, true)
}

func renewNothing(t *testing.T, h Harness[store.Records]) {
	o := newOp(t, h)
	o.renew(newOwner(), longLease, false)
	held, err := h.Store.RenewOperations(background(), nil)
	if err != nil || len(held) != 0 {
		t.Errorf("RenewOperations of none: %v, %v", held, err)
	}
}

func settleGone(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	o.settle(owner, store.Completed, []byte("kept"), true)
	reply := o.begin(newOwner(), longLease, false)
	o.want(reply, store.Settled, 1)
	if string(reply.Data) != "kept" {
		t.Errorf("the result is %q", reply.Data)
	}
}

func retentionEnds(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	req := o.request(owner, store.Completed, []byte("short"))
	req.Retention = 50 * time.Millisecond
	owned, err := h.Store.SettleOperation(background(), req)
	o.check("SettleOperation", owned, err, true)
	h.Advance(60 * time.Millisecond)
	o.started(newOwner(), longLease, false, 1)
}

func concurrentBegins(t *testing.T, h Harness[store.Records]) {
	o := newOp(t, h)
	var (
		wg            sync.WaitGroup
		started, busy atomic.Int64
	)
	for range 32 {
		wg.Go(func() {
			reply, err := h.Store.BeginOperation(background(), store.BeginRequest{
				AttemptRef: o.ref(newOwner()), Fingerprint: o.fp, Lease: longLease, Retention: time.Hour,
			})
			switch {
			case err != nil:
				t.Errorf("BeginOperation: %v", err)
			case reply.Outcome == store.Started:
				started.Add(1)
			case reply.Outcome == store.Busy:
				busy.Add(1)
			}
		})
	}
	wg.Wait()
	if started.Load() != 1 || busy.Load() != 31 {
		t.Errorf("%d started and %d found it busy, of 32", started.Load(), busy.Load())
	}
}

func shutdownCalls(t *testing.T, h Harness[store.Records]) {
	var kept, removed atomic.Int64
	failure := errors.New("not finished")
	h.Store.AtShutdown(func(context.Context) error { kept.Add(1); return failure })
	remove := h.Store.AtShutdown(func(context.Context) error { removed.Add(1); return nil })
	remove()
	if err := lifecycleOf(t, h.Store).Shutdown(background()); !errors.Is(err, failure) {
		t.Errorf("Shutdown returned %v, want the hook's error", err)
	}
	if kept.Load() != 1 || removed.Load() != 0 {
		t.Errorf("the hook was called %d times, the removed one %d times", kept.Load(), removed.Load())
	}
}

func closedGuard(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	closes(t, h.Store)
	_, err := h.Store.BeginOperation(background(), store.BeginRequest{
		AttemptRef: o.ref(owner), Fingerprint: o.fp, Lease: longLease, Retention: time.Hour,
	})
	wantErrClosed(t, err)
	_, err = h.Store.SettleOperation(background(), o.request(owner, store.Completed, nil))
	wantErrClosed(t, err)
	_, err = h.Store.AbandonOperation(background(), o.ref(owner))
	wantErrClosed(t, err)
	_, err = h.Store.MarkOperation(background(), store.MarkRequest{AttemptRef: o.ref(owner), Effects: store.MayHaveEffects, Seq: 1})
	wantErrClosed(t, err)
	_, err = h.Store.RenewOperations(background(), []store.RenewRequest{{AttemptRef: o.ref(owner), Lease: longLease, Retention: time.Hour}})
	wantErrClosed(t, err)
}
