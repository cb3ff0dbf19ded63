package connectmw_test

import (
	"context"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/concurrency"
	"github.com/lockkeeper/lockkeeper/connectmw/exclusive"
	"github.com/lockkeeper/lockkeeper/connectmw/fenced"
	"github.com/lockkeeper/lockkeeper/connectmw/idempotency"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things/thingsconnect"
	"github.com/lockkeeper/lockkeeper/connectmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/core/policy"
	repeating "github.com/lockkeeper/lockkeeper/nethttp/idempotency"
)

// A client's key is on every attempt of a call, and on no other call; a caller's own stays.
func TestClientsSendKeys(t *testing.T) {
	var seen []string
	spy := around(func(ctx context.Context, handler func(context.Context) error) error {
		seen = append(seen, strings.Join(incoming(ctx, "Idempotency-Key"), "|"))
		return handler(ctx)
	})
	var s service
	twice := connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			_, _ = next(ctx, req) // as if its answer was lost
			return next(ctx, req)
		}
	})
	url := listen(t, &s, spy, idempotency.New(newGuard(t, newStore(t)), connectmw.Unscoped(), policy.Required()))
	client := dial(t, url, idempotency.NewClient(), twice)
	for n := range 2 {
		thing, err := client.Make(t.Context(), &things.MakeRequest{})
		is(t, thing, err, []string{"run 1", "run 2"}[n])
	}
	if len(seen) != 4 || seen[0] != seen[1] || seen[2] != seen[3] || seen[0] == seen[2] || len(seen[0]) < 22 {
		t.Errorf("keys %q", seen)
	}
	seen = nil
	_, err := client.Make(with(t, "Idempotency-Key", idempotency.Key(`a "quoted" \ key`)), &things.MakeRequest{})
	ok(t, err)
	if want := `"a \"quoted\" \\ key"`; seen[0] != want || seen[1] != want {
		t.Errorf("keys %q, want %s", seen, want)
	}
	seen = nil
	_, err = client.Make(t.Context(), &things.MakeRequest{RequestId: "own"})
	ok(t, err)
	if _, err := client.Get(t.Context(), &things.GetRequest{}); err != nil { // it has no side effects
		t.Error(err)
	}
	if strings.Join(seen, "") != "" {
		t.Errorf("keys %q", seen)
	}
}

// An interceptor on the side that it is not for fails each call, and says so.
func TestMisplacedInterceptors(t *testing.T) {
	store := newStore(t)
	limiter, anyKey := newLimiter(t, store, plenty), connectmw.Global()
	fails := func(name string, client client) {
		t.Helper()
		_, unary := client.Make(t.Context(), &things.MakeRequest{})
		stream, err := client.Watch(t.Context(), &things.MakeRequest{})
		if err == nil {
			_, err = stream.Recv()
		}
		talk, _ := client.Talk(t.Context())
		_, bidi := talk.Recv()
		for kind, err := range map[string]error{"unary": unary, "stream": err, "bidi": bidi} {
			if codeOf(err) != connect.CodeInternal || !strings.Contains(err.Error(), "connectmw/"+name+": an interceptor of ") {
				t.Errorf("%s, %s: %v", name, kind, err)
			}
		}
	}
	for name, of := range map[string]connect.Interceptor{
		"ratelimit":   ratelimit.New(limiter, anyKey),
		"idempotency": idempotency.New(newGuard(t, store), connectmw.Unscoped()),
		"exclusive":   exclusive.New(newLocker(t, store), anyKey),
		"concurrency": concurrency.New(newSemaphore(t, store, 1), anyKey),
		"fenced":      fenced.New(newMarks(), anyKey),
	} {
		fails(name, dial(t, listen(t, &service{}), of))
	}
	for name, of := range map[string]connect.Interceptor{
		"ratelimit": ratelimit.NewClient(limiter, anyKey), "idempotency": idempotency.NewClient(), "fenced": fenced.NewClient(),
	} {
		var s service
		fails(name, serve(t, &s, of))
		s.ran(t, 0)
	}
}

// An HTTP client that repeats requests repeats the unary calls of the Connect protocol, after the
// server's delay and under their key.
func TestAnHTTPClientRepeatsCalls(t *testing.T) {
	var s service
	var seen []string
	limiter := newLimiter(t, newStore(t), plenty)
	refuses := around(func(ctx context.Context, handler func(context.Context) error) error {
		if seen = append(seen, incoming(ctx, "Idempotency-Key")...); len(seen) == 1 {
			ok(t, limiter.Hold(ctx, "global", time.Millisecond))
		}
		return handler(ctx)
	})
	url := listen(t, &s, refuses, idempotency.New(newGuard(t, newStore(t)), connectmw.Unscoped(), policy.Required()),
		ratelimit.New(limiter, connectmw.Global()))
	transport := new(http.Transport)
	defer transport.CloseIdleConnections()
	client := client{t, thingsconnect.NewThingsClient(&http.Client{Transport: repeating.Transport(transport)}, url,
		connect.WithInterceptors(idempotency.NewClient()))}
	thing, err := client.Make(t.Context(), &things.MakeRequest{})
	is(t, thing, err, "run 1")
	s.ran(t, 1)
	if len(seen) != 2 || seen[0] != seen[1] {
		t.Errorf("keys %q", seen)
	}
}
