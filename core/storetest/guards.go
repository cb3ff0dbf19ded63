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

	"github.com/lockkeeper/lockkeeper/core"
	"github.com/lockkeeper/lockkeeper/core/guard"
)

// Guards is the contract of guard.Store.
func Guards(t *testing.T, run Runner) {
	runAll(t, run, []testCase{
		{"one attempt begins, others find it busy", oneBegins},
		{"begin recognises its own repeat", beginTwice},
		{"a completed operation is replayed, byte for byte", replays},
		{"settle recognises its own repeat", settleTwice},
		{"another fingerprint is a mismatch in every state", mismatches},
		{"a result that is not retained leaves its status", notRetained},
		{"an unknown outcome stays unknown", staysUnknown},
		{"an unknown outcome may be re-run where that is allowed", unknownRerun},
		{"a dead attempt that is dirty is undecided, for ever", deadDirty},
		{"a dead attempt is taken over where re-runs are allowed", deadRerun},
		{"a dead attempt that is clean is taken over", deadClean},
		{"marked dirty again, it is not", deadDirtyAgain},
		{"who was taken over owns nothing", lostOwner},
		{"who died and came back may settle while nobody took over", lateSettle},
		{"abandon gives the operation back", abandons},
		{"abandon recognises its own repeat", abandonTwice},
		{"a begin after its own abandon is refused", beginAfterAbandon},
		{"abandon keeps the evidence of an earlier attempt", abandonKeepsEvidence},
		{"abandon by another owner changes nothing", abandonByStranger},
		{"a settled operation cannot be abandoned, marked or renewed", settledIsFinal},
		{"renewal extends the lease", renews},
		{"renewal of nothing says so", renewNothing},
		{"settle restores a record that is gone", settleGone},
		{"retention ends the record", retentionEnds},
		{"one of many concurrent begins starts", concurrentBegins},
		{"shutdown calls what was registered", shutdownCalls},
		{"a closed store is unavailable", closedGuard},
	})
}

const longLease = time.Minute

func oneBegins(t *testing.T, h Harness) {
	o := newOp(t, h)
	o.started(newOwner(), longLease, true, 1)
	reply := o.begin(newOwner(), longLease, true)
	o.want(reply, guard.Busy, 1)
	if reply.Remaining <= 0 || reply.Remaining > longLease {
		t.Errorf("%v remain of a lease of %v", reply.Remaining, longLease)
	}
	newOp(t, h).started(newOwner(), longLease, false, 1)
}

func beginTwice(t *testing.T, h Harness) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.started(owner, longLease, false, 1)
}

func replays(t *testing.T, h Harness) {
	all := make([]byte, 256)
	for i := range all {
		all[i] = byte(i)
	}
	for _, data := range [][]byte{nil, all, bytes.Repeat(all, 256)} {
		o, owner := newOp(t, h), newOwner()
		o.started(owner, longLease, false, 1)
		o.settle(owner, guard.Completed, data, true)
		for _, rerun := range []bool{false, true} {
			reply := o.begin(newOwner(), longLease, rerun)
			o.want(reply, guard.Settled, 1)
			if reply.State != guard.Completed || reply.Status != 201 || !bytes.Equal(reply.Data, data) {
				t.Errorf("replay of %d bytes: state %d, status %d, %d bytes", len(data), reply.State, reply.Status, len(reply.Data))
			}
		}
	}
}

func settleTwice(t *testing.T, h Harness) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.settle(owner, guard.Completed, []byte("first"), true)
	o.settle(owner, guard.Completed, []byte("second"), true)
	if reply := o.begin(newOwner(), longLease, false); string(reply.Data) != "first" {
		t.Errorf("the repeat overwrote the result: %q", reply.Data)
	}
}

func mismatches(t *testing.T, h Harness) {
	o, owner := newOp(t, h), newOwner()
	other := o
	other.fp = strings.Repeat("g", 43)
	o.started(owner, longLease, false, 1)
	other.want(other.begin(newOwner(), longLease, true), guard.Mismatched, 1)
	o.settle(owner, guard.Completed, nil, true)
	other.want(other.begin(newOwner(), longLease, true), guard.Mismatched, 1)

	o = newOp(t, h)
	other.id = o.id
	o.dies(newOwner(), true, 1)
	other.want(other.begin(newOwner(), longLease, true), guard.Mismatched, 1)
	o.started(newOwner(), longLease, true, 2)
}

func notRetained(t *testing.T, h Harness) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.settle(owner, guard.NotRetained, nil, true)
	reply := o.begin(newOwner(), longLease, true)
	o.want(reply, guard.Settled, 1)
	if reply.State != guard.NotRetained || reply.Status != 201 {
		t.Errorf("got state %d, status %d", reply.State, reply.Status)
	}
}

