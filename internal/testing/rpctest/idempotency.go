package rpctest

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"sync"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func byUser(t *rig) Scope { return t.ScopeBy(t.ByContext(UserKey{})) }

// guarded returns a client of a server that guards calls by user.
func guarded(t *rig, s *Service, opts ...policy.RPCIdempotencyOption) Client {
	t.Helper()
	return serve(t, s, t.Idempotency(NewGuard(t, newStore(t)), byUser(t), opts...))
}

// keyed is the context of a call by user u with this key.
func keyed(t *rig, key string) context.Context {
	return with(t, "x-user", "u", "idempotency-key", key)
}

// replayed reports whether an answer is a replay.
func replayed(header http.Header) bool {
	values := header.Values("idempotency-replayed")
	return len(values) == 1 && values[0] == "true"
}

func twinGetsTheSameAnswer(t *rig) {
	s := Service{}
	s.make = func(ctx context.Context, r *Request) (*Thing, error) {
		t.SetHeader(ctx, "x-made", r.ID, "x-made", "again")
		if name := t.Traits().Binary; name != "" {
			t.SetHeader(ctx, name, "a, b")
		}
		t.SendHeader(ctx, "x-sent", "1")
		t.SetTrailer(ctx, "x-cost", "5")
		return &Thing{ID: r.ID, Text: "run " + strings.Repeat("1", int(s.runs.Load()))}, nil
	}
	client := guarded(t, &s)
	r := &Request{ID: "1", Amount: 5, Owner: "o"}
	for n, key := range []string{`"k"`, "k", `"k"`} { // quoted and bare are the same
		var header, trailer http.Header
		thing, err := client.Make(keyed(t, key), r, intoHeader(&header), intoTrailer(&trailer))
		is(t, thing, err, "run 1")
		if replayed(header) != (n > 0) || strings.Join(header.Values("x-made"), "|") != "1|again" || len(header.Values("x-sent")) != 1 ||
			len(trailer.Values("x-cost")) != 1 || thing.ID != "1" {
			t.Errorf("time %d: %v, header %v, trailer %v", n, thing, header, trailer)
		}
	}
	thing, err := client.Make(keyed(t, "other"), r)
	is(t, thing, err, "run 11")
	s.ran(t, 2)
}

func anErrorIsReplayedWithItsDetails(t *rig) {
	var s Service
	s.make = func(ctx context.Context, _ *Request) (*Thing, error) {
		t.SetHeader(ctx, "x-header", "of the answer")
		t.SetTrailer(ctx, "x-trailer", "of the answer, too")
		return nil, t.Failure(FailedPrecondition, "sold out", Details{
			Stock: "cart/1", Reason: "SOLD_OUT", Domain: "shop", Meta: http.Header{"X-Meta": {"of the error"}},
		})
	}
	client := guarded(t, &s)
	for n := range 2 {
		var header, trailer http.Header
		_, err := client.Make(keyed(t, "k"), &Request{}, intoHeader(&header), intoTrailer(&trailer))
		if d := t.DetailsOf(err); t.CodeOf(err) != FailedPrecondition || d.Message != "sold out" ||
			d.Stock != "cart/1" || d.Reason != "SOLD_OUT" || d.Domain != "shop" {
			t.Errorf("time %d: %v, %+v", n, err, d)
		}
		for name, want := range map[string]string{
			"X-Meta": "of the error", "X-Header": "of the answer", "X-Trailer": "of the answer, too",
		} {
			if name == "X-Meta" && !t.Traits().ErrorMetadata {
				continue
			}
			if got := slices.Concat(header[name], trailer[name]); len(got) == 0 || got[0] != want {
				t.Errorf("time %d: %s is %q, want %q", n, name, got, want)
			}
		}
		if replayed(header) != (n == 1) {
			t.Errorf("time %d: header %v", n, header)
		}
	}
	s.ran(t, 1)
}

func scopesAreSeparate(t *rig) {
	var s Service
	client := guarded(t, &s)
	thing, err := client.Make(with(t, "x-user", "u", "idempotency-key", "k"), &Request{})
	is(t, thing, err, "run 1")
	thing, err = client.Make(with(t, "x-user", "v", "idempotency-key", "k"), &Request{})
	is(t, thing, err, "run 2")
	_, err = client.Make(with(t, "idempotency-key", "k"), &Request{})
	denies(t, err, policy.InternalError) // authentication has let it through
	s.ran(t, 2)

	client = serve(t, &s, t.Idempotency(NewGuard(t, newStore(t)), t.Unscoped()))
	for _, user := range []string{"u", "v"} {
		thing, err = client.Make(with(t, "x-user", user, "idempotency-key", "k"), &Request{})
		is(t, thing, err, "run 3")
	}
}

func keyOfAnotherCall(t *rig) {
	var s Service
	client := guarded(t, &s)
	if _, err := client.Make(keyed(t, "k"), &Request{ID: "1"}); err != nil {
		t.Fatal(err)
	}
	_, err := client.Make(keyed(t, "k"), &Request{ID: "2"})
	denies(t, err, policy.KeyReused)
	s.ran(t, 1)
}

