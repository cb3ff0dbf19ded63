package idempotency_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
)

func created(c *gin.Context) {
	b, err := io.ReadAll(c.Request.Body)
	if err != nil {
		c.Status(http.StatusTeapot)
		return
	}
	c.Header("Location", "/orders/1")
	c.Writer.Header().Add("X-Multi", "a, b")
	c.Writer.Header().Add("X-Multi", "c")
	c.SetCookie("session", "secret", 60, "/", "", false, true)
	c.Header("Date", "Thu, 01 Jan 1970 00:00:00 GMT")
	c.Header("Connection", "X-Hop")
	c.Header("X-Hop", "1")
	c.Data(http.StatusCreated, "text/plain; charset=utf-8", []byte("for "+c.GetString("user")+": "+string(b)))
}

func TestReplay(t *testing.T) {
	s := newServer(t, created, nil)
	first := s.do().want(t, http.StatusCreated, false)
	if first.body != `for alice: {"n":1}` {
		t.Fatalf("body %q: was the request's body restored?", first.body)
	}
	if first.Header.Get("Set-Cookie") == "" || first.Header.Get("X-Hop") == "" {
		t.Error("the first answer lacks what only a replay does not have")
	}
	again := s.do().want(t, http.StatusCreated, true)
	if again.body != first.body {
		t.Errorf("replayed %q, want %q", again.body, first.body)
	}
	for _, name := range []string{"Location", "Content-Type", "X-Multi"} {
		if got, want := again.Header.Values(name), first.Header.Values(name); strings.Join(got, "|") != strings.Join(want, "|") || len(got) == 0 {
			t.Errorf("%s replayed as %q, want %q", name, got, want)
		}
	}
	for _, name := range []string{"Set-Cookie", "X-Hop", "Connection"} {
		if got := again.Header.Values(name); len(got) > 0 && got[0] != "close" {
			t.Errorf("%s was replayed: %q", name, got)
		}
	}
	if again.Header.Get("Date") == first.Header.Get("Date") {
		t.Error("Date was replayed")
	}
	s.wantRuns(1)
	s.wantNoErrors()
}

func TestWhatNamesAnOperation(t *testing.T) {
	s := newServer(t, created, nil)
	s.do().want(t, 201, false)
	s.do(key(`"k1"`)).want(t, 201, true)
	s.do(body(`{"n":2}`)).wantProblem(t, 422, "key-reused")
	s.do(path("/pay/2")).wantProblem(t, 422, "key-reused")
	s.do(path("/pay/1?x=1")).wantProblem(t, 422, "key-reused")
	s.do(method(http.MethodPatch)).wantProblem(t, 422, "key-reused")
	s.wantRuns(1)
	bob := s.do(user("bob")).want(t, 201, false)
	if !strings.HasPrefix(bob.body, "for bob") {
		t.Errorf("bob was given %q", bob.body)
	}
	s.do(user("bob"), body("other")).wantProblem(t, 422, "key-reused")
	s.do(key("k2")).want(t, 201, false)
	s.wantRuns(3)
}

func TestRequestsWithoutGuard(t *testing.T) {
	s := newServer(t, created, nil, ginmw.Unless(func(c *gin.Context) bool { return c.Query("skip") != "" }))
	for range 2 {
		s.do(key()).want(t, 201, false)
		s.do(method(http.MethodGet), body("")).want(t, 201, false)
		s.do(method(http.MethodPut)).want(t, 201, false)
		s.do(path("/pay/1?skip=1")).want(t, 201, false)
	}
	s.wantRuns(8)
	if s.store.Calls(storetest.Any) != 0 {
		t.Error("the store was asked")
	}
	if resp := s.do(path("/nowhere")); resp.StatusCode != 404 {
		t.Errorf("status %d for no route", resp.StatusCode)
	}
}

func TestMethodsOption(t *testing.T) {
	s := newServer(t, created, nil, policy.Methods(http.MethodPut))
	s.do(method(http.MethodPut)).want(t, 201, false)
	s.do(method(http.MethodPut)).want(t, 201, true)
	s.do().want(t, 201, false)
	s.do().want(t, 201, false)
}