func staysUnknown(t *testing.T, h Harness) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.settle(owner, guard.Unknown, nil, true)
	for range 2 {
		reply := o.begin(newOwner(), longLease, false)
		o.want(reply, guard.Settled, 1)
		if reply.State != guard.Unknown {
			t.Errorf("got state %d", reply.State)
		}
	}
}

func unknownRerun(t *testing.T, h Harness) {
	o, owner, second := newOp(t, h), newOwner(), newOwner()
	o.started(owner, longLease, true, 1)
	o.settle(owner, guard.Unknown, nil, true)
	o.started(second, longLease, true, 2)
	o.settle(owner, guard.Completed, nil, false)
	o.settle(second, guard.Completed, nil, true)
}

func deadDirty(t *testing.T, h Harness) {
	o := newOp(t, h)
	o.dies(newOwner(), false, 1)
	for range 2 {
		o.want(o.begin(newOwner(), longLease, false), guard.Undecided, 1)
		h.Advance(30 * time.Millisecond)
	}
}

func deadRerun(t *testing.T, h Harness) {
	o := newOp(t, h)
	o.dies(newOwner(), true, 1)
	o.dies(newOwner(), true, 2)
	o.started(newOwner(), longLease, true, 3)
	o.want(o.begin(newOwner(), longLease, true), guard.Busy, 3)
}

func deadClean(t *testing.T, h Harness) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.mark(owner, false, true)
	o.renew(owner, 20*time.Millisecond, true)
	h.Advance(30 * time.Millisecond)
	second := newOwner()
	o.started(second, longLease, false, 2)
	// The second one begins dirty, as every attempt does.
	o.renew(second, 20*time.Millisecond, true)
	h.Advance(30 * time.Millisecond)
	o.want(o.begin(newOwner(), longLease, false), guard.Undecided, 2)
}

func deadDirtyAgain(t *testing.T, h Harness) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.mark(owner, false, true)
	o.mark(owner, true, true)
	o.renew(owner, 20*time.Millisecond, true)
	h.Advance(30 * time.Millisecond)
	o.want(o.begin(newOwner(), longLease, false), guard.Undecided, 1)
}

func lostOwner(t *testing.T, h Harness) {
	o, owner, second := newOp(t, h), newOwner(), newOwner()
	o.dies(owner, true, 1)
	o.started(second, longLease, true, 2)
	o.renew(owner, longLease, false)
	o.mark(owner, false, false)
	o.settle(owner, guard.Completed, []byte("stale"), false)
	o.abandon(owner, false)
	o.settle(second, guard.Completed, []byte("good"), true)
	if reply := o.begin(newOwner(), longLease, true); string(reply.Data) != "good" {
		t.Errorf("the result is %q", reply.Data)
	}
}

func lateSettle(t *testing.T, h Harness) {
	o, owner := newOp(t, h), newOwner()
	o.dies(owner, false, 1)
	o.settle(owner, guard.Completed, []byte("late"), true)
	if reply := o.begin(newOwner(), longLease, true); string(reply.Data) != "late" {
		t.Errorf("the result is %q", reply.Data)
	}
}

func abandons(t *testing.T, h Harness) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.abandon(owner, true)
	o.started(newOwner(), longLease, false, 1)
}

func abandonTwice(t *testing.T, h Harness) {
	o, owner, second := newOp(t, h), newOwner(), newOwner()
	o.started(owner, longLease, false, 1)
	o.abandon(owner, true)
	o.started(second, longLease, false, 1)
	o.abandon(owner, true)
	o.settle(second, guard.Completed, nil, true)
}

func beginAfterAbandon(t *testing.T, h Harness) {
	o, owner := newOp(t, h), newOwner()
	o.abandon(owner, false)
	o.want(o.begin(owner, longLease, false), guard.Refused, 0)
	o.started(newOwner(), longLease, false, 1)
}

func abandonKeepsEvidence(t *testing.T, h Harness) {
	o, second := newOp(t, h), newOwner()
	o.dies(newOwner(), true, 1)
	o.started(second, longLease, true, 2)
	o.mark(second, false, true)
	o.abandon(second, true)
	o.want(o.begin(newOwner(), longLease, false), guard.Undecided, 2)
	o.started(newOwner(), longLease, true, 3)
}

func abandonByStranger(t *testing.T, h Harness) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.abandon(newOwner(), false)
	o.want(o.begin(newOwner(), longLease, false), guard.Busy, 1)
	o.settle(owner, guard.Completed, nil, true)
}

