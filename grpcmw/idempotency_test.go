package grpcmw_test

import (
	"context"
	"strings"
	"sync"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/idempotency"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/things"
)

var byUser = grpcmw.ScopeBy(grpcmw.ByContext(userKey{}))

// guarded returns a client of a server that guards calls by user.
func guarded(t *testing.T, s *service, opts ...policy.RPCIdempotencyOption) things.ThingsClient {
	t.Helper()
	return serve(t, s, idempotency.New(newGuard(t, newStore(t)), byUser, opts...))
}

// keyed is the context of a call by user u with this key.
func keyed(t *testing.T, key string) context.Context {
	return with(t, "x-user", "u", "idempotency-key", key)
}

// replayed reports whether an answer is a replay.
func replayed(header metadata.MD) bool {
	values := header.Get("idempotency-replayed")
	return len(values) == 1 && values[0] == "true"
}

func TestTwinGetsTheSameAnswer(t *testing.T) {
	s := service{}
	s.make = func(ctx context.Context, r *things.MakeRequest) (*things.Thing, error) {
		_ = grpc.SetHeader(ctx, metadata.Pairs("x-made", r.GetId(), "x-made", "again", "x-bin", "a, b"))
		_ = grpc.SendHeader(ctx, metadata.Pairs("x-sent", "1"))
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x-cost", "5"))
		return &things.Thing{Id: r.GetId(), Text: "run " + strings.Repeat("1", int(s.runs.Load()))}, nil
	}
	client := guarded(t, &s)
	r := &things.MakeRequest{Id: "1", Amount: 5, Owner: &things.Owner{Name: "o"}}
	for n, key := range []string{`"k"`, "k", `"k"`} { // quoted and bare are the same
		var header, trailer metadata.MD
		thing, err := client.Make(keyed(t, key), r, grpc.Header(&header), grpc.Trailer(&trailer))
		is(t, thing, err, "run 1")
		if replayed(header) != (n > 0) || strings.Join(header.Get("x-made"), "|") != "1|again" || len(header.Get("x-sent")) != 1 ||
			len(trailer.Get("x-cost")) != 1 || thing.GetId() != "1" {
			t.Errorf("time %d: %v, header %v, trailer %v", n, thing, header, trailer)
		}
	}
	thing, err := client.Make(keyed(t, "other"), r)
	is(t, thing, err, "run 11")
	s.ran(t, 2)
}

func TestAnErrorIsReplayedWithItsDetails(t *testing.T) {
	var s service
	failure, err := status.New(codes.FailedPrecondition, "sold out").WithDetails(
		&errdetails.PreconditionFailure{Violations: []*errdetails.PreconditionFailure_Violation{{Type: "STOCK", Subject: "cart/1"}}},
		&errdetails.ErrorInfo{Reason: "SOLD_OUT", Domain: "shop"})
	if err != nil {
		t.Fatal(err)
	}
	s.make = func(context.Context, *things.MakeRequest) (*things.Thing, error) { return nil, failure.Err() }
	client := guarded(t, &s)
	for n := range 2 {
		var header metadata.MD
		_, err := client.Make(keyed(t, "k"), &things.MakeRequest{}, grpc.Header(&header))
		if got := status.Convert(err); !proto.Equal(got.Proto(), failure.Proto()) {
			t.Errorf("time %d: %v", n, got)
		}
		if replayed(header) != (n == 1) {
			t.Errorf("time %d: header %v", n, header)
		}
	}
	s.ran(t, 1)
}

func TestScopesAreSeparate(t *testing.T) {
	var s service
	client := guarded(t, &s)
	thing, err := client.Make(with(t, "x-user", "u", "idempotency-key", "k"), &things.MakeRequest{})
	is(t, thing, err, "run 1")
	thing, err = client.Make(with(t, "x-user", "v", "idempotency-key", "k"), &things.MakeRequest{})
	is(t, thing, err, "run 2")
	_, err = client.Make(with(t, "idempotency-key", "k"), &things.MakeRequest{})
	denies(t, err, policy.InternalError) // authentication has let it through
	s.ran(t, 2)

	client = serve(t, &s, idempotency.New(newGuard(t, newStore(t)), grpcmw.Unscoped()))
	for _, user := range []string{"u", "v"} {
		thing, err = client.Make(with(t, "x-user", user, "idempotency-key", "k"), &things.MakeRequest{})
		is(t, thing, err, "run 3")
	}
}

func TestKeyOfAnotherCall(t *testing.T) {
	var s service
	client := guarded(t, &s)
	if _, err := client.Make(keyed(t, "k"), &things.MakeRequest{Id: "1"}); err != nil {
		t.Fatal(err)
	}
	_, err := client.Make(keyed(t, "k"), &things.MakeRequest{Id: "2"})
	denies(t, err, policy.KeyReused)
	s.ran(t, 1)
}

