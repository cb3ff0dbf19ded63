package storetest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

func (o op) inspect() store.OperationRecord {
	o.t.Helper()
	record, found, err := able[store.ResolvableRecords](o.t, o.h.Store).InspectOperation(background(), o.operation())
	if err != nil || !found {
		o.t.Fatalf("InspectOperation: found is %v: %v", found, err)
	}
	return record
}

func (o op) missing() {
	o.t.Helper()
	if record, found, err := able[store.ResolvableRecords](o.t, o.h.Store).InspectOperation(background(), o.operation()); err != nil || found {
		o.t.Fatalf("InspectOperation: %+v, %v, want none", record, err)
	}
}

func (o op) step(owner, name, data string, want bool) {
	o.t.Helper()
	owned, err := able[store.StepRecords](o.t, o.h.Store).RecordStep(background(), store.StepRequest{
		AttemptRef: o.ref(owner), Step: store.Step{Name: name, Data: []byte(data)},
	})
	o.check("RecordStep", owned, err, want)
}

func (o op) resolve(req store.ResolveRequest, want store.ResolveOutcome) {
	o.t.Helper()
	req.OperationRef = o.operation()
	if req.Retention == 0 {
		req.Retention = time.Hour
	}
	outcome, err := able[store.ResolvableRecords](o.t, o.h.Store).ResolveOperation(background(), req)
	if err != nil || outcome != want {
		o.t.Fatalf("ResolveOperation: %d, %v, want %d", outcome, err, want)
	}
}

func (o op) reconcile(owner string, lease time.Duration) store.BeginReply {
	o.t.Helper()
	reply, err := o.h.Store.BeginOperation(background(), store.BeginRequest{
		AttemptRef: o.ref(owner), Fingerprint: o.fp, Lease: lease, Retention: o.retention, Reconcile: true, MaxRecords: o.maxRecords,
	})
	if err != nil {
		o.t.Fatalf("BeginOperation: %v", err)
	}
	return reply
}

// inEachScope runs a test on an operation without a scope, and on one with a scope.
func inEachScope(t *testing.T, h Harness[store.Records], test func(o op)) {
	for _, scope := range []string{"", unique("scope")[:22]} {
		o := newOp(t, h)
		o.scope = scope
		test(o)
	}
}

func inspectedStates(t *testing.T, h Harness[store.Records]) {
	inEachScope(t, h, func(o op) {
		o.missing()
		owner := newOwner()
		reply, err := h.Store.BeginOperation(background(), store.BeginRequest{
			AttemptRef: o.ref(owner), Fingerprint: o.fp, Lease: longLease, Retention: time.Hour, Holder: "somebody: of a\nkind",
		})
		if err != nil || reply.Outcome != store.Started {
			t.Fatalf("%+v, %v", reply, err)
		}
		h.Advance(20 * time.Millisecond)
		r := o.inspect()
		if r.OperationRef != o.operation() || r.State != store.InFlight || r.Number != 1 || r.Effects != store.MayHaveEffects ||
			r.Holder != "somebody: of a\nkind" || r.Unresolved() || r.Age < 15*time.Millisecond || r.Changed < 15*time.Millisecond ||
			r.Lease <= 0 || r.Lease > longLease || r.Expires <= 59*time.Minute || r.Expires > time.Hour || len(r.Steps) != 0 {
			t.Errorf("in flight: %+v", r)
		}
		o.renew(owner, longLease, true)
		if again := o.inspect(); again.Version != r.Version {
			t.Errorf("a renewal changed the version from %q to %q", r.Version, again.Version)
		}
		sent := time.Now()
		o.mark(owner, 1, store.NoEffects, true)
		marked := o.inspect()
		if marked.Effects != store.NoEffects || marked.Version == r.Version || marked.Changed > time.Since(sent)+clocks || marked.Age < r.Age {
			t.Errorf("marked: %+v, before %+v", marked, r)
		}
		o.mark(owner, 2, store.EffectsInSteps, true)
		o.step(owner, "charge", "42", true)
		if r := o.inspect(); r.Effects != store.EffectsInSteps || !slices.Equal(r.Steps, []string{"charge"}) {
			t.Errorf("with a step: %+v", r)
		}
		o.renew(owner, 20*time.Millisecond, true)
		h.Advance(30 * time.Millisecond)
		if r := o.inspect(); r.State != store.InFlight || r.Lease != 0 || !r.Unresolved() {
			t.Errorf("dead: %+v", r)
		}
		o.settle(owner, store.Completed, []byte("result"), true)
		settled := o.inspect()
		if settled.State != store.Completed || settled.Status != 201 || settled.Bytes != 6 || settled.Unresolved() || settled.Lease != 0 ||
			len(settled.Steps) != 0 || settled.Age < marked.Age || settled.Changed > settled.Age {
			t.Errorf("settled: %+v", settled)
		}
		for name, change := range map[string]func(*op){
			"ID": func(o *op) { o.id = strings.Repeat("x", 22) }, "guard": func(o *op) { o.guard += "x" },
			"scope": func(o *op) { o.scope = unique("scope")[:22] },
		} {
			other := o
			change(&other)
			if record, found, err := able[store.ResolvableRecords](t, h.Store).InspectOperation(background(), other.operation()); err != nil || found {
				t.Errorf("with another %s: %+v, %v, want none", name, record, err)
			}
		}
	})
}

