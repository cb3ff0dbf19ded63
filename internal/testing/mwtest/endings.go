package mwtest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// handlerEnd is how a handler ends.
type handlerEnd struct {
	name   string
	handle http.HandlerFunc
	answer string // what the handler has answered, however late: a retry may get it
	waits  bool   // until its context is over
	loses  bool   // the lock that it holds
	native any    // what ends the request instead of the handler; nil for the handler
}

// handlerEnds are those of handlers that are given up, and of others for comparison. A name with "over" is
// that of a handler that waits for the end of its context.
var handlerEnds = []handlerEnd{
	{name: "nothing", answer: "200 "},
	{name: "nothing but a field", answer: "200 ", handle: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Field", "v") }},
	{name: "a status", answer: "204 ", handle: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }},
	{name: "an empty 200", answer: "200 ", handle: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusOK) }},
	{name: "a body", answer: "200 done", handle: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "done") }},
	{name: "an error", answer: "500 failed", handle: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusInternalServerError)
		_, _ = io.WriteString(w, "failed")
	}},
	{name: "a redirect", answer: "303 ", handle: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Location", "/elsewhere")
		w.WriteHeader(http.StatusSeeOther)
	}},
	{name: "an informational answer and no other", answer: "200 ", handle: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
	}},
	{name: "trailers", answer: "200 done", handle: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "done")
		w.Header().Set("X-Sum", "1")
	}},
	{name: "a body that breaks off", handle: func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "100")
		_, _ = io.WriteString(w, "half")
	}},
	{name: "a stream", answer: "200 onetwo", handle: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "one")
		_ = http.NewResponseController(w).Flush()
		_, _ = io.WriteString(w, "two")
	}},
	{name: "a hijacked connection", answer: "200 kept", handle: func(w http.ResponseWriter, _ *http.Request) {
		conn, _, err := http.NewResponseController(w).Hijack()
		if err != nil { // http.TimeoutHandler has no connections
			_, _ = io.WriteString(w, "kept")
			return
		}
		_ = conn.Close()
	}},
	{name: "a panic", handle: func(http.ResponseWriter, *http.Request) { panic("boom") }},
	{name: "a panic after a body", handle: func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, "half")
		panic("boom")
	}},
	{name: "an aborted handler", handle: func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }},
	{name: "an ended goroutine", handle: func(http.ResponseWriter, *http.Request) { runtime.Goexit() }},
	{name: "nothing when the context is over", waits: true},
	{name: "nothing but a field when it is over", waits: true, handle: func(w http.ResponseWriter, _ *http.Request) { w.Header().Set("X-Field", "v") }},
	{name: "a status when it is over", waits: true, answer: "204 ", handle: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }},
	{name: "a body when it is over", waits: true, answer: "200 late", handle: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "late") }},
	{name: "an error when it is over", waits: true, answer: "503 late", handle: func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusServiceUnavailable)
		_, _ = io.WriteString(w, "late")
	}},
	{name: "a panic when it is over", waits: true, handle: func(http.ResponseWriter, *http.Request) { panic("boom") }},
	{name: "nothing when the lock is lost", loses: true, waits: true},
	{name: "a body when the lock is lost", loses: true, waits: true, answer: "200 late", handle: func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "late") }},
}

// Briefly is how long the timeouts in these tests are.
var Briefly = testpace.Scale(50 * time.Millisecond)

// surrounding is what stands around a guard: outside of the framework, or within it on either side.
type surrounding struct {
	name           string
	wrap           func(http.Handler) http.Handler
	before, behind []Middleware
}

// surroundings are those of every framework. The timeouts are those of a handler's context.
var surroundings = []surrounding{
	{name: "a maximum time", wrap: func(h http.Handler) http.Handler { return h }},
	{name: "a deadline that is answered", wrap: func(h http.Handler) http.Handler { // as chi's Timeout
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), Briefly)
			defer cancel()
			defer func() {
				if ctx.Err() != nil {
					w.WriteHeader(http.StatusGatewayTimeout)
				}
			}()
			h.ServeHTTP(w, r.WithContext(ctx))
		})
	}},
	{name: "a deadline that is not answered", wrap: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			ctx, cancel := context.WithTimeout(r.Context(), Briefly)
			defer cancel()
			h.ServeHTTP(w, r.WithContext(ctx))
		})
	}},
	{name: "http.TimeoutHandler", wrap: func(h http.Handler) http.Handler { return http.TimeoutHandler(h, Briefly, "timeout") }},
	{name: "a recovery", wrap: func(h http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			defer func() {
				if p := recover(); p != nil && p != http.ErrAbortHandler { //nolint:errorlint // as net/http compares it
					w.WriteHeader(http.StatusInternalServerError)
				}
			}()
			h.ServeHTTP(w, r)
		})
	}},
}

// endingRows are that a retry gets the first answer, or what the handler answered, or a refusal that says
// why: however the handler ends, and whatever stands outside.
func endingRows() (rows []row) {
	for _, e := range handlerEnds {
		rows = append(rows, row{e.name, e.testAll})
	}
	rows = append(rows, row{"as only the framework's handlers can", func(t *rig) {
		if native, ok := t.framework.(Natively); ok {
			for name, end := range native.Ends() {
				t.Run(name, handlerEnd{name: name, native: end}.testAll)
			}
		}
	}})
	return append(rows, row{"a request within the process is answered when its handler gives up", func(t *rig) {
		st := newStore(t)
		locker := newLocker(t, st)
		inner := t.framework.Serve(func(_ http.ResponseWriter, r *http.Request) {
			if lease, ok := lock.FromContext(r.Context()); ok {
				_, _ = locker.ForceUnlock(context.WithoutCancel(r.Context()), "2", lease.Fence().Number)
				_ = lease.Verify(r.Context())
			}
			select {
			case <-r.Context().Done():
			case <-time.After(t.patience):
			}
		}, Exclusive{Locker: locker, By: byID})
		s := serve(t, func(w http.ResponseWriter, r *http.Request) {
			answer := httptest.NewRecorder()
			inner.ServeHTTP(answer, httptest.NewRequestWithContext(r.Context(), http.MethodPost, Path+"2", http.NoBody))
			_, _ = fmt.Fprint(w, answer.Code)
		}, Idempotency{Guard: newGuard(t, st), By: byUser})
		s.send("1", "", "X-User", "u", keyHeader, "k").is(http.StatusOK, "503")
	}})
}

