package ratelimit_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// wire is a RoundTripper that answers as told, with the last answer from then on.
type wire struct {
	answers []answer

	mu   sync.Mutex
	sent []*http.Request
	at   []time.Time
	idle int
}

type answer struct {
	status int // 200 if zero
	header http.Header
	body   io.ReadCloser
	err    error
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sent, w.at = append(w.sent, r), append(w.at, time.Now())
	if r.Body != nil {
		_ = r.Body.Close()
	}
	a := answer{}
	if len(w.answers) > 0 {
		a = w.answers[min(len(w.sent), len(w.answers))-1]
	}
	if a.err != nil {
		return nil, a.err
	}
	return &http.Response{StatusCode: cmp.Or(a.status, 200), Header: a.header, Body: a.body, Request: r}, nil
}

func (w *wire) CloseIdleConnections() { w.idle++ }

func (w *wire) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return len(w.sent)
}

// body is the body of a request.
type body struct {
	io.Reader
	closed atomic.Int32
}

func (b *body) Close() error {
	b.closed.Add(1)
	return nil
}

// newStore returns a store in memory that can fail.
func newStore(t testing.TB) *storetest.Faulty {
	st := memstore.New()
	t.Cleanup(func() { _ = st.Close() })
	return storetest.NewFaulty(st)
}

func newLimiter(st store.Buckets, plan tokenbucket.Plan) *tokenbucket.Limiter {
	return must(tokenbucket.New(st, "psp", plan))
}

// plenty is a limit that no test reaches.
var plenty = tokenbucket.PerSecond(1000)

// byTenant is a header field that the clients of these tests set.
func byTenant(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), nil }

func outgoing(ctx context.Context, tenant string) *http.Request {
	r := must(http.NewRequestWithContext(ctx, http.MethodGet, "http://psp.example/charges", nil))
	r.Header.Set("X-Tenant", tenant)
	return r
}

// send sends a request of a tenant, and returns its status.
func send(t testing.TB, transport http.RoundTripper, tenant string) int {
	t.Helper()
	resp, err := transport.RoundTrip(outgoing(t.Context(), tenant))
	if err != nil {
		t.Fatal(err)
	}
	if resp.Body != nil {
		_ = resp.Body.Close()
	}
	return resp.StatusCode
}

// failure returns the error of a request of a tenant that is not answered.
func failure(ctx context.Context, t *testing.T, transport http.RoundTripper, tenant string) error {
	t.Helper()
	resp, err := transport.RoundTrip(outgoing(ctx, tenant))
	if resp != nil {
		t.Errorf("an answer with %v", err)
	}
	return err
}

// took returns how long f takes.
func took(f func()) time.Duration {
	start := time.Now()
	f()
	return time.Since(start)
}

func refusal(retryAfter string) answer {
	return answer{status: http.StatusTooManyRequests, header: header("Retry-After", retryAfter)}
}

// Requests of a key are sent at its rate, as they are, and their answers are returned as they came.
func TestTransportPaces(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		answered := &body{Reader: strings.NewReader("hello")}
		w := &wire{answers: []answer{{body: answered}}}
		transport := ratelimit.Transport(w, newLimiter(newStore(t), tokenbucket.PerSecond(1)), byTenant)
		for n := range 3 {
			r := outgoing(t.Context(), "a")
			before := r.Clone(r.Context())
			resp, err := transport.RoundTrip(r)
			if err != nil || resp.Body != answered || resp.Request != r || answered.closed.Load() != 0 {
				t.Errorf("%+v, %v", resp, err)
			}
			if w.sent[n] != r || fmt.Sprint(r.Header) != fmt.Sprint(before.Header) || *r.URL != *before.URL {
				t.Errorf("the request was changed: %+v", r)
			}
		}
		if d := took(func() { send(t, transport, "b") }); d != 0 {
			t.Errorf("another key waited for %v", d)
		}
		if d := w.at[2].Sub(w.at[0]); d < 2*time.Second || d > 2*time.Second+time.Millisecond {
			t.Errorf("three requests of a key took %v", d)
		}
		transport.(interface{ CloseIdleConnections() }).CloseIdleConnections()
		if w.idle != 1 {
			t.Error("idle connections are not closed")
		}
	})
}

