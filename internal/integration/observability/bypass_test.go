package observability_test

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
	"github.com/lockkeeper/lockkeeper/nethttp/exclusive"
	"github.com/lockkeeper/lockkeeper/nethttp/fenced"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// failing is a store of token buckets, and a checker of fences, that fails with an error.
type failing struct {
	store.Buckets
	err error
}

func (f failing) TakeTokens(context.Context, store.TokenRequest, ...store.TokenRequest) (store.TakeReply, error) {
	return store.TakeReply{}, f.err
}

// answers is a RoundTripper.
type answers func(*http.Request) (*http.Response, error)

func (f answers) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

func (f failing) Check(context.Context, string, fence.Token) error { return f.err }

// outages are errors of every cause for which requests may pass.
var outages = []error{
	fmt.Errorf("%w: %w", store.ErrUnavailable, syscall.ECONNREFUSED),
	fmt.Errorf("%w: %w", store.ErrUnavailable, &net.DNSError{IsNotFound: true}),
	fmt.Errorf("%w: %w", store.ErrUnavailable, os.ErrDeadlineExceeded),
	fmt.Errorf("%w: something else", store.ErrUnavailable),
	store.Outage(store.Persistence, context.Canceled),
	store.Outage(store.Replication, context.Canceled),
	store.Outage(store.Starting, context.Canceled),
	store.Outage(store.ServerBusy, context.Canceled),
	store.Outage(store.ClusterDown, context.Canceled),
	store.Outage(store.ConnectionLimit, context.Canceled),
	store.Misconfigured(store.Authentication, context.Canceled),
	store.Misconfigured(store.Permission, context.Canceled),
	store.Misconfigured(store.ReadOnly, context.Canceled),
	store.Misconfigured(store.Eviction, context.Canceled),
	store.Misconfigured(store.WrongServer, context.Canceled),
}

// driveBypasses makes requests bypass the store, for every cause and through every middleware,
// until the store replies again, and sends one without the application's key, and one whose server asks
// for a pause that the store does not keep.
func driveBypasses(w *world, st store.Store, broken *storetest.Faulty) {
	logs, meters := policy.Logger(w.logger()), policy.MeterProvider(w.meters)
	failOpen, unprotected := policy.FailOpen(policy.EvenMisconfigured()), policy.RunUnprotected(policy.EvenMisconfigured())
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	send := func(h http.Handler) int {
		r := httptest.NewRequestWithContext(w.t.Context(), http.MethodPost, "/"+secretRequest, nil)
		r.Header.Set("Idempotency-Key", secretIdempotency+"-unprotected")
		r.Header.Set(fence.Header, "1")
		rw := httptest.NewRecorder()
		h.ServeHTTP(rw, r)
		return rw.Code
	}
	key := nethttp.KeyFunc(func(*http.Request) (string, error) { return secretKey + " without a store", nil })
	for _, err := range outages {
		for _, h := range []http.Handler{
			ratelimit.New(w.limiter(failing{err: err}, tokenbucket.PerHour(1)), key, failOpen, logs, meters)(handler),
			fenced.New(failing{err: err}, key, unprotected, logs, meters)(handler),
		} {
			if status := send(h); status != http.StatusOK {
				w.t.Errorf("%v: status %d", err, status)
			}
		}
	}
	limited := ratelimit.New(w.limiter(st, tokenbucket.PerHour(1000)), key, failOpen, logs, meters)(handler)
	for _, c := range []struct {
		op storetest.Op
		h  http.Handler
	}{
		{storetest.TakeTokens, limited},
		{storetest.BeginOperation, idempotency.New(w.guard(st), nethttp.ScopeBy(key), unprotected, logs, meters)(handler)},
		{storetest.AcquireLease, exclusive.New(w.locker(st), key, unprotected, logs, meters)(handler)},
		{storetest.AcquireLease, concurrency.New(w.semaphore(st), key, failOpen, logs, meters)(handler)},
	} {
		broken.Break(c.op, storetest.Misconfigured)
		if status := send(c.h); status != http.StatusOK {
			w.t.Errorf("%s fails: status %d", c.op, status)
		}
		broken.Mend(c.op)
	}
	until(w.t, "the store is seen to decide again", func() bool {
		send(limited)
		return len(w.log.records(w.t, "requests no longer bypass the store")) > 0
	})
	refused := answers(func(*http.Request) (*http.Response, error) {
		return &http.Response{StatusCode: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}, Body: http.NoBody}, nil
	})
	broken.Break(storetest.HoldTokens, storetest.Down)
	client := ratelimit.Transport(refused, w.limiter(st, tokenbucket.PerHour(1000)), key, logs, meters)
	if resp, err := client.RoundTrip(httptest.NewRequestWithContext(w.t.Context(), http.MethodGet, "/"+secretRequest, nil)); err != nil {
		w.t.Errorf("a key that the store does not hold: %v", err)
	} else {
		_ = resp.Body.Close()
	}
	broken.Mend(storetest.HoldTokens)
	missing := nethttp.KeyFunc(func(*http.Request) (string, error) { return "", policy.ErrNotProvided })
	if status := send(ratelimit.New(w.limiter(st, tokenbucket.PerHour(1)), missing, logs, meters)(handler)); status != http.StatusInternalServerError {
		w.t.Errorf("a key that the application did not provide: status %d", status)
	}
}