func TestBadKeys(t *testing.T) {
	s := newServer(t, created, nil, policy.Required())
	for name, c := range map[string]struct {
		keys []string
		kind string
	}{
		"none":              {nil, "key-missing"},
		"empty":             {[]string{""}, "key-malformed"},
		"empty and quoted":  {[]string{`""`}, "key-malformed"},
		"two":               {[]string{"a", "b"}, "key-malformed"},
		"two in one":        {[]string{"a, b"}, "key-malformed"},
		"twice the same":    {[]string{"a", "a"}, "key-malformed"},
		"long":              {[]string{strings.Repeat("k", 256)}, "key-malformed"},
		"long and quoted":   {[]string{`"` + strings.Repeat("k", 256) + `"`}, "key-malformed"},
		"tab":               {[]string{"a\tb"}, "key-malformed"},
		"not ASCII":         {[]string{"kéy"}, "key-malformed"},
		"half quoted":       {[]string{`"k`}, "key-malformed"},
		"quoted, parameter": {[]string{`"k";p=1`}, "key-malformed"},
		"two quoted":        {[]string{`"a", "b"`}, "key-malformed"},
	} {
		t.Run(name, func(t *testing.T) {
			a := s.do(key(c.keys...)).wantProblem(t, 400, c.kind)
			if link := a.Header.Get("Link"); !strings.Contains(link, `rel="describedby"`) {
				t.Errorf("Link %q", link)
			}
		})
	}
	s.wantRuns(0)
	if s.store.Calls(storetest.Any) != 0 {
		t.Error("the store was asked")
	}
	s.do(key(strings.Repeat("k", 255))).want(t, 201, false)
	s.do(user("")).wantProblem(t, 500, "internal-error")
	s.wantRuns(1)
}

func TestFailingScope(t *testing.T) {
	s := newServer(t, created, nil)
	r := gin.New()
	r.POST("/", idempotency.New(s.guard, ginmw.ScopeBy(func(*gin.Context) (string, error) { return "", errors.New("no directory") })), created)
	a := record(t, r, "POST", "/")
	a.wantProblem(t, 500, "internal-error")
	if strings.Contains(a.body, "directory") {
		t.Errorf("an internal error reached the client: %s", a.body)
	}
	s.wantRuns(0)
}

func TestBodyLimit(t *testing.T) {
	s := newServer(t, created, nil, policy.MaxBody(10))
	s.do(body("0123456789")).want(t, 201, false)
	s.do(key("k2"), body("0123456789x")).wantProblem(t, 413, "body-too-large")

	req, err := http.NewRequest(http.MethodPost, s.url+"/pay/1", io.MultiReader(strings.NewReader("0123456789"), strings.NewReader("x")))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("X-User", "alice")
	req.Header.Set("Idempotency-Key", "k3")
	s.send(req).wantProblem(t, 413, "body-too-large") // of unknown length
	s.wantRuns(1)
}

func TestStatuses(t *testing.T) {
	answer := func(c *gin.Context) {
		if c.Query("clean") != "" {
			attempt, _ := guard.FromContext(c.Request.Context())
			if err := attempt.MarkClean(c.Request.Context()); err != nil {
				c.Status(http.StatusTeapot)
				return
			}
		}
		status, _ := strconv.Atoi(c.Query("status"))
		c.String(status, "answer")
	}
	rerun := []guard.Option{guard.WithRerun()}
	for _, c := range []struct {
		status int
		clean  bool
		guard  []guard.Option
		opts   []policy.IdempotencyOption
		kept   bool
	}{
		{status: 200, kept: true}, {status: 302, kept: true}, {status: 400, kept: true}, {status: 402, kept: true},
		{status: 404, kept: true}, {status: 422, kept: true},
		{status: 403, kept: true}, {status: 409, kept: true}, {status: 409, clean: true}, {status: 408, guard: rerun},
		{status: 401}, {status: 407}, {status: 412}, {status: 421}, {status: 425}, {status: 429},
		{status: 500, kept: true}, {status: 503, kept: true},
		{status: 500, clean: true}, {status: 503, guard: rerun}, {status: 402, guard: rerun, kept: true},
		{status: 500, opts: []policy.IdempotencyOption{policy.ReleaseStatus(500)}},
		{status: 429, opts: []policy.IdempotencyOption{policy.KeepStatus(429, 401)}, kept: true},
	} {
		p := "/pay/1?status=" + strconv.Itoa(c.status)
		if c.clean {
			p += "&clean=1"
		}
		t.Run(p, func(t *testing.T) {
			s := newServer(t, answer, c.guard, c.opts...)
			s.do(path(p)).want(t, c.status, false)
			s.do(path(p)).want(t, c.status, c.kept)
			if c.kept {
				s.wantRuns(1)
			} else {
				s.wantRuns(2)
			}
		})
	}
}

func TestPanics(t *testing.T) {
	blow := func(c *gin.Context) {
		if c.Query("clean") != "" {
			attempt, _ := guard.FromContext(c.Request.Context())
			_ = attempt.MarkClean(c.Request.Context())
		}
		c.String(http.StatusOK, "half an answer")
		panic("no charge came back")
	}
	s := newServer(t, blow, nil)
	if first := s.do().want(t, 500, false); strings.Contains(first.body, "half") {
		t.Errorf("the client was given %q", first.body)
	}
	s.do().wantProblem(t, 409, "outcome-unknown")
	s.wantRuns(1)
	for range 2 {
		s.do(key("k2"), path("/pay/1?clean=1")).want(t, 500, false)
	}
	s.wantRuns(3)

	again := newServer(t, blow, []guard.Option{guard.WithRerun()})
	for range 2 {
		again.do().want(t, 500, false)
	}
	again.wantRuns(2)
}