// A request that is not sent closes its body, and says why.
func TestRequestsThatAreNotSent(t *testing.T) {
	errKey, errLeft := errors.New("no tenant"), errors.New("the user has left")
	long := strings.Repeat("k", 1025)
	for name, c := range map[string]struct {
		key   string
		fail  error
		ctx   func(context.Context) (context.Context, context.CancelFunc)
		fault storetest.Fault
		want  error
		after time.Duration
	}{
		"the token comes after the deadline": {key: "a", want: context.DeadlineExceeded,
			ctx: func(ctx context.Context) (context.Context, context.CancelFunc) {
				return context.WithTimeout(ctx, 59*time.Minute)
			}},
		"the context ends": {key: "a", want: errLeft, after: time.Minute,
			ctx: func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancelCause(ctx)
				timer := time.AfterFunc(time.Minute, func() { cancel(errLeft) })
				return ctx, func() { timer.Stop(); cancel(nil) }
			}},
		"the context has ended": {key: "b", want: context.Canceled,
			ctx: func(ctx context.Context) (context.Context, context.CancelFunc) {
				ctx, cancel := context.WithCancel(ctx)
				cancel()
				return ctx, cancel
			}},
		"the store is down":      {key: "b", fault: storetest.Down, want: store.ErrUnavailable},
		"the reply is lost":      {key: "b", fault: storetest.LostReply, want: store.ErrUnconfirmed},
		"the key function fails": {key: "b", fail: errKey, want: errKey},
		"there is no key":        {key: "", want: policy.ErrNoKey},
		"the key is too long":    {key: long, want: tokenbucket.ErrInvalidKey},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				st, w := newStore(t), &wire{}
				key := func(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), c.fail }
				limiter := newLimiter(st, tokenbucket.PerHour(1))
				transport := ratelimit.Transport(w, limiter, key)
				_ = must(limiter.Allow(t.Context(), "a"))
				if c.fault != 0 {
					st.Break(storetest.TakeTokens, c.fault)
				}
				ctx, cancel := t.Context(), context.CancelFunc(func() {})
				if c.ctx != nil {
					ctx, cancel = c.ctx(ctx)
				}
				defer cancel()
				r, sent := outgoing(ctx, c.key), &body{Reader: strings.NewReader("tea")}
				r.Body = sent
				var err error
				d := took(func() { _, err = transport.RoundTrip(r) })
				if !errors.Is(err, c.want) || !errors.Is(err, ratelimit.ErrNotSent) || w.count() != 0 || sent.closed.Load() != 1 {
					t.Errorf("%v, sent %d times, body closed %d times", err, w.count(), sent.closed.Load())
				}
				if d != c.after {
					t.Errorf("it took %v", d)
				}
			})
		})
	}
}

// Transports are combined so that each try takes a token, and waits for the end of a hold.
func TestWithIdempotencyTransport(t *testing.T) {
	post := func(t *testing.T, transport http.RoundTripper) {
		r := outgoing(t.Context(), "a")
		r.Method = http.MethodPost
		resp, err := transport.RoundTrip(r)
		if err != nil || resp.StatusCode != 200 || idempotency.Tries(resp) != 3 {
			t.Errorf("%+v, %v", resp, err)
		}
	}
	left := func(t *testing.T, l *tokenbucket.Limiter) int64 {
		return must(l.Peek(t.Context(), "a")).Limits()[0].Remaining
	}
	answers := []answer{refusal("2"), {status: 503, header: header("Retry-After", "0")}, {}}
	t.Run("round it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, limiter := &wire{answers: answers}, newLimiter(newStore(t), tokenbucket.PerDay(10))
			post(t, idempotency.Transport(ratelimit.Transport(w, limiter, byTenant)))
			if d := w.at[1].Sub(w.at[0]); d < 2*time.Second || d > 3*time.Second {
				t.Errorf("the second try was after %v", d)
			}
			if n := left(t, limiter); n != 7 {
				t.Errorf("%d tokens are left after three tries", n)
			}
			keys := map[string]bool{}
			for _, r := range w.sent {
				keys[r.Header.Get("Idempotency-Key")] = true
			}
			if len(keys) != 1 {
				t.Errorf("keys %v", keys)
			}
		})
	})
	t.Run("inside it", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, limiter := &wire{answers: answers}, newLimiter(newStore(t), tokenbucket.PerDay(10))
			post(t, ratelimit.Transport(idempotency.Transport(w), limiter, byTenant))
			if n := left(t, limiter); n != 9 {
				t.Errorf("%d tokens are left after one request", n)
			}
		})
	})
	t.Run("what is not sent is not tried again", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			w, limiter := &wire{}, newLimiter(newStore(t), tokenbucket.PerDay(1))
			transport := idempotency.Transport(ratelimit.Transport(w, limiter, byTenant))
			_ = must(limiter.Allow(t.Context(), "a"))
			ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
			defer cancel()
			for _, tenant := range []string{"a", ""} {
				var err error
				d := took(func() { _, err = transport.RoundTrip(outgoing(ctx, tenant)) })
				if d != 0 || !errors.Is(err, ratelimit.ErrNotSent) {
					t.Errorf("%v after %v", err, d)
				}
			}
		})
	})
	t.Run("an outage that ends", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			st, w := newStore(t), &wire{}
			transport := idempotency.Transport(ratelimit.Transport(w, newLimiter(st, plenty), byTenant))
			st.BreakNext(storetest.TakeTokens, storetest.Down, 2)
			if send(t, transport, "a") != 200 || w.count() != 1 {
				t.Errorf("sent %d times", w.count())
			}
		})
	})
}

