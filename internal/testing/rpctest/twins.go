package rpctest

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// twins are the calls of a client whose server guards them by user, in front of a gate.
type twins struct {
	gate
	service Service
	store   *storetest.Faulty
	guard   *guard.Guard
	client  Client
}

func newTwins(t *rig, opts ...policy.RPCIdempotencyOption) *twins {
	w := &twins{gate: newGate(), store: newStore(t)}
	w.guard = NewGuard(t, w.store, guard.WithMaxResult(100))
	w.service.make = w.make
	w.client = serve(t, &w.service, t.Idempotency(w.guard, byUser(t), opts...))
	return w
}

// met waits until n calls have asked the store for their operation.
func (w *twins) met(t *rig, n int) {
	t.Helper()
	reaches(t, func() int { return w.store.Calls(storetest.BeginOperation) }, n)
}

// sends sends a call, and returns what has its result and its header.
func (w *twins) sends(ctx context.Context, t *rig) func() (answer, http.Header) {
	var header http.Header
	answers := make(chan answer, 1)
	go func() {
		thing, err := w.client.Make(ctx, &Request{ID: "1"}, intoHeader(&header))
		answers <- answer{thing, err}
	}()
	return func() (answer, http.Header) {
		t.Helper()
		a := result(t, answers)
		return a, header
	}
}

// names checks that a refusal names an operation of the guard.
func (w *twins) names(t *rig, err error) {
	t.Helper()
	id := t.DetailsOf(err).Info["operation"]
	if record, err := w.guard.InspectID(t.Context(), id); err != nil || record.ID != id {
		t.Errorf("it names %q: %v", id, err)
	}
}

// With a key, and deduplicated without one.
func twinsWaitAndGetTheAnswer(t *rig) {
	for _, ctx := range []context.Context{keyed(t, "k"), with(t, "x-user", "u")} {
		w := newTwins(t, policy.Wait(patience), policy.Dedupe(time.Minute))
		first := w.sends(ctx, t)
		w.runs(t)
		var all []func() (answer, http.Header)
		for range 16 { // as many as may wait
			all = append(all, w.sends(ctx, t))
		}
		w.met(t, 17)
		w.let()
		a, header := first()
		is(t, a.thing, a.err, "done")
		if replayed(header) {
			t.Error("the first answer is marked as replayed")
		}
		for _, twin := range all {
			a, header := twin()
			is(t, a.thing, a.err, "done")
			if !replayed(header) {
				t.Errorf("header %v", header)
			}
		}
		w.service.ran(t, 1)
	}
}

func aTwinThatWaitsRunsIfTheAttemptIsReleased(t *rig) {
	w := newTwins(t, policy.Wait(patience), t.ReleaseCodes(Unavailable))
	w.service.make = func(_ context.Context, r *Request) (*Thing, error) {
		if w.service.runs.Load() > 1 {
			return &Thing{ID: r.ID, Text: "second"}, nil
		}
		w.pass()
		return nil, failure(t, Unavailable, "shed")
	}
	first := w.sends(keyed(t, "k"), t)
	w.runs(t)
	second, third := w.sends(keyed(t, "k"), t), w.sends(keyed(t, "k"), t)
	w.met(t, 3)
	w.let()
	if a, _ := first(); t.CodeOf(a.err) != Unavailable {
		t.Errorf("%v", a.err)
	}
	replays := 0
	for _, twin := range []func() (answer, http.Header){second, third} {
		a, header := twin()
		is(t, a.thing, a.err, "second")
		if replayed(header) {
			replays++
		}
	}
	if replays != 1 {
		t.Errorf("%d replays", replays)
	}
	w.service.ran(t, 2)
}

// What became of an attempt is what a twin gets that waits.
func aTwinThatWaitsIsRefused(t *rig) {
	for want, end := range map[policy.Reason]func(w *twins) (*Thing, error){
		policy.ResponseNotRetained: func(*twins) (*Thing, error) {
			return &Thing{Text: fmt.Sprintf("%0200d", 0)}, nil
		},
		policy.OutcomeUnknown: func(*twins) (*Thing, error) { panic("fails") },
		policy.ReducedCapacity: func(w *twins) (*Thing, error) {
			w.store.Break(storetest.BeginOperation, storetest.Down)
			return &Thing{}, nil
		},
	} {
		w := newTwins(t, policy.Wait(patience))
		w.service.make = func(context.Context, *Request) (*Thing, error) {
			w.pass()
			return end(w)
		}
		first := w.sends(keyed(t, "k"), t)
		w.runs(t)
		twin := w.sends(keyed(t, "k"), t)
		reaches(t, func() int { return w.store.Calls(storetest.AwaitOperation) }, 1)
		w.let()
		first()
		a, _ := twin()
		denies(t, a.err, want)
		if want == policy.OutcomeUnknown {
			w.names(t, a.err)
		}
		w.service.ran(t, 1)
	}
}