// driveShadow sends requests that a shadow would deny, for every reason.
func driveShadow(w *world, broken *storetest.Faulty) {
	logs, meters := policy.Logger(w.logger()), policy.MeterProvider(w.meters)
	limiter := w.limiter(broken, tokenbucket.PerHour(1))
	send := func(by string, err error) {
		key := nethttp.KeyFunc(func(*http.Request) (string, error) { return by, err })
		handler := http.HandlerFunc(func(rw http.ResponseWriter, _ *http.Request) { rw.WriteHeader(http.StatusNoContent) })
		h := ratelimit.New(limiter, key, policy.Shadow(), logs, meters)(handler)
		w.request(func(ctx context.Context) {
			rw := httptest.NewRecorder()
			h.ServeHTTP(rw, httptest.NewRequestWithContext(ctx, http.MethodPost, "/"+secretRequest, nil))
			if rw.Code != http.StatusNoContent {
				w.t.Errorf("%q, %v: status %d", by, err, rw.Code)
			}
		})
	}
	send(secretKey+" in the shadow", nil)
	send(secretKey+" in the shadow", nil) // over the limit
	ok(w.t, limiter.Hold(w.t.Context(), secretKey+" held in the shadow", time.Hour))
	send(secretKey+" held in the shadow", nil)
	send("", nil)
	send(strings.Repeat(secretKey, 200), nil)
	send("", policy.ErrNotProvided)
	broken.Break(storetest.TakeTokens, storetest.Down)
	send(secretKey+" in the shadow", nil)
	broken.Mend(storetest.TakeTokens)
}

// driveMistakes sends requests through middleware in every wrong order that is logged, and has one
// answered with more than its guard keeps.
func driveMistakes(w *world, st store.Store) {
	logs, meters := policy.Logger(w.logger()), policy.MeterProvider(w.meters)
	key := nethttp.KeyFunc(func(*http.Request) (string, error) { return secretKey + " in the wrong order", nil })
	orders := idempotency.New(w.guard(st), nethttp.ScopeBy(key), logs, meters)
	other := idempotency.New(must(guard.New(st, "others", guard.WithMeterProvider(w.meters), guard.WithTracerProvider(w.tracers))),
		nethttp.ScopeBy(key), logs, meters)
	locked := exclusive.New(w.locker(st), key, logs, meters)
	small := idempotency.New(w.guard(st, guard.WithMaxResult(1)), nethttp.ScopeBy(key), logs, meters)
	handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	large := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, secretResult) })
	for n, h := range []http.Handler{orders(orders(handler)), other(orders(handler)), locked(orders(handler)), small(large)} {
		r := httptest.NewRequestWithContext(w.t.Context(), http.MethodPost, "/"+secretRequest, nil)
		r.Header.Set("Idempotency-Key", secretIdempotency+"-in-order-"+strconv.Itoa(n))
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	locked(http.TimeoutHandler(handler, patience, ""))
}

// driveMisconfiguration uses a server that requires a password.
func driveMisconfiguration(w *world, server *redistest.Server) {
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), Username: "stranger", Password: secretHeader, ContextTimeoutEnabled: true, ReadTimeout: reply,
	})
	defer func() { _ = client.Close() }()
	st := w.onClient(client)
	defer func() { _ = st.Close() }()
	if _, err := w.limiter(st, tokenbucket.PerHour(1)).Allow(w.t.Context(), secretKey); store.CauseOf(err) != store.Authentication {
		w.t.Errorf("a wrong password: %v", err)
	}
}