// unresolvedEffects tells which dead attempts leave something to resolve.
func unresolvedEffects(t *testing.T, h Harness[store.Records]) {
	for _, c := range []struct {
		what       string
		prior      bool // an earlier attempt may have had effects
		effects    store.Effects
		unresolved bool
	}{
		{"any", false, store.MayHaveEffects, true},
		{"effects in steps", false, store.EffectsInSteps, true},
		{"no effects", false, store.NoEffects, false},
		{"no effects, after an attempt that may have had some", true, store.NoEffects, true},
	} {
		inEachScope(t, h, func(o op) {
			o.guard = unique("orders")
			if c.prior {
				first := newOwner()
				o.started(first, longLease, true, 1)
				o.settle(first, store.Unknown, nil, true)
				o.number++
			}
			owner := newOwner()
			o.started(owner, longLease, true, o.number)
			o.mark(owner, 1, c.effects, true)
			o.renew(owner, 20*time.Millisecond, true)
			h.Advance(30 * time.Millisecond)
			listed := false
			for _, err := range able[store.ResolvableRecords](t, h.Store).ListUnresolved(background(), o.guard) {
				if err != nil {
					t.Fatal(err)
				}
				listed = true
			}
			if r := o.inspect(); r.Unresolved() != c.unresolved || listed != c.unresolved {
				t.Errorf("%s: %+v, listed is %v", c.what, r, listed)
			}
		})
	}
}

func stepsTakenOver(t *testing.T, h Harness[store.Records]) {
	inEachScope(t, h, func(o op) {
		owner, second, third := newOwner(), newOwner(), newOwner()
		o.started(owner, longLease, false, 1)
		o.mark(owner, 1, store.EffectsInSteps, true)
		o.step(owner, "charge", "first", true)
		o.step(owner, "charge", "second", true) // a repeat
		o.step(owner, "", "without a name", true)
		o.step(owner, "e:mail\x00", strings.Repeat("long", 20_000), true)
		o.renew(owner, 20*time.Millisecond, true)
		h.Advance(30 * time.Millisecond)
		for range 2 { // and a repeat
			reply := o.begin(second, longLease, false)
			o.want(reply, store.Started, 2)
			got := make([]string, len(reply.Steps))
			for i, s := range reply.Steps {
				got[i] = fmt.Sprintf("%q %d %.6s", s.Name, len(s.Data), s.Data)
			}
			want := []string{`"charge" 5 first`, `"" 14 withou`, `"e:mail\x00" 80000 longlo`}
			if !slices.Equal(got, want) {
				t.Errorf("taken over with %q, want %q", got, want)
			}
		}
		o.step(owner, "late", "", false)
		o.step(second, "more", "x", true)
		// The second one need not say again that its effects are in steps.
		o.renew(second, 20*time.Millisecond, true)
		h.Advance(30 * time.Millisecond)
		if reply := o.begin(third, longLease, false); reply.Outcome != store.Started || len(reply.Steps) != 4 {
			t.Errorf("taken over again: %+v", reply)
		}
		o.settle(third, store.Completed, []byte("done"), true)
		if reply := o.begin(newOwner(), longLease, false); reply.Outcome != store.Settled || string(reply.Data) != "done" {
			t.Errorf("settled after steps: %+v", reply)
		}
	})
}