func TestFullScope(t *testing.T) {
	var s service
	client := serve(t, &s, idempotency.New(newGuard(t, newStore(t), guard.WithMaxPerScope(1)), byUser, policy.RunUnprotected()))
	call := func(user, key, want string) {
		t.Helper()
		thing, err := client.Make(with(t, "x-user", user, "idempotency-key", key), &things.MakeRequest{})
		is(t, thing, err, want)
	}
	call("u", "k1", "run 1")
	_, err := client.Make(keyed(t, "k2"), &things.MakeRequest{})
	denies(t, err, policy.KeyQuotaExceeded)
	if quota := detail[errdetails.QuotaFailure](err); len(quota.GetViolations()) != 1 || quota.GetViolations()[0].GetSubject() != "guard:orders" {
		t.Errorf("QuotaFailure is %v", quota)
	}
	call("u", "k1", "run 1")
	call("v", "k2", "run 2")
}

func TestTwinInFlight(t *testing.T) {
	g := newGate()
	s := service{make: g.make}
	client := guarded(t, &s)
	first := making(keyed(t, "k"), t, client, &things.MakeRequest{})
	g.runs(t)
	_, err := client.Make(keyed(t, "k"), &things.MakeRequest{})
	denies(t, err, policy.InFlight)
	g.let()
	a := result(t, first)
	is(t, a.thing, a.err, "done")
	thing, err := client.Make(keyed(t, "k"), &things.MakeRequest{})
	is(t, thing, err, "done")
	g.idle(t)
}

func TestKeyInTheFieldOfAIP155(t *testing.T) {
	var s service
	client := guarded(t, &s, policy.Required())
	user := with(t, "x-user", "u")
	request := func(id string) *things.MakeRequest { return &things.MakeRequest{RequestId: id} }
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

	client = guarded(t, &s, policy.Required(), idempotency.KeyField("id"))
	_, err = client.Make(user, request("k"))
	denies(t, err, policy.KeyMissing)
	thing, err = client.Make(user, &things.MakeRequest{Id: "k"})
	is(t, thing, err, "run 2")

	client = guarded(t, &s, policy.Required(), idempotency.KeyField(""))
	_, err = client.Make(user, request("k"))
	denies(t, err, policy.KeyMissing)
}

func TestMissingAndMalformedKeys(t *testing.T) {
	var s service
	client := guarded(t, &s)
	for n := range 2 {
		thing, err := client.Make(with(t, "x-user", "u"), &things.MakeRequest{})
		is(t, thing, err, "run "+string(rune('1'+n)))
	}
	for _, pairs := range [][]string{{""}, {`"`}, {"a b"}, {"a,b"}, {strings.Repeat("k", 256)}, {"a", "b"}} {
		ctx := with(t, "x-user", "u")
		for _, key := range pairs {
			ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", key)
		}
		_, err := client.Make(ctx, &things.MakeRequest{})
		denies(t, err, policy.KeyMalformed)
	}
	s.ran(t, 2)
}

func TestMethodsWithoutSideEffectsPass(t *testing.T) {
	var s service
	client := guarded(t, &s, policy.Required())
	for _, ctx := range []context.Context{keyed(t, "k"), keyed(t, "k"), t.Context()} {
		if _, err := client.Get(ctx, &things.GetRequest{}); err != nil {
			t.Error(err)
		}
	}
	s.ran(t, 3)
}

func TestTooLargeAnswer(t *testing.T) {
	s := service{make: func(context.Context, *things.MakeRequest) (*things.Thing, error) {
		return &things.Thing{Text: strings.Repeat("x", 200)}, nil
	}}
	client := serve(t, &s, idempotency.New(newGuard(t, newStore(t), guard.WithMaxResult(100)), byUser))
	thing, err := client.Make(keyed(t, "k"), &things.MakeRequest{})
	is(t, thing, err, strings.Repeat("x", 200))
	_, err = client.Make(keyed(t, "k"), &things.MakeRequest{})
	denies(t, err, policy.ResponseNotRetained)
	if code := detail[errdetails.ErrorInfo](err).GetMetadata()["original_code"]; code != "OK" {
		t.Errorf("the original code is %q", code)
	}
	s.ran(t, 1)
}

