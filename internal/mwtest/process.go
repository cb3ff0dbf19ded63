package mwtest

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func inMemory(t *testing.T) func() store.Store {
	st := memstore.New()
	t.Cleanup(func() { _ = st.Close() })
	return func() store.Store { return st }
}

// onRedis returns what connects to a new store on a server.
func onRedis(t *testing.T, client func() redis.UniversalClient) (connect func() store.Store) {
	prefix := rand.Text()
	return func() store.Store {
		c := client()
		st := must(redisstore.New(c, redisstore.WithPrefix(prefix), redisstore.WithTimeout(5*time.Second))) // a busy machine is no outage
		t.Cleanup(func() {
			_ = st.Close()
			_ = c.Close()
		})
		return st
	}
}

// process is a server whose guard is on a store that processes share.
type process struct {
	server
	http   *httptest.Server
	store  *storetest.Faulty
	guard  *guard.Guard
	inside *atomic.Int64 // requests that are not answered
}

// newProcess returns a process that guards by user.
func newProcess(t *testing.T, f Framework, connect func() store.Store, handler http.HandlerFunc, opts ...policy.IdempotencyOption) process {
	t.Helper()
	p := process{store: storetest.NewFaulty(connect()), inside: new(atomic.Int64)}
	p.guard = newGuard(t, p.store, guard.WithMaxResult(100))
	t.Cleanup(func() { _ = p.guard.Close() })
	served := f.Serve(handler, Idempotency{Guard: p.guard, By: Key{Kind: ByHeader, Name: "X-User"}, Options: opts})
	p.http = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.inside.Add(1)
		defer p.inside.Add(-1)
		served.ServeHTTP(w, r)
	}))
	t.Cleanup(p.http.Close)
	p.server = server{t, p.http.URL}
	return p
}

// met waits until n requests have asked the store for their operation.
func (p process) met(t *testing.T, n int) {
	t.Helper()
	reaches(t, func() int { return p.store.Calls(storetest.BeginOperation) }, n)
}

// isInside waits until n requests are in the server.
func (p process) isInside(t *testing.T, n int) {
	t.Helper()
	reaches(t, func() int { return int(p.inside.Load()) }, n)
}

// leaving sends a request with the key "k", until leave is called.
func (p process) leaving(t *testing.T, body string) (leave func()) {
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		if resp, err := posting(ctx, http.DefaultClient, p.url, body, asUser...); err == nil {
			_ = resp.Body.Close()
		}
	}()
	leave = func() {
		cancel()
		<-left
	}
	t.Cleanup(leave)
	return leave
}

// host is that of all processes.
const host = "shop.example"

var asUser = []string{"X-User", "u", keyHeader, "k", "Host", host}

// names checks that a refusal names an operation of the guard.
func (a answer) names(p process) {
	a.t.Helper()
	var problem struct{ Operation string }
	if err := json.Unmarshal([]byte(a.body), &problem); err != nil {
		a.t.Fatal(err)
	}
	if record, err := p.guard.InspectID(a.t.Context(), problem.Operation); err != nil || record.ID != problem.Operation {
		a.t.Errorf("%s names %q: %v", a.body, problem.Operation, err)
	}
}

// replays checks that an answer is that of a gate, to a twin.
func (a answer) replays() {
	a.t.Helper()
	a.is(http.StatusOK, "done").has("Idempotency-Replayed", "true").has("Content-Type", "text/plain")
}
