package grpcmw_test

import (
	"context"
	"net"
	"testing"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	otrace "go.opentelemetry.io/otel/trace"
	"google.golang.org/grpc"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/internal/rpctest/things"
)

// ends is a span processor that passes on each span when it ends.
type ends struct {
	trace.SpanProcessor
	ended chan trace.ReadOnlySpan
}

func (e ends) OnEnd(span trace.ReadOnlySpan) { e.ended <- span }

// With otelgrpc, a stats handler and so before all interceptors, a denial is no error on the
// server's span, and an unavailable store is one.
func TestDenialIsNoErrorOnTheSpan(t *testing.T) {
	store := newStore(t)
	spans := ends{tracetest.NewSpanRecorder(), make(chan trace.ReadOnlySpan, 100)}
	provider := trace.NewTracerProvider(trace.WithSpanProcessor(spans))
	t.Cleanup(func() { _ = provider.Shutdown(context.Background()) })

	chain := []grpcmw.Interceptors{outermost}
	for _, name := range []string{"ratelimit", "idempotency", "exclusive", "concurrency"} {
		chain = append(chain, policies[name](t, store, grpcmw.ByMetadata("x-"+name), nil))
	}
	g := newGate()
	s := service{make: g.make}
	server := grpc.NewServer(append(grpcmw.ServerOptions(chain...), grpc.StatsHandler(otelgrpc.NewServerHandler(otelgrpc.WithTracerProvider(provider))))...)
	things.RegisterThingsServer(server, &s)
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
	client := dial(t, listener.Addr().String())

	all := []string{"x-ratelimit", "a", "x-idempotency", "u", "x-exclusive", "1", "x-concurrency", "2"}
	make := func(pairs ...string) error {
		_, err := client.Make(with(t, pairs...), &things.MakeRequest{})
		return err
	}
	// next is the span of the server that ends after the call did.
	next := func() trace.ReadOnlySpan {
		t.Helper()
		select {
		case span := <-spans.ended:
			return span
		case <-time.After(patience):
			t.Fatal("no span has ended")
			return nil
		}
	}

	first := making(with(t, all...), t, client, &things.MakeRequest{})
	g.runs(t)
	for name, c := range map[string]struct {
		pairs  []string
		reason policy.Reason
	}{
		"no key": {nil, policy.KeyMissing},
		"locked": {all, policy.Locked},
	} {
		denies(t, make(c.pairs...), c.reason)
		if span := next(); span.Status().Code != codes.Unset || span.SpanKind() != otrace.SpanKindServer {
			t.Errorf("%s: %v span with status %v", name, span.SpanKind(), span.Status())
		}
	}
	g.let()
	result(t, first)
	if span := next(); span.Status().Code != codes.Unset {
		t.Errorf("a call that ran: status %v", span.Status())
	}
	for range 10 { // of which two are spent already
		g.let()
		if err := make(all...); err != nil {
			denies(t, err, policy.QuotaExceeded)
		}
		if span := next(); span.Status().Code != codes.Unset {
			t.Errorf("within and over the limit: status %v", span.Status())
		}
	}
	for _, op := range stores {
		store.Break(op, storetest.Down)
		denies(t, make("idempotency-key", "k", "x-ratelimit", "b", "x-idempotency", "u", "x-exclusive", "1", "x-concurrency", "2"), policy.ReducedCapacity)
		if span := next(); span.Status().Code != codes.Error {
			t.Errorf("%v is unavailable: status %v", op, span.Status())
		}
		store.Mend(op)
	}
}