// A base that answers with less than net/http's does no harm.
func TestOddAnswers(t *testing.T) {
	limiter := newLimiter(newStore(t), plenty)
	errBroken := errors.New("broken")
	for name, c := range map[string]struct {
		resp  *http.Response
		err   error
		holds bool
	}{
		"no answer": {},
		"no header": {resp: &http.Response{StatusCode: 429}, holds: true},
		"an error":  {err: errBroken},
		"both":      {resp: &http.Response{StatusCode: 429, Header: header("Retry-After", "60")}, err: errBroken},
	} {
		base := roundTrip(func(*http.Request) (*http.Response, error) { return c.resp, c.err })
		resp, err := ratelimit.Transport(base, limiter, byTenant).RoundTrip(outgoing(t.Context(), name))
		if resp != c.resp || err != c.err {
			t.Errorf("%s: %v, %v", name, resp, err)
		}
		if d := must(limiter.Peek(t.Context(), name)); d.Held > time.Second || !c.holds && d.Held > 0 {
			t.Errorf("%s: held for %v", name, d.Held)
		}
	}
}

type roundTrip func(*http.Request) (*http.Response, error)

func (f roundTrip) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// A decoder that panics does not leak the connection of its answer.
func TestDecoderPanics(t *testing.T) {
	answered := &body{Reader: strings.NewReader("hello")}
	transport := ratelimit.Transport(&wire{answers: []answer{{body: answered}}}, newLimiter(newStore(t), plenty), byTenant,
		ratelimit.Decoders(func(*http.Response) time.Duration { panic("a mistake") }))
	defer func() {
		if got := recover(); got != "a mistake" || answered.closed.Load() != 1 {
			t.Errorf("recovered %v, body closed %d times", got, answered.closed.Load())
		}
	}()
	send(t, transport, "a")
}

// What the application should have provided is logged once.
func TestTransportWithoutItsKey(t *testing.T) {
	var logs bytes.Buffer
	type tenantKey struct{}
	transport := ratelimit.Transport(&wire{}, newLimiter(newStore(t), plenty), nethttp.ByContext(tenantKey{}),
		policy.Logger(slog.New(slog.NewTextHandler(&logs, nil))))
	for range 2 {
		if err := failure(t.Context(), t, transport, "a"); !errors.Is(err, policy.ErrNotProvided) {
			t.Errorf("%v", err)
		}
	}
	if strings.Count(logs.String(), "does not provide") != 1 {
		t.Errorf("logged %s", logs.String())
	}
}

func TestByHost(t *testing.T) {
	for url, want := range map[string]string{
		"https://api.example":          "api.example",
		"https://API.example.:443/x?y": "api.example",
		"http://api.example:80":        "api.example",
		"https://api.example:80":       "api.example:80",
		"http://user@api.example:8080": "api.example:8080",
		"http://[2001:DB8::1]:8080":    "[2001:db8::1]:8080",
		"http://[2001:db8::1]":         "2001:db8::1",
	} {
		r := must(http.NewRequestWithContext(t.Context(), http.MethodGet, url, nil))
		r.Host = "other.example" // a virtual host is a matter of the server's
		if got, err := ratelimit.ByHost()(r); got != want || err != nil {
			t.Errorf("%s: %q, %v", url, got, err)
		}
	}
	for _, r := range []*http.Request{{}, must(http.NewRequestWithContext(t.Context(), http.MethodGet, "/path", nil))} {
		if got, err := ratelimit.ByHost()(r); got != "" || !errors.Is(err, policy.ErrNotProvided) {
			t.Errorf("%q, %v", got, err)
		}
	}
}

