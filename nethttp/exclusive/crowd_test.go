package exclusive_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/exclusive"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
)

const patience = 30 * time.Second

// held returns a locker, and a lease of the key of all requests.
func held(t *testing.T) (*lock.Locker, *lock.Lease) {
	t.Helper()
	locker := must(lock.New(memstore.New(), "carts"))
	t.Cleanup(func() { _ = locker.Close() })
	lease := must(locker.Lock(t.Context(), "global"))
	return locker, lease
}

// reaches waits until there are that many waiters for the lock.
func reaches(t *testing.T, locker *lock.Locker, want int) {
	t.Helper()
	for deadline := time.Now().Add(patience); ; <-time.After(time.Millisecond) {
		var others *lock.HeldError
		if _, err := locker.TryLock(t.Context(), "global"); errors.As(err, &others) && others.Waiting == want {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d wait, want %d", others.Waiting, want)
		}
	}
}

// Of 5,000 requests for a locked key the maximum waits, and the others are refused at once.
func TestManyRequests(t *testing.T) {
	const crowd, most = 5_000, 1_024
	locker, lease := held(t)
	var runs atomic.Int64
	passes := nethttp.Unless(func(r *http.Request) bool { return r.Method == http.MethodHead })
	h := exclusive.New(locker, nethttp.Global(), policy.Wait(time.Minute), passes)(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method != http.MethodHead {
			runs.Add(1)
		}
	}))
	server := httptest.NewUnstartedServer(h)
	server.EnableHTTP2 = true
	server.Config.HTTP2 = &http.HTTP2Config{MaxConcurrentStreams: 2 * crowd}
	server.StartTLS()
	defer server.Close()
	if resp, err := server.Client().Head(server.URL); err != nil || resp.ProtoMajor != 2 { //nolint:noctx // one connection for all
		t.Fatal(resp, err)
	}

	statuses := make(chan *http.Response, crowd)
	for range crowd {
		go func() {
			resp, err := server.Client().Post(server.URL, "text/plain", strings.NewReader("body")) //nolint:noctx // it ends with the server
			if err != nil {
				t.Error(err)
				resp = &http.Response{Body: http.NoBody}
			}
			_ = resp.Body.Close()
			statuses <- resp
		}()
	}
	refused := time.After(patience)
	for range crowd - most {
		select {
		case resp := <-statuses:
			if resp.StatusCode != http.StatusConflict || resp.Header.Get("Retry-After") == "" {
				t.Fatalf("%d %v", resp.StatusCode, resp.Header)
			}
		case <-refused:
			t.Fatal("they wait")
		}
	}
	reaches(t, locker, most)
	if err := lease.Unlock(t.Context()); err != nil {
		t.Fatal(err)
	}
	for range most {
		if resp := <-statuses; resp.StatusCode != http.StatusOK {
			t.Fatalf("one that waited: %d", resp.StatusCode)
		}
	}
	if runs.Load() != most {
		t.Errorf("%d ran", runs.Load())
	}
}

// 300 clients disconnect while their requests wait, behind a guard and without one.
func TestManyClientsDisconnect(t *testing.T) {
	const crowd = 300
	for name, guarded := range map[string]bool{"alone": false, "behind a guard": true} {
		t.Run(name, func(t *testing.T) {
			locker, lease := held(t)
			var runs atomic.Int64
			h := exclusive.New(locker, nethttp.Global(), policy.Wait(time.Minute))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { runs.Add(1) }))
			if guarded {
				g := must(guard.New(memstore.New(), "orders"))
				h = idempotency.New(g, nethttp.ScopeBy(nethttp.ByHeader("X-User")))(h)
			}
			server := httptest.NewServer(h)
			ctx, leave := context.WithCancel(t.Context())
			var left sync.WaitGroup
			for n := range crowd {
				left.Go(func() {
					req, err := http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader(`{"n":1}`))
					if err != nil {
						t.Error(err)
						return
					}
					req.Header.Set("Content-Type", "application/json")
					req.Header.Set("Idempotency-Key", "k")
					req.Header.Set("X-User", strings.Repeat("u", n+1))
					if resp, err := server.Client().Do(req); err == nil {
						_ = resp.Body.Close()
						t.Errorf("an answer: %s", resp.Status)
					}
				})
			}
			reaches(t, locker, crowd)
			leave()
			left.Wait()
			reaches(t, locker, 0)
			if err := lease.Unlock(t.Context()); err != nil {
				t.Fatal(err)
			}
			server.Close()
			if runs.Load() != 0 {
				t.Errorf("%d ran", runs.Load())
			}
		})
	}
}

// must returns v, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