func aTwinThatHasWaitedForLongEnough(t *rig) {
	w := newTwins(t, policy.Wait(50*time.Millisecond))
	first := w.sends(keyed(t, "k"), t)
	w.runs(t)
	began := time.Now()
	a, _ := w.sends(keyed(t, "k"), t)()
	denies(t, a.err, policy.InFlight)
	w.names(t, a.err)
	if waited := time.Since(began); waited < 50*time.Millisecond {
		t.Errorf("refused after %v", waited)
	}
	w.let()
	a, _ = first()
	is(t, a.thing, a.err, "done")
}

func moreTwinsThanMayWait(t *rig) {
	w := newTwins(t, policy.Wait(patience), policy.MaxWaiting(2))
	first := w.sends(keyed(t, "k"), t)
	w.runs(t)
	answers := make(chan answer, 7)
	for range cap(answers) {
		go func() {
			thing, err := w.client.Make(keyed(t, "k"), &Request{ID: "1"})
			answers <- answer{thing, err}
		}()
	}
	for range cap(answers) - 2 {
		denies(t, result(t, answers).err, policy.InFlight)
	}
	w.let()
	a, _ := first()
	is(t, a.thing, a.err, "done")
	for range 2 {
		a := result(t, answers)
		is(t, a.thing, a.err, "done")
	}
	w.service.ran(t, 1)
}

// A call that is cancelled waits no longer, nor one whose guard is closed.
func aTwinStopsWaiting(t *rig) {
	w := newTwins(t, policy.Wait(time.Minute))
	inside := make(chan struct{}, 10)
	outer := t.Around(func(ctx context.Context, handler func(context.Context) error) error {
		defer func() { inside <- struct{}{} }()
		return handler(ctx)
	})
	w.client = serve(t, &w.service, outer, t.Idempotency(w.guard, byUser(t), policy.Wait(time.Minute)))
	first := w.sends(keyed(t, "k"), t)
	w.runs(t)
	ctx, leave := context.WithCancel(keyed(t, "k"))
	twin := w.sends(ctx, t)
	w.met(t, 2)
	leave()
	if a, _ := twin(); t.CodeOf(a.err) != Canceled {
		t.Errorf("%v", a.err)
	}
	select {
	case <-inside:
	case <-time.After(patience):
		t.Error("it still waits")
	}

	twin = w.sends(keyed(t, "k"), t)
	w.met(t, 3)
	closed := make(chan error, 1)
	go func() { closed <- w.guard.Close() }()
	a, _ := twin()
	denies(t, a.err, policy.ReducedCapacity)
	w.let()
	a, _ = first()
	is(t, a.thing, a.err, "done")
	if err := <-closed; err != nil {
		t.Error(err)
	}
	w.service.ran(t, 1)
}

func callsWithoutAKeyAreDeduplicated(t *rig) {
	var s Service
	client := guarded(t, &s, policy.Dedupe(time.Minute))
	call := func(user, key string, r *Request, want string) {
		t.Helper()
		pairs := []string{"x-user", user}
		if key != "" {
			pairs = append(pairs, "idempotency-key", key)
		}
		thing, err := client.Make(with(t, pairs...), r)
		is(t, thing, err, want)
	}
	for range 2 {
		call("u", "", &Request{ID: "1"}, "run 1")
		call("u", "", &Request{ID: "2"}, "run 2")
		call("v", "", &Request{ID: "1"}, "run 3")
		call("u", "k", &Request{ID: "1"}, "run 4")
		call("u", "", &Request{ID: "1", RequestID: "k2"}, "run 5") // it has a key
	}
	ok(t, client.Get(with(t, "x-user", "u"))) // it has no side effects
	_, err := client.Make(t.Context(), &Request{ID: "1"})
	denies(t, err, policy.InternalError)
	if stream, err := client.Watch(with(t, "x-user", "u"), &Request{ID: "1"}); err != nil {
		t.Error(err)
	} else if _, err := stream.Recv(); err != nil { // streams without a key run
		t.Error(err)
	}
	s.ran(t, 7)

	// After the window it is a new call.
	client = guarded(t, &s, policy.Dedupe(time.Second))
	began := time.Now()
	call("u", "", &Request{ID: "1"}, "run 8")
	for s.runs.Load() == 8 && time.Since(began) < patience {
		<-time.After(20 * time.Millisecond)
		if _, err := client.Make(with(t, "x-user", "u"), &Request{ID: "1"}); err != nil {
			t.Fatal(err)
		}
	}
	if took := time.Since(began); took < time.Second || took >= patience {
		t.Errorf("a new one after %v", took)
	}
}
