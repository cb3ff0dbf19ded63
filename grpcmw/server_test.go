package grpcmw_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/things"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// patience is how long a test waits for an event.
const patience = 10 * time.Second

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// newStore returns a new store that fails on command: one in memory, or that of TestTableOnStores.
func newStore(t *testing.T) *storetest.Faulty { return storetest.NewFaulty(openStore(t)) }

// openStore opens one. Tests on other stores than those in memory replace it while no other test runs.
var openStore = inMemory

func inMemory(t *testing.T) store.Store {
	st := memstore.New()
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// service is a server whose methods are set by tests.
type service struct {
	things.UnimplementedThingsServer
	runs  atomic.Int64
	make  func(context.Context, *things.MakeRequest) (*things.Thing, error)
	watch func(*things.MakeRequest, grpc.ServerStreamingServer[things.Thing]) error
	talk  func(grpc.BidiStreamingServer[things.MakeRequest, things.Thing]) error
}

func (s *service) Make(ctx context.Context, r *things.MakeRequest) (*things.Thing, error) {
	n := s.runs.Add(1)
	if s.make != nil {
		return s.make(ctx, r)
	}
	return &things.Thing{Id: r.GetId(), Text: "run " + string(rune('0'+n))}, nil
}

func (s *service) Get(_ context.Context, r *things.GetRequest) (*things.Thing, error) {
	s.runs.Add(1)
	return &things.Thing{Id: r.GetId()}, nil
}

func (s *service) Watch(r *things.MakeRequest, stream grpc.ServerStreamingServer[things.Thing]) error {
	s.runs.Add(1)
	if s.watch != nil {
		return s.watch(r, stream)
	}
	return stream.Send(&things.Thing{Id: r.GetId()})
}

func (s *service) Talk(stream grpc.BidiStreamingServer[things.MakeRequest, things.Thing]) error {
	s.runs.Add(1)
	if s.talk != nil {
		return s.talk(stream)
	}
	for {
		r, err := stream.Recv()
		if err != nil {
			return nil //nolint:nilerr // the client has closed its side
		}
		if err := stream.Send(&things.Thing{Id: r.GetId()}); err != nil {
			return err
		}
	}
}

func (s *service) ran(t *testing.T, want int64) {
	t.Helper()
	if got := s.runs.Load(); got != want {
		t.Errorf("the handler ran %d times, want %d", got, want)
	}
}

type userKey struct{}

// authenticate trusts the metadata x-user.
func authenticate(ctx context.Context) context.Context {
	if user := metadata.ValueFromIncomingContext(ctx, "x-user"); len(user) == 1 {
		return context.WithValue(ctx, userKey{}, user[0])
	}
	return ctx
}

type authenticated struct {
	grpc.ServerStream
	ctx context.Context
}

func (s authenticated) Context() context.Context { return s.ctx }

// outermost recovers from panics and authenticates.
var outermost = grpcmw.Interceptors{
	Unary: func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (resp any, err error) {
		defer func() {
			if recover() != nil {
				err = status.Error(codes.Internal, "panic")
			}
		}()
		return handler(authenticate(ctx), req)
	},
	Stream: func(srv any, ss grpc.ServerStream, _ *grpc.StreamServerInfo, handler grpc.StreamHandler) (err error) {
		defer func() {
			if recover() != nil {
				err = status.Error(codes.Internal, "panic")
			}
		}()
		return handler(srv, authenticated{ss, authenticate(ss.Context())})
	},
}

// serve starts a server behind interceptors, and returns a client of it.
func serve(t *testing.T, s *service, chain ...grpcmw.Interceptors) things.ThingsClient {
	t.Helper()
	return dial(t, listen(t, s, chain...))
}

func listen(t *testing.T, s *service, chain ...grpcmw.Interceptors) (addr string) {
	t.Helper()
	server := grpc.NewServer(grpcmw.ServerOptions(append([]grpcmw.Interceptors{outermost}, chain...)...)...)
	things.RegisterThingsServer(server, s)
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	t.Cleanup(func() {
		server.Stop()
		<-done
	})
	return listener.Addr().String()
}

func dial(t *testing.T, addr string, opts ...grpc.DialOption) things.ThingsClient {
	t.Helper()
	conn := must(grpc.NewClient(addr, append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()))...))
	t.Cleanup(func() { _ = conn.Close() })
	return things.NewThingsClient(conn)
}

// with returns the context of a call with this metadata: name, value, name, value.
func with(t *testing.T, pairs ...string) context.Context {
	return metadata.AppendToOutgoingContext(t.Context(), pairs...)
}