func settledIsFinal(t *testing.T, h Harness) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.settle(owner, guard.Completed, []byte("kept"), true)
	o.abandon(owner, false)
	o.mark(owner, false, false)
	o.renew(owner, longLease, false)
	if reply := o.begin(newOwner(), longLease, true); string(reply.Data) != "kept" {
		t.Errorf("the result is %q", reply.Data)
	}
}

func renews(t *testing.T, h Harness) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, 20*time.Millisecond, true, 1)
	o.renew(owner, longLease, true)
	h.Advance(30 * time.Millisecond)
	o.want(o.begin(newOwner(), longLease, true), guard.Busy, 1)
	o.renew(owner, longLease, true)
}

func renewNothing(t *testing.T, h Harness) {
	o := newOp(t, h)
	o.renew(newOwner(), longLease, false)
	held, err := h.Store.RenewOperations(background(), nil)
	if err != nil || len(held) != 0 {
		t.Errorf("RenewOperations of none: %v, %v", held, err)
	}
}

func settleGone(t *testing.T, h Harness) {
	o, owner := newOp(t, h), newOwner()
	o.settle(owner, guard.Completed, []byte("kept"), true)
	reply := o.begin(newOwner(), longLease, false)
	o.want(reply, guard.Settled, 1)
	if string(reply.Data) != "kept" {
		t.Errorf("the result is %q", reply.Data)
	}
}

func retentionEnds(t *testing.T, h Harness) {
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	req := o.request(owner, guard.Completed, []byte("short"))
	req.Retention = 50 * time.Millisecond
	owned, err := h.Store.SettleOperation(background(), req)
	o.check("SettleOperation", owned, err, true)
	h.Advance(60 * time.Millisecond)
	o.started(newOwner(), longLease, false, 1)
}

func concurrentBegins(t *testing.T, h Harness) {
	o := newOp(t, h)
	var (
		wg            sync.WaitGroup
		started, busy atomic.Int64
	)
	for range 32 {
		wg.Go(func() {
			reply, err := h.Store.BeginOperation(background(), guard.BeginRequest{
				ID: o.id, Owner: newOwner(), Fingerprint: o.fp, Lease: longLease, Retention: time.Hour,
			})
			switch {
			case err != nil:
				t.Errorf("BeginOperation: %v", err)
			case reply.Outcome == guard.Started:
				started.Add(1)
			case reply.Outcome == guard.Busy:
				busy.Add(1)
			}
		})
	}
	wg.Wait()
	if started.Load() != 1 || busy.Load() != 31 {
		t.Errorf("%d started and %d found it busy, of 32", started.Load(), busy.Load())
	}
}

func shutdownCalls(t *testing.T, h Harness) {
	var kept, removed atomic.Int64
	failure := errors.New("not finished")
	h.Store.AtShutdown(func(context.Context) error { kept.Add(1); return failure })
	remove := h.Store.AtShutdown(func(context.Context) error { removed.Add(1); return nil })
	remove()
	if err := h.Store.Shutdown(background()); !errors.Is(err, failure) {
		t.Errorf("Shutdown returned %v, want the hook's error", err)
	}
	if kept.Load() != 1 || removed.Load() != 0 {
		t.Errorf("the hook was called %d times, the removed one %d times", kept.Load(), removed.Load())
	}
}

func closedGuard(t *testing.T, h Harness) {
	o, owner := newOp(t, h), newOwner()
	if err := h.Store.Close(); err != nil {
		t.Fatal(err)
	}
	wantClosed(t, h)
	_, err := h.Store.BeginOperation(background(), guard.BeginRequest{
		ID: o.id, Owner: owner, Fingerprint: o.fp, Lease: longLease, Retention: time.Hour,
	})
	wantErrClosed(t, err)
	_, err = h.Store.SettleOperation(background(), o.request(owner, guard.Completed, nil))
	wantErrClosed(t, err)
	_, err = h.Store.AbandonOperation(background(), o.id, owner)
	wantErrClosed(t, err)
	_, err = h.Store.MarkOperation(background(), o.id, owner, true)
	wantErrClosed(t, err)
	_, err = h.Store.RenewOperations(background(), []guard.RenewRequest{{ID: o.id, Owner: owner, Lease: longLease, Retention: time.Hour}})
	wantErrClosed(t, err)
}

// wantClosed checks what every store does once closed.
func wantClosed(t *testing.T, h Harness) {
	t.Helper()
	wantErrClosed(t, h.Store.Ping(background()))
	if err := h.Store.Close(); err != nil {
		t.Errorf("a second Close: %v", err)
	}
}

func wantErrClosed(t *testing.T, err error) {
	t.Helper()
	if !errors.Is(err, core.ErrClosed) || !errors.Is(err, core.ErrUnavailable) {
		t.Errorf("got %v, want core.ErrClosed", err)
	}
}
