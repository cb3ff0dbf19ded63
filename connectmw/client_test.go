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
	"github.com/lockkeeper/lockkeeper/core/fence/memfence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/testing/rpctest"
	repeating "github.com/lockkeeper/lockkeeper/nethttp/idempotency"
)

// An interceptor on the side that it is not for fails each call, and says so.
func TestMisplacedInterceptors(t *testing.T) {
	store := rpctest.NewStore(t)
	limiter, anyKey := rpctest.NewLimiter(t, store, rpctest.Plenty), connectmw.Global()
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
		"idempotency": idempotency.New(rpctest.NewGuard(t, store), connectmw.Unscoped()),
		"exclusive":   exclusive.New(rpctest.NewLocker(t, store), anyKey),
		"concurrency": concurrency.New(rpctest.NewSemaphore(t, store, 1), anyKey),
		"fenced":      fenced.New(must(memfence.New()), anyKey),
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
	limiter := rpctest.NewLimiter(t, rpctest.NewStore(t), rpctest.Plenty)
	refuses := around(func(ctx context.Context, handler func(context.Context) error) error {
		if seen = append(seen, incoming(ctx, "Idempotency-Key")...); len(seen) == 1 {
			ok(t, limiter.Hold(ctx, "global", time.Millisecond))
		}
		return handler(ctx)
	})
	url := listen(t, &s, refuses, idempotency.New(rpctest.NewGuard(t, rpctest.NewStore(t)), connectmw.Unscoped(), policy.Required()),
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
