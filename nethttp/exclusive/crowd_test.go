package exclusive_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/exclusive"
)

const patience = 30 * time.Second

// held returns a locker, and a lease of the key of all requests.
func held(t *testing.T) (*lock.Locker, *lock.Lease) {
	t.Helper()
	locker, err := lock.New(memstore.New(), "carts")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close() })
	lease, err := locker.Lock(t.Context(), "global")
	if err != nil {
		t.Fatal(err)
	}
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
