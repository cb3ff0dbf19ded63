package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// provider is a server that records when requests of a tenant arrive. It answers the first one of
// tenant a with 429, and all others with 200.
type provider struct {
	mu       sync.Mutex
	refused  time.Time
	arrivals map[string][]time.Time
}

func (p *provider) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now, tenant := time.Now(), r.Header.Get("X-Tenant")
	p.arrivals[tenant] = append(p.arrivals[tenant], now)
	if tenant == "a" && p.refused.IsZero() {
		p.refused = now
		w.Header().Set("Retry-After", "2")
		w.WriteHeader(http.StatusTooManyRequests)
	}
}

// patient has a store wait for as long as a busy machine may take: late is not down.
var patient = redisstore.WithTimeout(10 * time.Second)

// A provider that answers 429 with Retry-After: 2 to one tenant sees nothing of that tenant for two
// seconds, from any process, by its own clock; other tenants are not affected.
func TestProviderIsObeyed(t *testing.T) {
	t.Parallel()
	for name, stores := range map[string]func(t *testing.T) []store.Buckets{
		"memory": func(t *testing.T) []store.Buckets {
			st := memstore.New()
			t.Cleanup(func() { _ = st.Close() })
			return []store.Buckets{st, st}
		},
		"redis": func(t *testing.T) (all []store.Buckets) {
			server := redistest.Start(t)
			for range 2 {
				st := must(redisstore.New(server.Client(), patient))
				t.Cleanup(func() { _ = st.Close() })
				all = append(all, st)
			}
			return all
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := &provider{arrivals: make(map[string][]time.Time)}
			server := httptest.NewServer(p)
			t.Cleanup(server.Close)
			var clients []*http.Client
			for _, st := range stores(t) {
				base := &http.Transport{MaxIdleConnsPerHost: 16}
				t.Cleanup(base.CloseIdleConnections)
				limiter := newLimiter(st, tokenbucket.PerSecond(200))
				clients = append(clients, &http.Client{Transport: ratelimit.Transport(base, limiter, byTenant)})
			}
			call := func(client *http.Client, tenant string) {
				r := must(http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil))
				r.Header.Set("X-Tenant", tenant)
				resp, err := client.Do(r)
				if err != nil {
					t.Error(err)
					return
				}
				_ = resp.Body.Close()
			}
			for _, client := range clients { // so that both have decided, and may have something in a cache
				call(client, "b")
			}
			call(clients[0], "a")
			begin := time.Now()
			enough := func() bool { // requests after the pause
				p.mu.Lock()
				defer p.mu.Unlock()
				return len(p.arrivals["a"]) > 50 || time.Since(begin) > 30*time.Second
			}
			var wait sync.WaitGroup
			for _, client := range clients {
				for _, tenant := range []string{"a", "a", "a", "a", "b"} {
					wait.Go(func() {
						for !enough() {
							call(client, tenant)
						}
					})
				}
			}
			wait.Wait()
			again := p.arrivals["a"][1:]
			if len(again) < 50 {
				t.Fatalf("%d requests after the pause", len(again))
			}
			for _, at := range again {
				if d := at.Sub(p.refused); d < 2*time.Second {
					t.Errorf("a request after %v", d)
				}
			}
			others, last, late := 0, begin, time.Duration(0)
			for _, at := range p.arrivals["b"] {
				if !at.After(begin) {
					continue
				}
				late, last = max(late, at.Sub(last)), at // how long the machine takes for a request
				if at.Before(p.refused.Add(2 * time.Second)) {
					others++
				}
			}
			if d := again[0].Sub(p.refused); d > 2500*time.Millisecond+5*late {
				t.Errorf("the first request after %v, with at most %v between those of another tenant", d, late)
			}
			if others < 20 {
				t.Errorf("%d requests of another tenant in the pause", others)
			}
		})
	}
}

// A redirect is a request with the key of its own host, and what an answer before the last says of
// it does not count.
func TestRedirectsAndEarlyHints(t *testing.T) {
	var hints atomic.Int32
	target := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "60")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Del("Retry-After")
		_, _ = fmt.Fprint(w, "hello")
	}))
	t.Cleanup(target.Close)
	front := httptest.NewServer(http.RedirectHandler(target.URL, http.StatusFound))
	t.Cleanup(front.Close)
	limiter := newLimiter(newStore(t), tokenbucket.PerDay(10))
	base := &http.Transport{}
	t.Cleanup(base.CloseIdleConnections)
	client := &http.Client{Transport: ratelimit.Transport(base, limiter, ratelimit.ByHost())}
	trace := &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { hints.Add(1); return nil }}
	ctx := httptrace.WithClientTrace(t.Context(), trace)
	resp, err := client.Do(must(http.NewRequestWithContext(ctx, http.MethodGet, front.URL, nil)))
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	for _, url := range []string{front.URL, target.URL} {
		d := must(limiter.Peek(t.Context(), strings.TrimPrefix(url, "http://")))
		if d.Limits()[0].Remaining != 9 || d.Held != 0 {
			t.Errorf("%s: %+v, held for %v", url, d.Limits(), d.Held)
		}
	}
	if hints.Load() != 1 {
		t.Error("no early hints")
	}
}

// The Timeout of a client is a deadline: a token that comes later is not waited for.
func TestTimeoutOfAClient(t *testing.T) {
	limiter := newLimiter(newStore(t), tokenbucket.PerHour(1))
	_ = must(limiter.Allow(t.Context(), "a"))
	client := &http.Client{Transport: ratelimit.Transport(&wire{}, limiter, byTenant), Timeout: time.Minute}
	start := time.Now()
	_, err := client.Do(outgoing(t.Context(), "a"))
	if !errors.Is(err, ratelimit.ErrNotSent) || !errors.Is(err, context.DeadlineExceeded) || time.Since(start) > 30*time.Second {
		t.Errorf("%v after %v", err, time.Since(start))
	}
}