// A limiter that does not enforce lets all requests be sent, also those without a key. Pauses that
// servers ask for are obeyed.
func TestTransportUnenforced(t *testing.T) {
	for _, mode := range []tokenbucket.Mode{tokenbucket.Shadow, tokenbucket.Off} {
		synctest.Test(t, func(t *testing.T) {
			st := newStore(t)
			limiter := newLimiter(st, tokenbucket.PerDay(1))
			if err := limiter.SetEnforcement(tokenbucket.Enforcement{Mode: mode}); err != nil {
				t.Fatal(err)
			}
			w := &wire{answers: []answer{{}, {}, {}, {}, refusal("60"), refusal("60"), {}}}
			var log bytes.Buffer
			transport := ratelimit.Transport(w, limiter, byTenant, policy.Logger(slog.New(slog.NewTextHandler(&log, nil))))
			d := took(func() {
				for _, tenant := range []string{"a", "a", "a", "", "", "a"} {
					send(t, transport, tenant)
				}
			})
			if d != 0 {
				t.Errorf("%v: requests waited for %v", mode, d)
			}
			if d := took(func() { send(t, transport, "a") }); d != time.Minute {
				t.Errorf("%v: a request of a key that its server holds waited for %v", mode, d)
			}
			if d := took(func() { send(t, transport, "b") }); d != 0 || log.Len() > 0 || st.Calls(storetest.HoldTokens) > 0 {
				t.Errorf("%v: %v, held %d times, logged %s", mode, d, st.Calls(storetest.HoldTokens), log.String())
			}
			if code := send(t, transport, strings.Repeat("k", 1025)); code != 200 {
				t.Errorf("%v: a long key: %d", mode, code)
			}
			if err := limiter.SetEnforcement(tokenbucket.Enforcement{}); err != nil {
				t.Fatal(err)
			}
			if err := failure(t.Context(), t, transport, ""); !errors.Is(err, policy.ErrNoKey) {
				t.Errorf("enforced: %v", err)
			}
		})
	}
}

// Many goroutines, of which one in ten gets an answer that asks for a pause.
func TestTransportConcurrently(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var n atomic.Int32
		base := roundTrip(func(r *http.Request) (*http.Response, error) {
			if n.Add(1)%10 == 0 {
				return &http.Response{StatusCode: 429, Header: header("Retry-After", "1"), Body: http.NoBody}, nil
			}
			return &http.Response{StatusCode: 200, Body: http.NoBody}, nil
		})
		st := newStore(t)
		transport := ratelimit.Transport(base, newLimiter(st, plenty), byTenant, policy.FailOpen())
		st.BreakNext(storetest.HoldTokens, storetest.Down, 20)
		var wait sync.WaitGroup
		for g := range 32 {
			wait.Go(func() {
				for range 20 {
					send(t, transport, fmt.Sprint(g%4))
				}
			})
		}
		wait.Wait()
		if n.Load() != 32*20 {
			t.Errorf("sent %d times", n.Load())
		}
	})
}

// An ordinary answer costs no more than a decision alone, and one allocation.
func TestTransportAllocates(t *testing.T) {
	limiter := newLimiter(memstore.New(), tokenbucket.PerSecond(1000).Burst(1e9))
	resp := &http.Response{StatusCode: 200, Header: header("Content-Type", "text/plain"), Body: http.NoBody}
	transport := ratelimit.Transport(roundTrip(func(*http.Request) (*http.Response, error) { return resp, nil }), limiter, byTenant)
	r := outgoing(t.Context(), "a")
	decision := testing.AllocsPerRun(1000, func() { _ = limiter.Wait(t.Context(), "a") })
	got := testing.AllocsPerRun(1000, func() { _, _ = transport.RoundTrip(r) })
	if got > decision+1 {
		t.Errorf("%v allocations, where a decision makes %v", got, decision)
	}
}

func TestTransportIsWired(t *testing.T) {
	limiter := newLimiter(newStore(t), plenty)
	for want, build := range map[string]func(){
		"ratelimit: Transport: nil limiter":                                    func() { ratelimit.Transport(nil, nil, byTenant) },
		"ratelimit: Transport: nil key":                                        func() { ratelimit.Transport(nil, limiter, nil) },
		"ratelimit: Decoders: nil decoder":                                     func() { ratelimit.Decoders(ratelimit.Standard, nil) },
		"policy: MaxHold: -1s is neither 0 nor between 1ms and 720h0m0s":       func() { policy.MaxHold(-time.Second) },
		"policy: MaxHold: 15ns is neither 0 nor between 1ms and 720h0m0s":      func() { policy.MaxHold(15) },
		"policy: MaxHold: 8760h0m0s is neither 0 nor between 1ms and 720h0m0s": func() { policy.MaxHold(year) },
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("panicked with %v, want %s", got, want)
				}
			}()
			build()
		}()
	}
	ratelimit.Transport(nil, limiter, byTenant, nil, policy.MaxHold(tokenbucket.MaxHold))
}
