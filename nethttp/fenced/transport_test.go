package fenced_test

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/nethttp/fenced"
)

func TestMain(m *testing.M) { leaktest.Main(m, redistest.Redialing) }

// wire is a RoundTripper that records its request.
type wire struct {
	sent []*http.Request
	err  error
	idle int
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	w.sent = append(w.sent, r)
	return &http.Response{StatusCode: http.StatusNoContent, Body: http.NoBody, Request: r}, w.err
}

func (w *wire) CloseIdleConnections() { w.idle++ }

func newLocker(t *testing.T, st store.Leases, opts ...lock.Option) *lock.Locker {
	t.Helper()
	l := must(lock.New(st, "accounts", opts...))
	t.Cleanup(func() { _ = l.Close() })
	return l
}

func inMemory(t *testing.T) *lock.Locker {
	t.Helper()
	st := memstore.New()
	t.Cleanup(func() { _ = st.Close() })
	return newLocker(t, st)
}

// held returns a lease from a lock function.
func held(ctx context.Context, t *testing.T, take func(context.Context, string) (*lock.Lease, error), key string) *lock.Lease {
	t.Helper()
	lease := must(take(ctx, key))
	t.Cleanup(func() { _ = lease.Unlock(context.Background()) })
	return lease
}

// request returns a request with these fences in its header; nil leaves the field out.
func request(ctx context.Context, t *testing.T, fences []string) *http.Request {
	t.Helper()
	r := must(http.NewRequestWithContext(ctx, http.MethodPut, "http://accounts.example/7", http.NoBody))
	r.Header.Set("X-Other", "stays")
	if fences != nil {
		r.Header[fence.Header] = fences
	}
	return r
}

func TestTransportSendsTheFenceOfTheLease(t *testing.T) {
	locker := inMemory(t)
	outer := held(t.Context(), t, locker.Lock, "1")
	inner := held(outer.Context(), t, locker.Lock, "2")
	reader := held(t.Context(), t, locker.RLock, "3")
	over := held(t.Context(), t, locker.Lock, "4")
	late := context.WithoutCancel(over.Context())
	if err := over.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name string
		ctx  context.Context
		set  []string
		want []string
	}{
		{"a lease", outer.Context(), nil, []string{outer.Fence().String()}},
		{"the innermost of two", inner.Context(), nil, []string{inner.Fence().String()}},
		{"a shared lease", reader.Context(), nil, []string{reader.Fence().String()}},
		{"an expired lease", late, nil, []string{over.Fence().String()}},
		{"no lease", t.Context(), nil, nil},
		{"a field that is set", outer.Context(), []string{"7"}, []string{"7"}},
		{"a field without a value", outer.Context(), []string{}, []string{}},
		{"a field, and no lease", t.Context(), []string{"7"}, []string{"7"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var w wire
			r := request(c.ctx, t, c.set)
			resp := must(fenced.Transport(&w).RoundTrip(r))
			_ = resp.Body.Close()
			got, ok := w.sent[0].Header[fence.Header]
			if !slices.Equal(got, c.want) || ok != (c.want != nil) {
				t.Errorf("sent %q, want %q", got, c.want)
			}
			if now, ok := r.Header[fence.Header]; !slices.Equal(now, c.set) || ok != (c.set != nil) {
				t.Errorf("the caller's request has %q now, and had %q", now, c.set)
			}
			if w.sent[0].Header.Get("X-Other") != "stays" || w.sent[0].URL.String() != r.URL.String() || w.sent[0].Context() != c.ctx {
				t.Errorf("the rest of the request was changed: %v", w.sent[0])
			}
		})
	}
}

// A RoundTripper may get a request without a header, since no Client has prepared it.
func TestTransportOfARequestWithoutAHeader(t *testing.T) {
	lease := held(t.Context(), t, inMemory(t).Lock, "1")
	var w wire
	r := request(lease.Context(), t, nil)
	r.Header = nil
	resp := must(fenced.Transport(&w).RoundTrip(r))
	_ = resp.Body.Close()
	if got := w.sent[0].Header.Get(fence.Header); got != lease.Fence().String() || r.Header != nil {
		t.Errorf("sent %q, and the caller's request has the header %v", got, r.Header)
	}
}

// The caller gets the wire's errors, and a Client can close idle connections.
func TestTransportHidesNothing(t *testing.T) {
	w := wire{err: errors.New("unplugged")}
	client := http.Client{Transport: fenced.Transport(&w)}
	if _, err := client.Do(request(t.Context(), t, nil)); !errors.Is(err, w.err) {
		t.Errorf("%v, want %v", err, w.err)
	}
	client.CloseIdleConnections()
	if w.idle != 1 {
		t.Errorf("idle connections were closed %d times", w.idle)
	}
}

// must returns v, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
