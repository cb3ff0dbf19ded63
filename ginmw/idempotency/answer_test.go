package idempotency_test

import (
	"bufio"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/ginmw"
)

// record sends a keyed request without a server.
func record(t *testing.T, h http.Handler, method, path string) answer {
	t.Helper()
	w := httptest.NewRecorder()
	r := httptest.NewRequest(method, path, nil)
	r.Header.Set("Idempotency-Key", "k1")
	h.ServeHTTP(w, r)
	return answer{w.Result(), w.Body.String()}
}

// Answers that gin builds in different ways are replayed as they were.
func TestShapesOfAnswers(t *testing.T) {
	for name, handler := range map[string]gin.HandlerFunc{
		"nothing":        func(*gin.Context) {},
		"status only":    func(c *gin.Context) { c.Status(http.StatusAccepted) },
		"abort":          func(c *gin.Context) { c.AbortWithStatus(http.StatusNotFound) },
		"no content":     func(c *gin.Context) { c.Status(http.StatusNoContent); c.Header("X-After", "status") },
		"json":           func(c *gin.Context) { c.JSON(http.StatusCreated, gin.H{"a": 1}) },
		"header at last": func(c *gin.Context) { c.Status(202); c.Header("X-Late", "1"); _, _ = c.Writer.WriteString("late") },
		"io.Copy":        func(c *gin.Context) { _, _ = io.Copy(c.Writer, strings.NewReader(strings.Repeat("x", 40_000))) },
		"redirect":       func(c *gin.Context) { c.Redirect(http.StatusSeeOther, "/elsewhere") },
		"several writes": func(c *gin.Context) {
			c.Writer.WriteHeader(201)
			_, _ = c.Writer.Write([]byte("a"))
			_, _ = c.Writer.WriteString("b")
		},
		"status too late":  func(c *gin.Context) { c.String(201, "x"); c.Status(500) },
		"header too late":  func(c *gin.Context) { c.String(201, "x"); c.Writer.WriteHeaderNow(); c.Header("X-Late", "1") },
		"late, no body":    func(c *gin.Context) { c.AbortWithStatus(http.StatusNotFound); c.Header("X-Late", "1") },
		"aborted with err": func(c *gin.Context) { c.AbortWithStatusJSON(http.StatusUnprocessableEntity, gin.H{"e": "no"}) },
	} {
		t.Run(name, func(t *testing.T) {
			plain := gin.New()
			plain.POST("/pay/:id", handler)
			s := newServer(t, handler, nil)
			web := httptest.NewServer(plain)
			defer web.Close()
			guarded := s.url
			s.url = web.URL
			bare := s.do()
			s.url = guarded
			for _, replayed := range []bool{false, true} {
				a := s.do().want(t, bare.StatusCode, replayed)
				if a.body != bare.body {
					t.Errorf("body %q, want %q", a.body, bare.body)
				}
				for _, name := range []string{"Content-Type", "Location", "X-Late", "X-After"} {
					if got, want := a.Header.Get(name), bare.Header.Get(name); got != want {
						t.Errorf("replayed=%v: %s is %q, want %q", replayed, name, got, want)
					}
				}
			}
			s.wantRuns(1)
		})
	}
}

// What outer middleware puts on a response is its own matter at a replay, too.
func TestOuterHeadersAreNotReplayed(t *testing.T) {
	var n int
	outer := func(c *gin.Context) {
		n++
		c.Header("X-Request-Id", strings.Repeat("i", n))
		c.Header("RateLimit", `"outer";r=1;t=1`)
	}
	s := newServerBehind(t, outer, created, nil)
	s.do()
	if id := s.do().want(t, 201, true).Header.Get("X-Request-Id"); id != "ii" {
		t.Errorf("the replay has the request id %q of the first request", id)
	}
}