func TestTwinInFlight(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s := newServer(t, func(c *gin.Context) {
		close(entered)
		<-leave
		created(c)
	}, nil)
	done := make(chan answer, 1)
	go func() { done <- s.do() }()
	<-entered
	twin := s.do().wantProblem(t, 409, "in-flight")
	if after, err := strconv.Atoi(twin.Header.Get("Retry-After")); err != nil || after < 1 || after > 30 {
		t.Errorf("Retry-After %q", twin.Header.Get("Retry-After"))
	}
	s.do(body("other")).wantProblem(t, 422, "key-reused")
	close(leave)
	(<-done).want(t, 201, false)
	s.do().want(t, 201, true)
	s.wantRuns(1)
	s.wantNoErrors()
}

func TestStorm(t *testing.T) {
	s := newServer(t, created, nil)
	var wg sync.WaitGroup
	for range 50 {
		wg.Go(func() {
			if a := s.do(); a.StatusCode != 201 && a.StatusCode != 409 {
				t.Errorf("status %d", a.StatusCode)
			}
		})
	}
	wg.Wait()
	s.do().want(t, 201, true)
	s.wantRuns(1)
}

// A client that leaves in the middle finds, when it comes back, that its request has run.
func TestDisconnect(t *testing.T) {
	entered, leave := make(chan struct{}), make(chan struct{})
	s := newServer(t, func(c *gin.Context) {
		close(entered)
		<-leave
		if err := c.Request.Context().Err(); err != nil {
			c.String(http.StatusTeapot, "the context ended: %v", err)
			return
		}
		c.String(http.StatusCreated, "charged")
	}, nil)
	ctx, cancel := context.WithCancel(t.Context())
	gone := make(chan error, 1)
	go func() {
		req, _ := http.NewRequestWithContext(ctx, http.MethodPost, s.url+"/pay/1", strings.NewReader(`{"n":1}`))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("X-User", "alice")
		req.Header.Set("Idempotency-Key", "k1")
		_, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
		gone <- err
	}()
	<-entered
	cancel()
	if err := <-gone; err == nil {
		t.Fatal("the client did not leave")
	}
	close(leave)
	var back answer
	eventually(t, "the answer is kept", func() bool { back = s.do(); return back.StatusCode != 409 })
	back.want(t, 201, true)
	s.wantRuns(1)
}

func TestWiringMistakesPanic(t *testing.T) {
	g, err := guard.New(memstore.New(), "g")
	if err != nil {
		t.Fatal(err)
	}
	noFingerprint := policy.Fingerprint(func(*http.Request, []byte) ([]byte, error) { return nil, nil })
	for want, wire := range map[string]func(){
		"idempotency: New: nil guard":                                     func() { idempotency.New(nil, ginmw.Unscoped()) },
		"idempotency: New: no scope; use ginmw.ScopeBy or ginmw.Unscoped": func() { idempotency.New(g, ginmw.ScopeFunc{}) },
		"policy: Methods: no methods":                                     func() { policy.Methods() },
		"policy: MaxBody: -1 is negative":                                 func() { policy.MaxBody(-1) },
		"policy: MaxRun: 0s is less than 1ms":                             func() { policy.MaxRun(0) },
		"policy: MaxRun: 2ns is less than 1ms":                            func() { policy.MaxRun(2) },
		"policy: MaxBodies: 0 is less than 1":                             func() { policy.MaxBodies(0) },
		"policy: Fingerprint: nil function":                               func() { policy.Fingerprint(nil) },
		"idempotency: KeyFrom: nil key":                                   func() { idempotency.KeyFrom(nil) },
		"idempotency: New: policy.MaxBodies (9) is less than one request may take (10)": func() {
			idempotency.New(g, ginmw.Unscoped(), policy.MaxBody(10), policy.MaxBodies(9))
		},
		"idempotency: New: policy.MaxBodies (19) is less than one request may take (20)": func() {
			idempotency.New(g, ginmw.Unscoped(), policy.MaxBody(10), policy.MaxBodies(19), noFingerprint)
		},
		"idempotency: New: policy.Fingerprint says nothing with policy.KeyAlone": func() {
			idempotency.New(g, ginmw.Unscoped(), noFingerprint, policy.KeyAlone())
		},
		"policy: KeepStatus: 99 is no final status": func() { policy.KeepStatus(99) },
	} {
		t.Run(want, func(t *testing.T) {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("panicked with %v", got)
				}
			}()
			wire()
		})
	}
}

func TestDeadlineOfTheRequestHolds(t *testing.T) {
	outer := func(c *gin.Context) {
		ctx, cancel := context.WithTimeout(c.Request.Context(), 20*time.Millisecond)
		defer cancel()
		c.Request = c.Request.WithContext(ctx)
		c.Next()
	}
	s := newServerBehind(t, outer, func(c *gin.Context) {
		<-c.Request.Context().Done()
		c.String(http.StatusGatewayTimeout, "too slow")
	}, []guard.Option{guard.WithRerun()})
	s.do().want(t, 504, false)
	s.do().want(t, 504, false)
	s.wantRuns(2)
}