// is checks an answer.
func is(t *testing.T, got *things.Thing, err error, text string) {
	t.Helper()
	if err != nil || got.GetText() != text {
		t.Fatalf("%v, %v; want %q", got, err, text)
	}
}

// secret is in the errors of key functions, and must not be in answers.
const secret = "do-not-reveal"

var errKey = errors.New(secret)

// detail returns the detail of this type in an error, or nil.
func detail[D any](err error) *D {
	for _, d := range status.Convert(err).Details() {
		if found, ok := d.(*D); ok {
			return found
		}
	}
	return nil
}

// denies checks that an error is a denial, with the details of its reason.
func denies(t *testing.T, err error, reason policy.Reason) *status.Status {
	t.Helper()
	want := map[policy.Reason]codes.Code{
		policy.QuotaExceeded: codes.ResourceExhausted, policy.KeyQuotaExceeded: codes.ResourceExhausted,
		policy.AbnormalUsage: codes.ResourceExhausted, policy.TooManyAtOnce: codes.ResourceExhausted,
		policy.Locked: codes.Aborted, policy.InFlight: codes.Aborted,
		policy.KeyMissing: codes.InvalidArgument, policy.KeyMalformed: codes.InvalidArgument,
		policy.KeyReused: codes.InvalidArgument, policy.StreamRefused: codes.InvalidArgument,
		policy.BodyUnreadable: codes.InvalidArgument,
		policy.FenceMissing:   codes.InvalidArgument, policy.StaleFence: codes.FailedPrecondition,
		policy.ResponseNotRetained: codes.FailedPrecondition, policy.OutcomeUnknown: codes.FailedPrecondition,
		policy.ReducedCapacity: codes.Unavailable, policy.InternalError: codes.Internal,
	}[reason]
	st := status.Convert(err)
	if st.Code() != want {
		t.Fatalf("%v, want %v for %s", err, want, reason)
	}
	info := detail[errdetails.ErrorInfo](err)
	if info.GetDomain() != grpcmw.Domain || info.GetReason() != strings.ToUpper(strings.ReplaceAll(string(reason), "-", "_")) {
		t.Fatalf("%v has ErrorInfo %v, want %s", err, info, reason)
	}
	retries := slices.Contains([]codes.Code{codes.ResourceExhausted, codes.Aborted, codes.Unavailable}, want)
	if retry := detail[errdetails.RetryInfo](err); (retry != nil) != retries || retries && retry.GetRetryDelay().AsDuration() <= 0 {
		t.Errorf("%v has RetryInfo %v", err, retry)
	}
	switch reason {
	case policy.KeyMissing, policy.KeyMalformed, policy.StreamRefused, policy.FenceMissing:
		if bad := detail[errdetails.BadRequest](err); len(bad.GetFieldViolations()) != 1 || bad.GetFieldViolations()[0].GetDescription() == "" {
			t.Errorf("%v has BadRequest %v", err, bad)
		}
	}
	if strings.Contains(st.String(), secret) {
		t.Errorf("the client gets %v", st)
	}
	return st
}

// gate is a handler that reports when it runs, and blocks until it is released.
type gate struct{ entered, leave chan struct{} }

func newGate() gate { return gate{make(chan struct{}, 100), make(chan struct{}, 100)} }

func (g gate) make(_ context.Context, r *things.MakeRequest) (*things.Thing, error) {
	g.pass()
	return &things.Thing{Id: r.GetId(), Text: "done"}, nil
}

func (g gate) pass() {
	g.entered <- struct{}{}
	select {
	case <-g.leave:
	case <-time.After(patience):
	}
}

func (g gate) runs(t *testing.T) {
	t.Helper()
	select {
	case <-g.entered:
	case <-time.After(patience):
		t.Fatal("the handler does not run")
	}
}

func (g gate) idle(t *testing.T) {
	t.Helper()
	select {
	case <-g.entered:
		t.Fatal("the handler runs")
	default:
	}
}

func (g gate) let() { g.leave <- struct{}{} }

// answer is the result of a call.
type answer struct {
	thing *things.Thing
	err   error
}

// making calls Make in the background.
func making(ctx context.Context, t *testing.T, client things.ThingsClient, r *things.MakeRequest) <-chan answer {
	answers := make(chan answer, 1)
	done := make(chan struct{})
	go func() {
		defer close(done)
		thing, err := client.Make(ctx, r)
		answers <- answer{thing, err}
	}()
	t.Cleanup(func() { <-done })
	return answers
}

// result waits for the result of a call.
func result(t *testing.T, answers <-chan answer) answer {
	t.Helper()
	select {
	case a := <-answers:
		return a
	case <-time.After(patience):
		t.Fatal("no answer")
		return answer{}
	}
}

// ok fails the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