func TestOversizeAndStreamsAreNotRetained(t *testing.T) {
	for name, handler := range map[string]gin.HandlerFunc{
		"oversize": func(c *gin.Context) { c.String(http.StatusAccepted, strings.Repeat("x", 101)) },
		"oversize in parts": func(c *gin.Context) {
			c.Status(http.StatusAccepted)
			for range 101 {
				_, _ = c.Writer.WriteString("x")
			}
		},
		"flushed": func(c *gin.Context) {
			c.Status(http.StatusAccepted)
			for range 2 {
				_, _ = c.Writer.WriteString(strings.Repeat("x", 50))
				c.Writer.Flush()
			}
			_, _ = c.Writer.WriteString("x")
		},
		"flushed by a controller": func(c *gin.Context) {
			c.Status(http.StatusAccepted)
			_, _ = c.Writer.WriteString(strings.Repeat("x", 101)[:50])
			_ = http.NewResponseController(c.Writer).Flush()
			_, _ = c.Writer.WriteString(strings.Repeat("x", 51))
		},
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, handler, []guard.Option{guard.WithMaxResult(100)})
			if a := s.do().want(t, 202, false); a.body != strings.Repeat("x", 101) {
				t.Errorf("the client was given %d bytes", len(a.body))
			}
			a := s.do().wantProblem(t, 409, "response-not-retained")
			if !strings.Contains(a.body, `"original-status":202`) {
				t.Errorf("body %s", a.body)
			}
			s.wantRuns(1)
		})
	}
}

// A flush reaches the client before the handler has ended.
func TestStreamArrivesAsItIsWritten(t *testing.T) {
	leave := make(chan struct{})
	s := newServer(t, func(c *gin.Context) {
		c.Header("Content-Type", "text/event-stream")
		_, _ = c.Writer.WriteString("data: 1\n\n")
		c.Writer.Flush()
		<-leave
	}, nil)
	req, _ := http.NewRequest(http.MethodPost, s.url+"/pay/1", nil)
	req.Header.Set("X-User", "alice")
	req.Header.Set("Idempotency-Key", "k1")
	resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	line, err := bufio.NewReader(resp.Body).ReadString('\n')
	if err != nil || line != "data: 1\n" {
		t.Errorf("read %q, %v", line, err)
	}
	close(leave)
}

func TestHijack(t *testing.T) {
	s := newServer(t, func(c *gin.Context) {
		conn, rw, err := c.Writer.Hijack()
		if err != nil {
			c.String(500, err.Error())
			return
		}
		defer func() { _ = conn.Close() }()
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nUpgrade: test\r\nConnection: Upgrade\r\n\r\nraw")
		_ = rw.Flush()
	}, nil)
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.url, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	_, _ = io.WriteString(conn, "POST /pay/1 HTTP/1.1\r\nHost: x\r\nX-User: alice\r\nIdempotency-Key: k1\r\nConnection: Upgrade\r\nUpgrade: test\r\n\r\n")
	raw, err := io.ReadAll(conn)
	if err != nil || !strings.HasSuffix(string(raw), "\r\n\r\nraw") {
		t.Errorf("read %q, %v", raw, err)
	}
	eventually(t, "the attempt is settled", func() bool {
		return s.do(body(""), func(r *request) { r.header.Del("Content-Type") }).StatusCode != http.StatusOK
	})
	s.wantRuns(1)
}

func TestDenyHook(t *testing.T) {
	s := newServer(t, created, nil, policy.Required(), ginmw.OnDeny(func(c *gin.Context, d policy.Denial) {
		c.String(d.Status(), "no: %s", d.Reason)
	}))
	if a := s.do(key()).want(t, 400, false); a.body != "no: key-missing" || a.Header.Get("Link") == "" {
		t.Errorf("answer %q, %v", a.body, a.Header)
	}
	s.wantRuns(0)
}

func TestStoreDownFailsClosed(t *testing.T) {
	s := newServer(t, created, nil)
	s.store.Break(storetest.BeginOperation, storetest.Down)
	a := s.do().wantProblem(t, 503, "temporary-reduced-capacity")
	if a.Header.Get("Retry-After") != "1" {
		t.Errorf("Retry-After %q", a.Header.Get("Retry-After"))
	}
	if len(s.errors) != 1 {
		t.Errorf("gin was told of %d errors, want the outage", len(s.errors))
	}
	s.wantRuns(0)
	s.store.Mend(storetest.Any)
	s.do().want(t, 201, false)
}