func fullScope(t *rig) {
	var s Service
	client := serve(t, &s, t.Idempotency(NewGuard(t, newStore(t), guard.WithMaxPerScope(1)), byUser(t), policy.RunUnprotected()))
	call := func(user, key, want string) {
		t.Helper()
		thing, err := client.Make(with(t, "x-user", user, "idempotency-key", key), &Request{})
		is(t, thing, err, want)
	}
	call("u", "k1", "run 1")
	_, err := client.Make(keyed(t, "k2"), &Request{})
	denies(t, err, policy.KeyQuotaExceeded)
	if quota := t.DetailsOf(err).Quota; !slices.Equal(quota, []string{"guard:orders"}) {
		t.Errorf("QuotaFailure is %v", quota)
	}
	call("u", "k1", "run 1")
	call("v", "k2", "run 2")
}

func twinInFlight(t *rig) {
	g := newGate()
	s := Service{make: g.make}
	client := guarded(t, &s)
	first := making(keyed(t, "k"), t, client, &Request{})
	g.runs(t)
	_, err := client.Make(keyed(t, "k"), &Request{})
	denies(t, err, policy.InFlight)
	g.let()
	a := result(t, first)
	is(t, a.thing, a.err, "done")
	thing, err := client.Make(keyed(t, "k"), &Request{})
	is(t, thing, err, "done")
	g.idle(t)
}

func keyInTheFieldOfAIP155(t *rig) {
	var s Service
	client := guarded(t, &s, policy.Required())
	user := with(t, "x-user", "u")
	request := func(id string) *Request { return &Request{RequestID: id} }
	for range 2 {
		thing, err := client.Make(user, request("k"))
		is(t, thing, err, "run 1")
	}
	thing, err := client.Make(keyed(t, "k"), request("k")) // in both
	is(t, thing, err, "run 1")
	_, err = client.Make(keyed(t, "other"), request("k"))
	denies(t, err, policy.KeyMalformed)
	_, err = client.Make(user, request("k\n"))
	denies(t, err, policy.KeyMalformed)
	_, err = client.Make(user, request(""))
	denies(t, err, policy.KeyMissing)
	s.ran(t, 1)

	client = guarded(t, &s, policy.Required(), t.KeyField("id"))
	_, err = client.Make(user, request("k"))
	denies(t, err, policy.KeyMissing)
	thing, err = client.Make(user, &Request{ID: "k"})
	is(t, thing, err, "run 2")

	client = guarded(t, &s, policy.Required(), t.KeyField(""))
	_, err = client.Make(user, request("k"))
	denies(t, err, policy.KeyMissing)
}

func missingAndMalformedKeys(t *rig) {
	var s Service
	client := guarded(t, &s)
	for n := range 2 {
		thing, err := client.Make(with(t, "x-user", "u"), &Request{})
		is(t, thing, err, "run "+string(rune('1'+n)))
	}
	for _, pairs := range [][]string{{""}, {`"`}, {"a b"}, {"a,b"}, {strings.Repeat("k", 256)}, {"a", "b"}} {
		ctx := with(t, "x-user", "u")
		for _, key := range pairs {
			ctx = t.Sending(ctx, "idempotency-key", key)
		}
		_, err := client.Make(ctx, &Request{})
		denies(t, err, policy.KeyMalformed)
	}
	s.ran(t, 2)
}

func methodsWithoutSideEffectsPass(t *rig) {
	var s Service
	client := guarded(t, &s, policy.Required())
	for _, ctx := range []context.Context{keyed(t, "k"), keyed(t, "k"), t.Context()} {
		ok(t, client.Get(ctx))
	}
	s.ran(t, 3)
}

func tooLargeAnswer(t *rig) {
	s := Service{make: func(context.Context, *Request) (*Thing, error) {
		return &Thing{Text: strings.Repeat("x", 200)}, nil
	}}
	client := serve(t, &s, t.Idempotency(NewGuard(t, newStore(t), guard.WithMaxResult(100)), byUser(t)))
	thing, err := client.Make(keyed(t, "k"), &Request{})
	is(t, thing, err, strings.Repeat("x", 200))
	_, err = client.Make(keyed(t, "k"), &Request{})
	denies(t, err, policy.ResponseNotRetained)
	if code := t.DetailsOf(err).Info["original_code"]; code != t.Traits().OK {
		t.Errorf("the original code is %q", code)
	}
	s.ran(t, 1)
}