func (e handlerEnd) testAll(t *rig) {
	all := slices.Clone(surroundings)
	if native, ok := t.framework.(Natively); ok {
		for name, m := range native.Around() {
			all = append(all,
				surrounding{name: name + " outside", wrap: surroundings[0].wrap, before: []Middleware{Native{Of: m}}},
				surrounding{name: name + " inside", wrap: surroundings[0].wrap, behind: []Middleware{Native{Of: m}}})
		}
	}
	for _, s := range all {
		for _, clean := range []bool{false, true} {
			if clean && e.native != nil { // it does not say so
				continue
			}
			t.Run(fmt.Sprintf("%s, clean %v", s.name, clean), func(t *rig) { e.test(t, s, clean) })
		}
	}
}

func (e handlerEnd) test(t *rig, around surrounding, clean bool) {
	var runs atomic.Int64
	st := newStore(t)
	locker := newLocker(t, st)
	handle := func(w http.ResponseWriter, r *http.Request) {
		runs.Add(1)
		ctx := r.Context()
		if attempt, ok := guard.FromContext(ctx); ok && clean {
			_ = attempt.MarkClean(ctx)
		}
		if lease, ok := lock.FromContext(ctx); ok && e.loses {
			_, _ = locker.ForceUnlock(context.WithoutCancel(ctx), "1", lease.Fence().Number)
			_ = lease.Verify(ctx)
		}
		if e.waits {
			select {
			case <-ctx.Done():
			case <-time.After(t.patience):
				t.Error("the context does not end")
			}
		}
		if e.handle != nil {
			e.handle(w, r)
		}
	}
	middleware := append(slices.Clone(around.before),
		Idempotency{Guard: newGuard(t, st), By: byUser, Options: []policy.IdempotencyOption{policy.MaxRun(4 * Briefly)}})
	middleware = append(middleware, around.behind...)
	if e.loses {
		middleware = append(middleware, Exclusive{Locker: locker, By: byID})
	}
	if e.native != nil {
		middleware = append(middleware, Native{Of: e.native})
	}
	s := serveHandler(t, around.wrap(t.framework.Serve(handle, middleware...)))
	first := s.try()
	ran := runs.Load()
	retry := s.try()
	for strings.HasSuffix(retry, " "+string(policy.InFlight)) { // behind a timeout that has answered
		retry = s.try()
	}
	switch {
	case retry == first, e.answer != "" && retry == e.answer:
	case retry == "409 "+string(policy.ResponseNotRetained), retry == "409 "+string(policy.OutcomeUnknown) && !clean:
	case e.native == nil && ran == 0 && slices.Contains(givenUp, first): // so the retry is the first that has run
	case clean && around.behind != nil && slices.Contains(givenUp, first): // by MaxRun, before the timeout inside ended
	case slices.Contains(givenUp, retry), around.before != nil && isTimeout(retry): // before the operation began, on a busy machine, or again
	case clean && (strings.HasPrefix(retry, "500 ") || retry == "no answer"): // a panic again
	default:
		t.Errorf("first %q, then %q, of %d runs", first, retry, runs.Load())
	}
	if n := runs.Load(); n > 1 && !clean {
		t.Errorf("%d runs", n)
	}
	// gin's recovery answers http.ErrAbortHandler with an empty 200.
	if own := e.native != nil || around.before != nil || around.behind != nil; !own && e.answer == "" && (first == "200 " || retry == "200 ") {
		t.Errorf("first %q, then %q, and nothing was answered", first, retry)
	}
}

// givenUp are the answers of timeouts, and of a guard for a handler that has given up.
var givenUp = []string{"503 timeout", "504 ", "503 " + string(policy.ReducedCapacity)}

// isTimeout reports whether an answer is that of the timeout of net/http, or of a framework.
func isTimeout(answer string) bool {
	return strings.HasPrefix(answer, "503 <html>") || strings.HasPrefix(answer, `503 {"message":"Service Unavailable"}`)
}

// try sends the guarded request, and returns status and body of its answer, or the reason of a refusal, or
// that there was none.
func (s server) try() string {
	s.t.Helper()
	req, err := http.NewRequestWithContext(s.t.Context(), http.MethodPost, s.URL+Path+"1", http.NoBody)
	if err != nil {
		s.t.Fatal(err)
	}
	req.Header.Set("X-User", "u")
	req.Header.Set(keyHeader, "k")
	transport := &http.Transport{DisableKeepAlives: true} // or else it sends a keyed request again by itself
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return "no answer"
	}
	defer resp.Body.Close() //nolint:errcheck // it has been read
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return "a part of an answer"
	}
	var problem struct{ Type string }
	if json.Unmarshal(text, &problem) == nil {
		if _, reason, ok := strings.Cut(problem.Type, "#"); ok {
			return fmt.Sprint(resp.StatusCode, " ", reason)
		}
	}
	return fmt.Sprint(resp.StatusCode, " ", string(text))
}