func TestStoreDownRunsUnprotected(t *testing.T) {
	s := newServer(t, created, nil, policy.RunUnprotected())
	s.store.Break(storetest.BeginOperation, storetest.Down)
	for range 2 {
		a := s.do().want(t, 201, false)
		if a.Header.Get("Idempotency-Status") != "bypassed" || a.body != `for alice: {"n":1}` {
			t.Errorf("answer %q, %v", a.body, a.Header)
		}
	}
	s.wantRuns(2)
	s.do(user("")).wantProblem(t, 500, "internal-error") // an outage policy hides no missing subject
}

// When the answer cannot be recorded the client is given it all the same, and the recording goes
// on until the store is back.
func TestStoreDownAtCompletion(t *testing.T) {
	s := newServer(t, created, nil)
	s.store.Break(storetest.SettleOperation, storetest.Down)
	s.do().want(t, 201, false)
	if len(s.errors) != 1 {
		t.Errorf("gin was told of %d errors, want the failed completion", len(s.errors))
	}
	s.do().want(t, 201, true) // from the process, which knows the answer
	s.store.Mend(storetest.Any)
	eventually(t, "the completion is recorded", func() bool { return s.do().StatusCode == 201 })
	s.wantRuns(1)
}

// Gin notes a status that net/http then refuses. It is not recorded, and the handler's failure is its own.
func TestNoStatus(t *testing.T) {
	for name, handler := range map[string]gin.HandlerFunc{
		"without a body": func(c *gin.Context) { c.Status(42) },
		"with a body":    func(c *gin.Context) { c.String(1000, "body") },
	} {
		t.Run(name, func(t *testing.T) {
			s := newServer(t, handler, nil)
			s.do().want(t, http.StatusInternalServerError, false)
			s.do().wantProblem(t, 409, "outcome-unknown")
			s.wantRuns(1)
		})
	}
	t.Run("less than one", func(t *testing.T) { // which gin ignores
		s := newServer(t, func(c *gin.Context) { c.Status(201); c.Status(0); c.Status(-1) }, nil)
		s.do().want(t, 201, false)
		s.do().want(t, 201, true)
	})
}

// buffering is a writer with a header of its own that gin's other methods pass by, as time-out middleware
// has it.
type buffering struct {
	gin.ResponseWriter
	header http.Header
	status int
	body   []byte
}

func (b *buffering) Header() http.Header         { return b.header }
func (b *buffering) WriteHeader(status int)      { b.status = status }
func (b *buffering) Write(p []byte) (int, error) { b.body = append(b.body, p...); return len(p), nil }

// An answer with a body reaches the outer writer as gin's renderers write it, and in no other way.
func TestOuterWriterThatBuffers(t *testing.T) {
	s := newServerBehind(t, func(c *gin.Context) {
		w := c.Writer
		b := &buffering{ResponseWriter: w, header: http.Header{}}
		c.Writer = b
		c.Next()
		for name, values := range b.header {
			w.Header()[name] = values
		}
		w.WriteHeader(b.status)
		_, _ = w.Write(b.body)
	}, created, nil)
	for _, replayed := range []bool{false, true} {
		if a := s.do().want(t, 201, replayed); a.Header.Get("Location") == "" || a.body == "" {
			t.Errorf("replayed is %v: %v, %q", replayed, a.Header, a.body)
		}
	}
}

// refusing is a body that gin middleware refuses while it is read, as gin-contrib/size does.
type refusing struct{ c *gin.Context }

func (r refusing) Read([]byte) (int, error) {
	r.c.String(http.StatusRequestEntityTooLarge, "too large")
	r.c.Abort()
	return 0, errors.New("too large")
}

func (r refusing) Close() error { return nil }

// A middleware outside that has refused the body has answered.
func TestBodiesThatAreRefusedOutside(t *testing.T) {
	s := newServerBehind(t, func(c *gin.Context) { c.Request.Body = refusing{c} }, created, nil)
	if a := s.do().want(t, http.StatusRequestEntityTooLarge, false); a.body != "too large" {
		t.Errorf("body %q", a.body)
	}
	s.wantRuns(0)
}