func whichErrorsAreKept(t *rig) {
	rerun := false
	run := func(code Code, clean bool, opts ...policy.RPCIdempotencyOption) int64 {
		s := Service{make: func(ctx context.Context, _ *Request) (*Thing, error) {
			if attempt, ok := guard.FromContext(ctx); clean && ok {
				_ = attempt.MarkClean(ctx)
			}
			return nil, failure(t, code, "")
		}}
		var guardOptions []guard.Option
		if rerun {
			guardOptions = append(guardOptions, guard.WithRerun())
		}
		client := serve(t, &s, t.Idempotency(NewGuard(t, newStore(t), guardOptions...), byUser(t), opts...))
		for range 2 {
			if _, err := client.Make(keyed(t, "k"), &Request{}); t.CodeOf(err) != code {
				t.Errorf("%v, want %v", err, code)
			}
		}
		return s.runs.Load()
	}
	for code := Canceled; code <= Unauthenticated; code++ {
		released, failure := false, false
		switch code {
		case Unauthenticated, ResourceExhausted:
			released = true
		case PermissionDenied, Aborted, Canceled, Unknown, DeadlineExceeded, Internal,
			Unavailable, DataLoss:
			failure = true
		}
		if runs := run(code, false); (runs == 2) != released {
			t.Errorf("%v of a dirty attempt: %d runs", code, runs)
		}
		if runs := run(code, true); (runs == 2) != (released || failure) {
			t.Errorf("%v of a clean attempt: %d runs", code, runs)
		}
		rerun = true
		if runs := run(code, false); (runs == 2) != (released || failure) {
			t.Errorf("%v of a guard that allows re-runs: %d runs", code, runs)
		}
		rerun = false
	}
	if runs := run(ResourceExhausted, false, t.KeepCodes(ResourceExhausted)); runs != 1 {
		t.Errorf("a code that is to be kept: %d runs", runs)
	}
	if runs := run(Internal, false, t.ReleaseCodes(Internal, NotFound)); runs != 2 {
		t.Errorf("a code that is to be released: %d runs", runs)
	}
}

func panicLeavesAnUnknownOutcome(t *rig) {
	s := Service{make: func(context.Context, *Request) (*Thing, error) { panic("boom") }}
	client := guarded(t, &s)
	if _, err := client.Make(keyed(t, "k"), &Request{}); t.CodeOf(err) != Internal {
		t.Errorf("a panic is answered with %v", err)
	}
	_, err := client.Make(keyed(t, "k"), &Request{})
	denies(t, err, policy.OutcomeUnknown)
	s.ran(t, 1)
}

// The handler runs to its end if its client cancels, and the next call gets its answer.
func handlerOutlivesItsClient(t *rig) {
	g := newGate()
	s := Service{make: func(ctx context.Context, r *Request) (*Thing, error) {
		thing, _ := g.make(ctx, r)
		return thing, ctx.Err()
	}}
	gone := make(chan struct{})
	leaves := sync.OnceFunc(func() { close(gone) })
	leaving := t.Around(func(ctx context.Context, handler func(context.Context) error) error {
		context.AfterFunc(ctx, leaves)
		return handler(ctx)
	})
	chain := t.Idempotency(NewGuard(t, newStore(t)), byUser(t))
	client := serve(t, &s, leaving, chain)
	ctx, cancel := context.WithCancel(keyed(t, "k"))
	first := making(ctx, t, client, &Request{})
	g.runs(t)
	cancel()
	if a := result(t, first); t.CodeOf(a.err) != Canceled {
		t.Errorf("%v", a.err)
	}
	<-gone
	g.let()
	for {
		_, err := client.Make(keyed(t, "k"), &Request{})
		if t.CodeOf(err) == Aborted { // the handler has not quite returned
			continue
		}
		if err != nil {
			t.Errorf("the context of the handler ended: %v", err)
		}
		break
	}
	s.ran(t, 1)
}

func runUnprotected(t *rig) {
	var s Service
	store := newStore(t)
	client := serve(t, &s, t.Idempotency(NewGuard(t, store), byUser(t), policy.RunUnprotected()))
	store.Break(storetest.BeginOperation, storetest.Down)
	for n := range 2 {
		var header http.Header
		thing, err := client.Make(keyed(t, "k"), &Request{}, intoHeader(&header))
		is(t, thing, err, "run "+string(rune('1'+n)))
		if got := header.Values("idempotency-status"); len(got) != 1 || got[0] != "bypassed" {
			t.Errorf("header %v", header)
		}
	}
}

func streamsAreNotGuarded(t *rig) {
	watch := func(client Client, ctx context.Context) error {
		stream, err := client.Watch(ctx, &Request{ID: "1"})
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	}
	var s Service
	client := guarded(t, &s)
	if err := watch(client, t.Context()); err != nil {
		t.Errorf("a stream without a key: %v", err)
	}
	denies(t, watch(client, keyed(t, "k")), policy.StreamRefused)
	denies(t, watch(guarded(t, &s, policy.Required()), t.Context()), policy.StreamRefused)
	denies(t, watch(guarded(t, &s, t.KeyFrom(t.ByField("id"))), t.Context()), policy.StreamRefused)
	denies(t, watch(guarded(t, &s, t.KeyFrom(t.ByField("none"))), t.Context()), policy.InternalError)
	s.ran(t, 1)
	if err := watch(guarded(t, &s, t.KeyFrom(t.ByField("request_id"))), keyed(t, "k")); err != nil {
		t.Errorf("a stream without the key that is looked for: %v", err)
	}
	s.runs.Store(1)
	for _, ctx := range []context.Context{keyed(t, "k"), t.Context()} {
		ok(t, watch(guarded(t, &s, policy.Required(), t.PassStreams()), ctx))
	}
	s.ran(t, 3)
}