func abandonLeavesSteps(t *testing.T, h Harness[store.Records]) {
	inEachScope(t, h, func(o op) {
		owner := newOwner()
		o.started(owner, longLease, false, 1)
		o.mark(owner, 1, store.EffectsInSteps, true)
		o.step(owner, "charge", "x", true)
		o.abandon(owner, true)
		o.abandon(owner, true)
		o.step(owner, "late", "x", false)
		if r := o.inspect(); r.Lease != 0 || r.Effects != store.EffectsInSteps {
			t.Errorf("abandoned: %+v", r)
		}
		reply := o.begin(newOwner(), longLease, false)
		o.want(reply, store.Started, 2)
		if len(reply.Steps) != 1 {
			t.Errorf("taken over with %+v", reply.Steps)
		}
	})
}

func stepsBounds(t *testing.T, h Harness[store.Records]) {
	o, owner := newOp(t, h), newOwner()
	o.step(owner, "of nothing", "", false)
	o.started(owner, longLease, false, 1)
	o.step(newOwner(), "of a stranger", "", false)
	for i := range store.MaxSteps {
		o.step(owner, fmt.Sprint(i), "x", true)
	}
	o.step(owner, "0", "x", true)
	_, err := able[store.StepRecords](t, h.Store).RecordStep(background(), store.StepRequest{AttemptRef: o.ref(owner), Step: store.Step{Name: "one more"}})
	if !errors.Is(err, store.ErrFull) {
		t.Errorf("more than %d steps: %v, want ErrFull", store.MaxSteps, err)
	}
	o.settle(owner, store.Completed, nil, true)
	o.step(owner, "late", "", false)
}

// unknowns are ways in which the outcome of a first attempt becomes unknown.
var unknowns = map[string]func(o op, owner string){
	"settled": func(o op, owner string) {
		o.started(owner, longLease, false, 1)
		o.settle(owner, store.Unknown, nil, true)
	},
	"dead": func(o op, owner string) { o.dies(owner, false, 1) },
	"abandoned after another": func(o op, owner string) {
		o.started(owner, longLease, true, 1)
		o.settle(owner, store.Unknown, nil, true)
		second := newOwner()
		o.started(second, longLease, true, 2)
		o.abandon(second, true)
	},
}

func reconciles(t *testing.T, h Harness[store.Records]) {
	for how, unknown := range unknowns {
		inEachScope(t, h, func(o op) {
			owner, second, third := newOwner(), newOwner(), newOwner()
			unknown(o, owner)
			number := o.inspect().Number
			o.number = number
			for range 2 { // and a repeat
				o.want(o.reconcile(second, longLease), store.ToReconcile, number)
			}
			o.want(o.reconcile(third, longLease), store.Busy, number)
			if r := o.inspect(); r.State != store.Reconciling || r.Unresolved() {
				t.Errorf("%s: reconciling: %+v", how, r)
			}
			o.renew(second, longLease, true)
			o.settle(second, store.Unknown, nil, true)
			if r := o.inspect(); !r.Unresolved() {
				t.Errorf("%s: reconciled in vain: %+v", how, r)
			}
			o.want(o.reconcile(third, 20*time.Millisecond), store.ToReconcile, number)
			h.Advance(30 * time.Millisecond) // it dies
			fourth := newOwner()
			o.want(o.reconcile(fourth, longLease), store.ToReconcile, number)
			o.abandon(fourth, true)
			fifth := newOwner()
			o.want(o.reconcile(fifth, longLease), store.ToReconcile, number)
			o.resolve(store.ResolveRequest{Owner: fourth, State: store.Completed}, store.RecordChanged)
			o.resolve(store.ResolveRequest{Owner: fifth, State: store.Completed, Status: 200, Data: []byte("found")}, store.Resolved)
			o.resolve(store.ResolveRequest{Owner: fifth, State: store.Completed, Status: 200, Data: []byte("again")}, store.Resolved)
			reply := o.reconcile(newOwner(), longLease)
			if reply.Outcome != store.Settled || string(reply.Data) != "found" || reply.Status != 200 || reply.Number != number {
				t.Errorf("%s: reconciled: %+v", how, reply)
			}
			o.renew(fifth, longLease, false)
			o.settle(owner, store.Completed, []byte("late"), false)
		})
	}
	// A known outcome is not reconciled.
	o, owner := newOp(t, h), newOwner()
	o.started(owner, longLease, false, 1)
	o.mark(owner, 1, store.NoEffects, true)
	o.renew(owner, 20*time.Millisecond, true)
	h.Advance(30 * time.Millisecond)
	o.want(o.reconcile(newOwner(), longLease), store.Started, 2)
}