func TestWhichErrorsAreKept(t *testing.T) {
	rerun := false
	run := func(code codes.Code, clean bool, opts ...policy.RPCIdempotencyOption) int64 {
		s := service{make: func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
			if attempt, ok := guard.FromContext(ctx); clean && ok {
				_ = attempt.MarkClean(ctx)
			}
			return nil, status.Error(code, "")
		}}
		var guardOptions []guard.Option
		if rerun {
			guardOptions = append(guardOptions, guard.WithRerun())
		}
		client := serve(t, &s, idempotency.New(newGuard(t, newStore(t), guardOptions...), byUser, opts...))
		for range 2 {
			if _, err := client.Make(keyed(t, "k"), &things.MakeRequest{}); status.Code(err) != code {
				t.Errorf("%v, want %v", err, code)
			}
		}
		return s.runs.Load()
	}
	for code := codes.Canceled; code <= codes.Unauthenticated; code++ {
		released, failure := false, false
		switch code {
		case codes.Unauthenticated, codes.ResourceExhausted:
			released = true
		case codes.PermissionDenied, codes.Aborted, codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.Internal,
			codes.Unavailable, codes.DataLoss:
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
	if runs := run(codes.ResourceExhausted, false, idempotency.KeepCodes(codes.ResourceExhausted)); runs != 1 {
		t.Errorf("a code that is to be kept: %d runs", runs)
	}
	if runs := run(codes.Internal, false, idempotency.ReleaseCodes(codes.Internal, codes.NotFound)); runs != 2 {
		t.Errorf("a code that is to be released: %d runs", runs)
	}
}

func TestPanicLeavesAnUnknownOutcome(t *testing.T) {
	s := service{make: func(context.Context, *things.MakeRequest) (*things.Thing, error) { panic("boom") }}
	client := guarded(t, &s)
	if _, err := client.Make(keyed(t, "k"), &things.MakeRequest{}); status.Code(err) != codes.Internal {
		t.Errorf("a panic is answered with %v", err)
	}
	_, err := client.Make(keyed(t, "k"), &things.MakeRequest{})
	denies(t, err, policy.OutcomeUnknown)
	s.ran(t, 1)
}

// The handler runs to its end if its client cancels, and the next call gets its answer.
func TestHandlerOutlivesItsClient(t *testing.T) {
	g := newGate()
	s := service{make: func(ctx context.Context, r *things.MakeRequest) (*things.Thing, error) {
		thing, _ := g.make(ctx, r)
		return thing, ctx.Err()
	}}
	gone := make(chan struct{})
	leaves := sync.OnceFunc(func() { close(gone) })
	leaving := grpcmw.Interceptors{Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
		context.AfterFunc(ctx, leaves)
		return handler(ctx, req)
	}}
	chain := idempotency.New(newGuard(t, newStore(t)), byUser)
	client := serve(t, &s, leaving, chain)
	ctx, cancel := context.WithCancel(keyed(t, "k"))
	first := making(ctx, t, client, &things.MakeRequest{})
	g.runs(t)
	cancel()
	if a := result(t, first); status.Code(a.err) != codes.Canceled {
		t.Errorf("%v", a.err)
	}
	<-gone
	g.let()
	for {
		_, err := client.Make(keyed(t, "k"), &things.MakeRequest{})
		if status.Code(err) == codes.Aborted { // the handler has not quite returned
			continue
		}
		if err != nil {
			t.Errorf("the context of the handler ended: %v", err)
		}
		break
	}
	s.ran(t, 1)
}

func TestRunUnprotected(t *testing.T) {
	var s service
	store := newStore(t)
	client := serve(t, &s, idempotency.New(newGuard(t, store), byUser, policy.RunUnprotected()))
	store.Break(storetest.BeginOperation, storetest.Down)
	for n := range 2 {
		var header metadata.MD
		thing, err := client.Make(keyed(t, "k"), &things.MakeRequest{}, grpc.Header(&header))
		is(t, thing, err, "run "+string(rune('1'+n)))
		if got := header.Get("idempotency-status"); len(got) != 1 || got[0] != "bypassed" {
			t.Errorf("header %v", header)
		}
	}
}

func TestStreamsAreNotGuarded(t *testing.T) {
	watch := func(client things.ThingsClient, ctx context.Context) error {
		stream, err := client.Watch(ctx, &things.MakeRequest{Id: "1"})
		if err != nil {
			return err
		}
		_, err = stream.Recv()
		return err
	}
	var s service
	client := guarded(t, &s)
	if err := watch(client, t.Context()); err != nil {
		t.Errorf("a stream without a key: %v", err)
	}
	denies(t, watch(client, keyed(t, "k")), policy.StreamRefused)
	denies(t, watch(guarded(t, &s, policy.Required()), t.Context()), policy.StreamRefused)
	byID := idempotency.KeyFrom(grpcmw.ByField("id"))
	denies(t, watch(guarded(t, &s, byID), t.Context()), policy.StreamRefused)
	denies(t, watch(guarded(t, &s, idempotency.KeyFrom(grpcmw.ByField("none"))), t.Context()), policy.InternalError)
	s.ran(t, 1)
	if err := watch(guarded(t, &s, idempotency.KeyFrom(grpcmw.ByField("request_id"))), keyed(t, "k")); err != nil {
		t.Errorf("a stream without the key that is looked for: %v", err)
	}
	s.runs.Store(1)
	for _, ctx := range []context.Context{keyed(t, "k"), t.Context()} {
		ok(t, watch(guarded(t, &s, policy.Required(), idempotency.PassStreams()), ctx))
	}
	s.ran(t, 3)
}
