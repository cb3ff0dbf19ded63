package observability_test

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"

	apitrace "go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/types/known/wrapperspb"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	rpcconcurrency "github.com/lockkeeper/lockkeeper/grpcmw/concurrency"
	rpcexclusive "github.com/lockkeeper/lockkeeper/grpcmw/exclusive"
	rpcidempotency "github.com/lockkeeper/lockkeeper/grpcmw/idempotency"
	rpcratelimit "github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
	"github.com/lockkeeper/lockkeeper/nethttp/exclusive"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// site is a handler behind the middleware of every policy, below a server's span.
type site struct {
	w     *world
	serve http.Handler
}

func (w *world) site(st store.Store) site {
	var h http.Handler = http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(rw, secretResult) })
	h = concurrency.New(w.semaphore(st), nethttp.ByHeader("X-Tenant"), policy.Wait(patience))(h)
	h = exclusive.New(w.locker(st), nethttp.ByHeader("X-Cart"), policy.Wait(patience))(h)
	h = idempotency.New(w.guard(st), nethttp.ScopeBy(nethttp.ByHeader("X-User")), policy.Required())(h)
	h = ratelimit.New(w.limiter(st, tokenbucket.PerHour(2)), nethttp.ByHeader("X-User"))(h)
	h = ratelimit.New(w.limiter(st, tokenbucket.PerHour(1000)), nethttp.ByClientIP(clientip.Direct()))(h)
	return site{w, http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
		ctx, span := w.tracers.Tracer("application").Start(r.Context(), "POST", apitrace.WithSpanKind(apitrace.SpanKindServer))
		defer span.End()
		h.ServeHTTP(rw, r.WithContext(ctx))
	})}
}

// send sends a request and returns the status.
func (s site) send(user, key, body string) int {
	r := httptest.NewRequestWithContext(s.w.t.Context(), http.MethodPost, "/"+secretRequest, strings.NewReader(body))
	r.RemoteAddr = secretAddress + ":4711"
	for name, value := range map[string]string{
		"X-User": user, "X-Cart": secretHeader, "X-Tenant": secretHeader, "Idempotency-Key": key, "Authorization": secretHeader,
	} {
		r.Header.Set(name, value)
	}
	rw := httptest.NewRecorder()
	s.serve.ServeHTTP(rw, r)
	return rw.Code
}

// driveHTTP makes requests be allowed, replayed, refused and failed.
func driveHTTP(w *world, st store.Store, broken *storetest.Faulty) {
	s := w.site(st)
	user := secretScope + " of the web"
	for _, c := range []struct {
		user, key, body string
		status          int
	}{
		{user, secretIdempotency, secretRequest, http.StatusOK},
		{user, secretIdempotency, secretRequest, http.StatusOK}, // replayed
		{user, secretIdempotency, secretRequest, http.StatusTooManyRequests},
		{user + "'s friend", "", secretRequest, http.StatusBadRequest},
		{user + "'s friend", secretIdempotency, secretRequest, http.StatusOK},
		{user + "'s foe", secretIdempotency, secretRequest, http.StatusOK},
		{user + "'s foe", secretIdempotency, secretRequest + "'s other", http.StatusUnprocessableEntity},
	} {
		if got := s.send(c.user, c.key, c.body); got != c.status {
			w.t.Errorf("a request of %q: %d, want %d", c.user, got, c.status)
		}
	}
	broken.Break(storetest.Any, storetest.Down)
	if got := s.send(user, secretIdempotency, secretRequest); got != http.StatusServiceUnavailable {
		w.t.Errorf("without a store: %d", got)
	}
	broken.Mend(storetest.Any)
}

// making is a service with one method, Make.
var making = grpc.ServiceDesc{
	ServiceName: "things.Things",
	HandlerType: (*any)(nil),
	Methods: []grpc.MethodDesc{{
		MethodName: "Make",
		Handler: func(srv any, ctx context.Context, decode func(any) error, intercept grpc.UnaryServerInterceptor) (any, error) {
			var req wrapperspb.StringValue
			if err := decode(&req); err != nil {
				return nil, err
			}
			handle := func(context.Context, any) (any, error) { return wrapperspb.String(secretResult), nil }
			return intercept(ctx, &req, &grpc.UnaryServerInfo{Server: srv, FullMethod: makeMethod}, handle)
		},
	}},
}

const makeMethod = "/things.Things/Make"

// driveRPC makes calls be allowed, replayed, refused and failed.
func driveRPC(w *world, st store.Store, broken *storetest.Faulty) {
	t := w.t
	traced := func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handle grpc.UnaryHandler) (any, error) {
		ctx, span := w.tracers.Tracer("application").Start(ctx, info.FullMethod, apitrace.WithSpanKind(apitrace.SpanKindServer))
		defer span.End()
		return handle(ctx, req)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(traced,
		rpcratelimit.New(w.limiter(st, tokenbucket.PerHour(1000)), grpcmw.ByPeer()).Unary,
		rpcratelimit.New(w.limiter(st, tokenbucket.PerHour(2)), grpcmw.ByMetadata("x-user")).Unary,
		rpcidempotency.New(w.guard(st), grpcmw.ScopeBy(grpcmw.ByMetadata("x-user"))).Unary,
		rpcexclusive.New(w.locker(st), grpcmw.ByMetadata("x-cart"), policy.Wait(patience)).Unary,
		rpcconcurrency.New(w.semaphore(st), grpcmw.ByMetadata("x-cart"), policy.Wait(patience)).Unary,
	))
	server.RegisterService(&making, nil)
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	defer serving.Wait()
	defer server.Stop()
	conn := must(grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())))
	defer func() { _ = conn.Close() }()
	ctx := metadata.AppendToOutgoingContext(t.Context(), "x-user", secretScope+" of a call", "x-cart", secretHeader,
		"idempotency-key", secretIdempotency, "authorization", secretHeader)
	failed := 0
	call := func() {
		if err := conn.Invoke(ctx, makeMethod, wrapperspb.String(secretRequest), new(wrapperspb.StringValue)); err != nil {
			failed++
		}
	}
	for range 3 { // runs, is replayed, and is denied
		call()
	}
	broken.Break(storetest.Any, storetest.Down)
	call()
	broken.Mend(storetest.Any)
	if failed != 2 {
		t.Errorf("%d calls failed, want 2", failed)
	}
}