func resolves(t *testing.T, h Harness[store.Records]) {
	for how, unknown := range unknowns {
		for _, state := range []store.RecordState{store.Completed, store.NotRetained, store.InFlight} {
			inEachScope(t, h, func(o op) {
				owner, resolver := newOwner(), newOwner()
				unknown(o, owner)
				seen := o.inspect()
				req := store.ResolveRequest{Owner: resolver, Version: seen.Version, State: state, Status: 202}
				if state == store.Completed {
					req.Data = []byte("what happened")
				}
				o.resolve(req, store.Resolved)
				o.resolve(req, store.Resolved) // a repeat
				if r := o.inspect(); r.Unresolved() || r.Version == seen.Version {
					t.Errorf("%s: resolved as %d: %+v", how, state, r)
				}
				other := req
				other.Owner = newOwner()
				o.resolve(other, store.RecordChanged) // by what was seen before
				o.settle(owner, store.Completed, []byte("late"), false)
				next := newOwner()
				reply := o.begin(next, longLease, false)
				switch {
				case state == store.InFlight:
					o.want(reply, store.Started, seen.Number+1)
					if reply.Effects != store.MayHaveEffects || len(reply.Steps) != 0 {
						t.Errorf("%s: the next attempt: %+v", how, reply)
					}
					o.abandon(next, true) // nothing has happened
					o.missing()
				case reply.Outcome != store.Settled || reply.State != state || reply.Status != 202 || string(reply.Data) != string(req.Data):
					t.Errorf("%s: resolved as %d: %+v", how, state, reply)
				}
			})
		}
	}
}

func resolvesNothingElse(t *testing.T, h Harness[store.Records]) {
	inEachScope(t, h, func(o op) {
		req := store.ResolveRequest{Owner: newOwner(), Version: "?", State: store.NotRetained, Status: 200}
		o.resolve(req, store.RecordChanged) // there is none
		owner := newOwner()
		o.started(owner, longLease, false, 1)
		req.Version = o.inspect().Version
		o.resolve(req, store.RecordInUse)
		o.resolve(store.ResolveRequest{Owner: owner, State: store.NotRetained}, store.RecordChanged) // it does not reconcile
		o.mark(owner, 1, store.MayHaveEffects, true)
		o.renew(owner, 20*time.Millisecond, true)
		h.Advance(30 * time.Millisecond)
		o.resolve(req, store.RecordChanged)
		req.Version = o.inspect().Version
		o.settle(owner, store.Completed, []byte("result"), true)
		o.resolve(req, store.RecordChanged)
		req.Version = o.inspect().Version
		o.resolve(req, store.RecordResolved)
		if reply := o.begin(newOwner(), longLease, false); string(reply.Data) != "result" {
			t.Errorf("the result is gone: %+v", reply)
		}
	})
}

