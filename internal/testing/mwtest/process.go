package mwtest

import (
	"context"
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// process is a server whose guard is on a store that processes share.
type process struct {
	server
	store  *storetest.Faulty
	guard  *guard.Guard
	inside *atomic.Int64 // requests that are not answered
}

// newProcess returns a process that guards by user.
func newProcess(t *rig, connect func() store.Store, handler http.HandlerFunc, opts ...policy.IdempotencyOption) process {
	t.Helper()
	p := process{store: storetest.NewFaulty(connect()), inside: new(atomic.Int64)}
	p.guard = newGuard(t, p.store, guard.WithMaxResult(100))
	t.Cleanup(func() { _ = p.guard.Close() })
	served := t.framework.Serve(handler, Idempotency{Guard: p.guard, By: Key{Kind: ByHeader, Name: "X-User"}, Options: opts})
	p.server = server{t, httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.inside.Add(1)
		defer p.inside.Add(-1)
		served.ServeHTTP(w, r)
	}))}
	t.Cleanup(p.Close)
	return p
}

// met waits until n requests have asked the store for their operation.
func (p process) met(t *rig, n int) {
	t.Helper()
	reaches(t, func() int { return p.store.Calls(storetest.BeginOperation) }, n)
}

// isInside waits until n requests are in the server.
func (p process) isInside(t *rig, n int) {
	t.Helper()
	reaches(t, func() int { return int(p.inside.Load()) }, n)
}

// leaving sends a request with the key "k", until leave is called.
func (p process) leaving(t *rig, body string) (leave func()) {
	ctx, cancel := context.WithCancel(t.Context())
	left := make(chan struct{})
	go func() {
		defer close(left)
		if resp, err := posting(ctx, p.Client(), p.URL, body, asUser...); err == nil {
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
