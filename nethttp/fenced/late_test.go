package fenced_test

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/fence/redisfence"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/fenced"
)

// A holder is paused for longer than its lease, after its last check of the lease and before its
// write. With the middleware on every server of the resource, the write is refused; without it, it
// overwrites a later one.
func TestLateWriteOfAPausedHolder(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		guarded bool
		status  int
		account string
	}{
		"fenced":   {true, http.StatusPreconditionFailed, "B"},
		"unfenced": {false, http.StatusNoContent, "A"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			client := server.Client()
			// Two instances of a service: nothing in their memory is shared.
			one, two := newService(t, server.Client(), c.guarded), newService(t, server.Client(), c.guarded)

			a := newHolder(t, server.Client(), lock.WithoutRenewal(), lock.WithTTL(testpace.Scale(2*time.Second)))
			b := newHolder(t, server.Client())

			leaseOfA := held(t.Context(), t, a.locker.Lock, "7")
			before := context.WithoutCancel(leaseOfA.Context()) // A has checked its lease, and is paused
			leaseOfB := held(t.Context(), t, b.locker.Lock, "7")
			if leaseOfA.Context().Err() == nil || leaseOfB.Fence().Number <= leaseOfA.Fence().Number {
				t.Fatalf("B has the lock with fence %v while A holds it with %v", leaseOfB.Fence(), leaseOfA.Fence())
			}
			b.put(leaseOfB.Context(), t, one, "B", http.StatusNoContent)
			a.put(before, t, two, "A", c.status)
			if got := client.Get(t.Context(), "account:7").Val(); got != c.account {
				t.Errorf("the account is %q's, want %q's", got, c.account)
			}
			b.put(leaseOfB.Context(), t, two, "B", http.StatusNoContent) // B writes on any instance
			a.put(before, t, one, "A", c.status)
		})
	}
}

// newService starts an instance of a service that keeps accounts in Redis, where the last write
// wins.
func newService(t *testing.T, client *redis.Client, guarded bool) (url string) {
	t.Helper()
	var handler http.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		text, err := io.ReadAll(r.Body)
		if err == nil {
			err = client.Set(r.Context(), "account:"+r.PathValue("id"), text, time.Minute).Err()
		}
		if err != nil {
			http.Error(w, err.Error(), http.StatusInternalServerError)
			return
		}
		w.WriteHeader(http.StatusNoContent)
	})
	if guarded {
		marks := must(redisfence.New(client))
		handler = fenced.New(marks, nethttp.ByPathValue("id"))(handler)
	}
	mux := http.NewServeMux()
	mux.Handle("PUT /accounts/{id}", handler)
	server := httptest.NewServer(mux)
	t.Cleanup(server.Close)
	return server.URL
}

// holder is a process that holds locks, and sends their fences.
type holder struct {
	locker *lock.Locker
	client http.Client
}

func newHolder(t *testing.T, client *redis.Client, opts ...lock.Option) *holder {
	t.Helper()
	st := must(redisstore.New(client, redisstore.WithTimeout(10*time.Second)))
	t.Cleanup(func() { _ = st.Close() })
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	leases, ok := any(st).(store.Leases)
	if !ok {
		t.Skip("the store keeps no leases")
	}
	return &holder{newLocker(t, leases, opts...), http.Client{Transport: fenced.Transport(base)}}
}

func (h *holder) put(ctx context.Context, t *testing.T, url, text string, status int) {
	t.Helper()
	r := must(http.NewRequestWithContext(ctx, http.MethodPut, url+"/accounts/7", strings.NewReader(text)))
	resp := must(h.client.Do(r))
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	if err != nil || resp.StatusCode != status {
		t.Fatalf("%s writes: %d %s, %v; want %d", text, resp.StatusCode, body, err, status)
	}
	if status != http.StatusPreconditionFailed {
		return
	}
	var problem struct {
		Type string `json:"type"`
	}
	if err := json.Unmarshal(body, &problem); err != nil || problem.Type != (policy.Denial{Reason: policy.StaleFence}).Type() {
		t.Errorf("%s gets %s", text, body)
	}
}