func listsUnresolved(t *testing.T, h Harness[store.Records]) {
	list := func(guard string) (ids []string) {
		for r, err := range able[store.ResolvableRecords](t, h.Store).ListUnresolved(background(), guard) {
			if err != nil {
				t.Fatalf("ListUnresolved: %v", err)
			}
			if r.Guard != guard || !r.Unresolved() || r.Version == "" {
				t.Errorf("listed %+v", r)
			}
			ids = append(ids, r.ID)
		}
		slices.Sort(ids)
		return ids
	}
	var want []string
	guard := unique("orders: of") + " a kind"
	for range 3 {
		inEachScope(t, h, func(o op) {
			o.guard = guard
			for _, unknown := range unknowns {
				o.id = newOp(t, h).id
				unknown(o, newOwner())
				want = append(want, o.id)
			}
			for _, known := range []func(owner string){
				func(owner string) { o.started(owner, longLease, false, 1) },
				func(owner string) {
					o.started(owner, longLease, false, 1)
					o.settle(owner, store.Completed, nil, true)
				},
			} {
				o.id = newOp(t, h).id
				known(newOwner())
			}
		})
	}
	slices.Sort(want)
	if got := list(guard); !slices.Equal(got, want) {
		t.Errorf("listed %q, want %q", got, want)
	}
	for _, other := range []string{"kind", "of a kind", guard[:len(guard)-1] + "?", "*"} {
		if got := list(other); len(got) != 0 {
			t.Errorf("%q: listed %q", other, got)
		}
	}
	able[store.ResolvableRecords](t, h.Store).ListUnresolved(background(), guard)(func(_ store.OperationRecord, err error) bool { // the caller may leave
		if err != nil {
			t.Errorf("ListUnresolved: %v", err)
		}
		return false
	})
}

// awaiting begins to await the end of an attempt.
func (o op) awaiting() *call {
	awaited := able[store.AwaitedRecords](o.t, o.h.Store)
	return begin(o.t, o.h.Advance, "AwaitOperation", func() any { return o.inspect() }, func(ctx context.Context) (store.Grant, error) {
		return store.Grant{}, awaited.AwaitOperation(ctx, o.operation())
	})
}

func awaitsEnd(t *testing.T, h Harness[store.Records]) {
	inEachScope(t, h, func(o op) {
		for name, end := range map[string]func(owner string){
			"settled":   func(owner string) { o.settle(owner, store.Completed, nil, true) },
			"unknown":   func(owner string) { o.settle(owner, store.Unknown, nil, true) },
			"abandoned": func(owner string) { o.abandon(owner, true) },
			"kept for its steps": func(owner string) {
				o.mark(owner, 1, store.EffectsInSteps, true)
				o.abandon(owner, true)
			},
			"dead": func(owner string) { o.renew(owner, 20*time.Millisecond, true) },
		} {
			o.id = newOp(t, h).id
			owner := newOwner()
			o.started(owner, 10*time.Second, false, 1)
			calls := []*call{o.awaiting(), o.awaiting(), o.awaiting()}
			h.Advance(5 * time.Millisecond)
			calls[0].waits()
			calls[2].cancel()
			calls[2].fails(context.Canceled)
			end(owner)
			began := time.Now()
			calls[0].fails(nil)
			calls[1].fails(nil)
			if took := time.Since(began); took > 2*time.Second && name != "dead" {
				t.Errorf("%s: await returned after %v", name, took)
			}
		}
	})
}

func awaitsNothing(t *testing.T, h Harness[store.Records]) {
	inEachScope(t, h, func(o op) {
		wait := func(step string) {
			t.Helper()
			ctx, cancel := context.WithTimeout(background(), 5*time.Second/2) // stores that wait check after three seconds
			defer cancel()
			if err := able[store.AwaitedRecords](t, h.Store).AwaitOperation(ctx, o.operation()); err != nil {
				t.Errorf("%s: %v", step, err)
			}
		}
		wait("none")
		owner := newOwner()
		o.dies(owner, false, 1)
		wait("dead")
		o.settle(owner, store.Completed, nil, true)
		wait("settled")
	})
}
