package nethttp_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	stores "github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
	"github.com/lockkeeper/lockkeeper/nethttp/exclusive"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// patient has a store wait for as long as a busy machine may take: late is not down.
var patient = redisstore.WithTimeout(10 * time.Second)

// Policies that fail open while the store is down fail closed while Redis is misconfigured, and the
// store logs the reason.
func TestMisconfiguredServerFailsClosed(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		setUp    func(t *testing.T, server *redis.Client)
		password string
		logged   string
		limited  bool // requests that are only limited are refused, too
	}{
		"another password": {func(t *testing.T, server *redis.Client) {
			configure(t, server, "requirepass", "secret")
		}, "wrong", "cause=authentication", true},
		"no password": {func(t *testing.T, server *redis.Client) {
			configure(t, server, "requirepass", "secret")
		}, "", "cause=authentication", true},
		"it evicts": {func(t *testing.T, server *redis.Client) {
			configure(t, server, "maxmemory-policy", "volatile-lru")
		}, "", "cause=eviction", false},
		"it is full": {func(t *testing.T, server *redis.Client) {
			configure(t, server, "maxmemory", "1")
		}, "", "", true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			c.setUp(t, server.Client())
			client := redis.NewClient(&redis.Options{Addr: server.Addr(), Password: c.password, ContextTimeoutEnabled: true})
			t.Cleanup(func() { _ = client.Close() })
			var log strings.Builder // its handler locks it
			store := must(redisstore.New(client, patient, redisstore.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))
			t.Cleanup(func() { _ = store.Close() })
			leases, ok := any(store).(stores.Leases)
			if !ok {
				t.Skip("the store keeps no leases")
			}
			ran := 0
			handler := http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran++ })
			for kind, h := range map[string]http.Handler{
				"ratelimit":   ratelimit.New(must(tokenbucket.New(store, "api", tokenbucket.PerHour(1))), nethttp.Global(), policy.FailOpen())(handler),
				"concurrency": concurrency.New(must(semaphore.New(leases, "reports", 1)), nethttp.Global(), policy.FailOpen())(handler),
				"exclusive":   exclusive.New(must(lock.New(leases, "carts")), nethttp.Global(), policy.RunUnprotected())(handler),
				"idempotency": idempotency.New(must(guard.New(store, "orders")), nethttp.Unscoped(), policy.RunUnprotected())(handler),
			} {
				if kind == "ratelimit" && !c.limited { // eviction gives a bucket back what was taken, which is no double effect
					continue
				}
				ran = 0
				for range 50 {
					r := httptest.NewRequest(http.MethodPost, "/", nil)
					r.Header.Set("Idempotency-Key", "k")
					w := httptest.NewRecorder()
					if h.ServeHTTP(w, r); w.Code != http.StatusServiceUnavailable {
						t.Errorf("%s: status %d", kind, w.Code)
					}
				}
				if ran > 0 {
					t.Errorf("%s: %d of 50 ran", kind, ran)
				}
			}
			_ = store.Close() // so that nothing writes the log any more
			if !strings.Contains(log.String(), c.logged) {
				t.Errorf("the log has no %s: %s", c.logged, log.String())
			}
		})
	}
}

func configure(t *testing.T, server *redis.Client, setting, value string) {
	t.Helper()
	if err := server.ConfigSet(t.Context(), setting, value).Err(); err != nil {
		t.Fatal(err)
	}
}

// A refused connection is an outage, and logged as one.
func TestRefusedConnectionIsAnOutage(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	server.Stop()
	store := must(redisstore.New(client, patient, redisstore.WithLogger(slog.New(slog.DiscardHandler))))
	t.Cleanup(func() { _ = store.Close() })
	var log strings.Builder
	h := ratelimit.New(must(tokenbucket.New(store, "api", tokenbucket.PerHour(1))), nethttp.Global(), policy.FailOpen(),
		policy.Logger(slog.New(slog.NewTextHandler(&log, nil))))(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for range 20 {
		w := httptest.NewRecorder()
		if h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil)); w.Code != http.StatusOK {
			t.Errorf("status %d", w.Code)
		}
	}
	for _, want := range []string{"requests bypass the store", "cause=connection_refused", fmt.Sprint("dial tcp ", server.Addr())} {
		if strings.Count(log.String(), want) != 1 {
			t.Errorf("%q is logged %d times: %s", want, strings.Count(log.String(), want), log.String())
		}
	}
}
