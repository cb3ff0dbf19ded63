package fibermw_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/recover"
	"github.com/gofiber/fiber/v3/middleware/timeout"
	"github.com/valyala/fasthttp"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/concurrency"
	"github.com/lockkeeper/lockkeeper/fibermw/exclusive"
	"github.com/lockkeeper/lockkeeper/fibermw/idempotency"
	"github.com/lockkeeper/lockkeeper/fibermw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/internal/testing/tiertest"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// A server that shuts down serves the requests that wait: it does not end their contexts.
func TestShutdownAwaitsRequestsThatWait(t *testing.T) {
	carts := must(lock.New(newStore(t), "carts"))
	defer carts.Close() //nolint:errcheck // it holds nothing
	lease := must(carts.Lock(t.Context(), "1"))
	app := fiber.New()
	app.Post("/things/:id", exclusive.New(carts, fibermw.ByParam("id"), policy.Wait(time.Minute)), func(c fiber.Ctx) error {
		return c.SendStatus(http.StatusCreated)
	})
	url, client := listen(t, app)
	answers := make(chan int, 1)
	go func() {
		status, _ := post(t, client, url+"/things/1")
		answers <- status
	}()
	awaitsOne(t, carts)
	down := make(chan error, 1)
	go func() { down <- app.Shutdown() }()
	testpace.Eventually(t, 10*time.Second, "the server accepts no connections", func() bool {
		conn, err := net.Dial("tcp", strings.TrimPrefix(url, "http://"))
		if err == nil {
			_ = conn.Close()
		}
		return err != nil
	})
	awaitsOne(t, carts)
	_ = lease.Unlock(t.Context())
	if status := <-answers; status != http.StatusCreated {
		t.Errorf("status %d", status)
	}
	if err := <-down; err != nil {
		t.Error(err)
	}
}

// Fasthttp reads a body before it calls handlers: no middleware runs for one that does not end, one
// that is larger than Config.BodyLimit is refused with 413.
func TestBodiesAreReadBefore(t *testing.T) {
	ran := make(chan int, 10)
	app := fiber.New(fiber.Config{BodyLimit: 1000})
	app.Post("/things", func(c fiber.Ctx) error { // with Use, it would run for errors, too
		ran <- len(c.Body())
		return nil
	})
	url, client := listen(t, app)
	conn := must(net.Dial("tcp", strings.TrimPrefix(url, "http://")))
	_, _ = fmt.Fprint(conn, "POST /things HTTP/1.1\r\nHost: shop\r\nContent-Length: 10\r\n\r\nhalf")
	_ = conn.Close()
	chunked := must(http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/things", io.MultiReader(strings.NewReader("chunked"))))
	_ = must(client.Do(chunked)).Body.Close()
	large := must(http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/things", strings.NewReader(strings.Repeat("x", 1001))))
	resp := must(client.Do(large))
	_ = resp.Body.Close()
	if resp.StatusCode != http.StatusRequestEntityTooLarge {
		t.Error(resp.Status)
	}
	if n := <-ran; n != len("chunked") || len(ran) > 0 {
		t.Errorf("the first request has %d bytes, and %d more ran", n, len(ran))
	}
}

// Fasthttp announces trailers of any answer, and sends those of streams.
func TestTrailersNeedAStream(t *testing.T) {
	app := fiber.New()
	app.Post("/things/:kind", func(c fiber.Ctx) error {
		h := &c.Response().Header
		if err := h.SetTrailer("X-Sum"); err != nil {
			return err
		}
		h.Set("X-Sum", "4")
		if c.Params("kind") == "stream" {
			return c.SendStream(io.MultiReader(strings.NewReader("body")))
		}
		return c.SendString("body")
	})
	url, client := listen(t, app)
	for kind, want := range map[string]string{"stream": "4", "body": ""} {
		resp := must(client.Do(must(http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/things/"+kind, http.NoBody))))
		_, _ = io.Copy(io.Discard, resp.Body)
		_ = resp.Body.Close()
		if got := resp.Trailer.Get("X-Sum"); got != want {
			t.Errorf("%s: the trailer is %q, want %q", kind, got, want)
		}
	}
}

// The context of a plan never ends, and has nothing of later requests, to which fasthttp gives the
// same memory.
func TestAPlanKeepsItsContext(t *testing.T) {
	var kept context.Context //nolint:containedctx // that is the test
	limiter := must(tokenbucket.New(newStore(t), "api", tokenbucket.PlanFunc(func(ctx context.Context, _ string) (tokenbucket.Plan, error) {
		if tier := ctx.Value("tier"); kept == nil {
			if kept = ctx; tier != "gold" || ctx.Done() != nil {
				t.Errorf("the plan sees %v, and %v", tier, ctx.Done())
			}
		}
		return tokenbucket.PerHour(100), nil
	})))
	app := fiber.New()
	app.Use(func(c fiber.Ctx) error {
		c.Locals("tier", strings.Clone(c.Get("X-Tier")))
		return c.Next()
	})
	app.Post("/things", ratelimit.New(limiter, fibermw.Global()), func(c fiber.Ctx) error {
		if tier := kept.Value("tier"); tier == "tin" {
			t.Error("it sees the next request")
		}
		return nil
	})
	url, client := listen(t, app)
	for _, tier := range []string{"gold", "tin", "tin", "tin"} {
		post(t, client, url+"/things", "X-Tier", tier)
	}
}

// endings are the ways in which a handler of fiber can end.
var endings = []struct {
	name   string
	end    fiber.Handler
	status int  // of the answer
	failed bool // for a capacity that adapts
	late   bool // the answer begins when the handlers have returned
}{
	{name: "nothing", end: func(fiber.Ctx) error { return nil }, status: 200},
	{name: "an answer", end: func(c fiber.Ctx) error { return c.SendString("done") }, status: 200},
	{name: "a status", end: func(c fiber.Ctx) error { return c.SendStatus(401) }, status: 401},
	{name: "an error with a status", end: func(fiber.Ctx) error { return fiber.ErrUnauthorized }, status: 401},
	{name: "an error", end: func(fiber.Ctx) error { return errors.New("failed") }, status: 500, failed: true},
	{name: "a status of the server's", end: func(c fiber.Ctx) error { return c.SendStatus(504) }, status: 504, failed: true},
	{name: "a panic", end: func(fiber.Ctx) error { panic("boom") }, status: 500, failed: true},
	{name: "a stream", end: func(c fiber.Ctx) error {
		return c.SendStreamWriter(func(w *bufio.Writer) { _, _ = w.WriteString("stream") })
	}, status: 200, late: true},
	{name: "events", end: func(c fiber.Ctx) error {
		c.Set("Content-Type", "text/event-stream")
		return c.SendString("data: 1\n\n")
	}, status: 200, late: true},
	{name: "another protocol", end: func(c fiber.Ctx) error {
		c.RequestCtx().Hijack(func(net.Conn) {})
		return nil
	}, status: 200, late: true},
}

// A request costs what its handler has reported, and an attempt counts by its status, or if that is
// not known.
func TestCostsHoweverAHandlerEnds(t *testing.T) {
	for _, e := range endings {
		t.Run(e.name, func(t *testing.T) {
			st := newStore(t)
			attempts := must(tokenbucket.New(st, "attempts", tokenbucket.PerDay(2)))
			tokens := must(tokenbucket.New(st, "tokens", tokenbucket.PerDay(1000).Named("tokens")))
			app := fiber.New()
			app.Use(recover.New())
			app.Post("/things", ratelimit.New(attempts, fibermw.Global(), policy.ChargeStatus(401)),
				ratelimit.New(tokens, fibermw.Global(), ratelimit.Costs(func(fiber.Ctx) tokenbucket.Cost { return tokenbucket.Cost{"tokens": 300} })),
				func(c fiber.Ctx) error {
					reservation, ok := tokenbucket.FromContext(c.Context())
					if !ok {
						return fiber.ErrTeapot
					}
					if err := reservation.Use("tokens", 7); err != nil {
						return err
					}
					return e.end(c)
				})
			url, client := listen(t, app)
			if status, body := post(t, client, url+"/things"); status != e.status {
				t.Errorf("%d %s", status, body)
			}
			left := func(l *tokenbucket.Limiter) int64 {
				return must(l.Peek(t.Context(), "global")).Limits()[0].Remaining
			}
			want := int64(2)
			if e.status == 401 || e.name == "an error" || e.name == "a panic" { // which middleware outside may answer
				want = 1
			}
			testpace.Eventually(t, 10*time.Second, "the request is settled", func() bool { return left(tokens) == 993 && left(attempts) == want })
		})
	}
}

// Answers of the server's own errors do not raise a capacity that adapts, and answers that begin
// when the handlers have returned change nothing.
func TestCapacityAdaptsToHandlers(t *testing.T) {
	adapts := func(t *testing.T, end fiber.Handler, target time.Duration) int {
		return tiertest.Adapts(t, target, func(sem *semaphore.Semaphore) func() {
			app := fiber.New()
			app.Use(recover.New())
			app.Post("/things/:id", concurrency.New(sem, fibermw.ByParam("id")), end)
			handle := app.Handler()
			return func() {
				var c fasthttp.RequestCtx
				c.Request.Header.SetMethod(http.MethodPost)
				c.Request.SetRequestURI("/things/1")
				handle(&c)
			}
		})
	}
	for _, e := range endings {
		t.Run(e.name, func(t *testing.T) {
			t.Parallel()
			if got := adapts(t, e.end, time.Hour); got > 0 != (!e.failed && !e.late) {
				t.Errorf("a fast one changes the capacity by %d", got)
			}
			if got := adapts(t, e.end, time.Nanosecond); got < 0 != !e.late {
				t.Errorf("a slow one changes the capacity by %d", got)
			}
		})
	}
}

// An answer that is not kept reaches its client as the handler has made it.
func TestAnswersThatDoNotFit(t *testing.T) {
	file := filepath.Join(t.TempDir(), "large")
	if err := os.WriteFile(file, []byte(strings.Repeat("x", 1001)), 0o600); err != nil {
		t.Fatal(err)
	}
	for name, end := range map[string]fiber.Handler{
		"a body":   func(c fiber.Ctx) error { return c.SendString(strings.Repeat("x", 1001)) },
		"a file":   func(c fiber.Ctx) error { return c.SendFile(file) },
		"a stream": func(c fiber.Ctx) error { return c.SendStream(strings.NewReader(strings.Repeat("x", 1001)), 1001) },
	} {
		t.Run(name, func(t *testing.T) {
			orders := must(guard.New(newStore(t), "orders", guard.WithMaxResult(1000)))
			app := fiber.New()
			app.Post("/things", idempotency.New(orders, fibermw.Unscoped()), end)
			url, client := listen(t, app)
			if status, body := post(t, client, url+"/things", "Idempotency-Key", "k"); status != http.StatusOK || body != strings.Repeat("x", 1001) {
				t.Errorf("%d with %d bytes", status, len(body))
			}
			if status, body := post(t, client, url+"/things", "Idempotency-Key", "k"); status != http.StatusConflict || !strings.Contains(body, string(policy.ResponseNotRetained)) {
				t.Errorf("%d %s", status, body)
			}
		})
	}
}

// A stream that breaks off is not kept, and breaks off for the client.
func TestAStreamThatBreaksOff(t *testing.T) {
	orders := must(guard.New(newStore(t), "orders"))
	app := fiber.New()
	app.Post("/things", idempotency.New(orders, fibermw.Unscoped()), func(c fiber.Ctx) error {
		return c.SendStream(strings.NewReader("half"), 8)
	})
	url, client := listen(t, app)
	send := func() (int, string, error) {
		r := must(http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/things", io.MultiReader(strings.NewReader("body"))))
		r.Header.Set("Idempotency-Key", "k")
		resp, err := client.Do(r)
		if err != nil {
			return 0, "", err
		}
		defer resp.Body.Close() //nolint:errcheck // it has been read
		body, err := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body), err
	}
	if status, body, err := send(); err == nil {
		t.Errorf("%d %q", status, body)
	}
	if status, body, _ := send(); status != http.StatusConflict {
		t.Errorf("%d %q", status, body)
	}
}

// A connection that a handler takes over is none that a repeat gets.
func TestAConnectionIsNotKept(t *testing.T) {
	orders := must(guard.New(newStore(t), "orders"))
	app := fiber.New()
	app.Post("/things", idempotency.New(orders, fibermw.Unscoped()), func(c fiber.Ctx) error {
		c.RequestCtx().Hijack(func(net.Conn) {})
		return nil
	})
	url, client := listen(t, app)
	post(t, client, url+"/things", "Idempotency-Key", "k")
	if status, body := post(t, client, url+"/things", "Idempotency-Key", "k"); status != http.StatusConflict || !strings.Contains(body, string(policy.ResponseNotRetained)) {
		t.Errorf("%d %s", status, body)
	}
}

// A streamed body (Config.StreamRequestBody) is left to the handler by what reads it, up to
// Config.BodyLimit; a refusal of a body that has not been read ends the connection.
func TestStreamedBodies(t *testing.T) {
	byBody := func(c fiber.Ctx) (string, error) {
		if c.Get("X-Id") == "" {
			return "", policy.ErrNoKey
		}
		return c.Get("X-Id"), nil
	}
	orders := must(guard.New(newStore(t), "orders"))
	app := fiber.New(fiber.Config{StreamRequestBody: true, BodyLimit: 10_000})
	var streams []bool
	app.Post("/guarded", func(c fiber.Ctx) error {
		streams = append(streams, c.Request().IsBodyStream())
		return c.Next()
	}, idempotency.New(orders, fibermw.Unscoped()), func(c fiber.Ctx) error {
		return c.SendString(fmt.Sprint(len(c.Body())))
	})
	limiter := must(tokenbucket.New(newStore(t), "api", tokenbucket.PerHour(100)))
	app.Post("/limited", ratelimit.New(limiter, byBody), func(c fiber.Ctx) error {
		body, err := io.ReadAll(c.Request().BodyStream())
		if err != nil {
			return err
		}
		return c.SendString(fmt.Sprint(len(body)))
	})
	url, client := listen(t, app)
	send := func(path string, size int, header ...string) (status int, body string, closed bool) {
		r := must(http.NewRequestWithContext(t.Context(), http.MethodPost, url+path, io.MultiReader(strings.NewReader(strings.Repeat("x", size)))))
		for i := 0; i < len(header); i += 2 {
			r.Header.Set(header[i], header[i+1])
		}
		resp, err := client.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close() //nolint:errcheck // it has been read
		return resp.StatusCode, string(must(io.ReadAll(resp.Body))), resp.Close
	}
	for _, size := range []int{0, 5, 9_000, 5} {
		if status, body, closed := send("/guarded", size, "Idempotency-Key", fmt.Sprint(size)); status != http.StatusOK || body != fmt.Sprint(size) || closed {
			t.Errorf("%d %q of %d bytes, closed %v", status, body, size, closed)
		}
	}
	if len(streams) != 4 || !streams[2] {
		t.Errorf("streams %v: this test shows nothing", streams)
	}
	if status, body, closed := send("/guarded", 10_001, "Idempotency-Key", "large"); status != http.StatusRequestEntityTooLarge || !closed {
		t.Errorf("%d %q, closed %v", status, body, closed)
	}
	if status, body, closed := send("/limited", 50_000, "X-Id", "a"); status != http.StatusOK || body != "50000" || closed {
		t.Errorf("%d %q, closed %v", status, body, closed)
	}
	if status, body, closed := send("/limited", 5_000); status != http.StatusBadRequest || !closed {
		t.Errorf("%d %q, closed %v", status, body, closed)
	}
	if status, body, _ := send("/limited", 5, "X-Id", "a"); status != http.StatusOK || body != "5" {
		t.Errorf("%d %q", status, body)
	}
}

// Behind fiber's timeout middleware a handler runs on, and a repeat gets its answer.
func TestATimeoutOutside(t *testing.T) {
	orders := must(guard.New(newStore(t), "orders"))
	entered, answered := make(chan struct{}), make(chan struct{}) // fiber's own accesses to the answer are in no order
	var runs atomic.Int64
	app := fiber.New()
	guarded := idempotency.New(orders, fibermw.Unscoped(), policy.Wait(time.Minute))
	app.Post("/things", func(c fiber.Ctx) error {
		err := c.Next()
		if c.IsAbandoned() {
			close(answered) // fiber does not touch the context any more
		}
		return err
	}, func(c fiber.Ctx) error {
		if c.Get("X-Slow") == "" {
			return c.Next()
		}
		return timeout.New(func(c fiber.Ctx) error { return c.Next() }, timeout.Config{
			Timeout: time.Millisecond, OnTimeout: func(c fiber.Ctx) error {
				<-entered
				return c.Status(http.StatusGatewayTimeout).SendString("late")
			},
		})(c)
	}, guarded, func(c fiber.Ctx) error {
		runs.Add(1)
		close(entered)
		<-answered
		return c.Status(http.StatusCreated).SendString("done")
	})
	url, client := listen(t, app)
	if status, body := post(t, client, url+"/things", "Idempotency-Key", "k", "X-Slow", "yes"); status != http.StatusGatewayTimeout || body != "late" {
		t.Errorf("%d %q", status, body)
	}
	if status, body := post(t, client, url+"/things", "Idempotency-Key", "k"); status != http.StatusCreated || body != "done" {
		t.Errorf("%d %q", status, body)
	}
	if n := runs.Load(); n != 1 {
		t.Errorf("the handler ran %d times", n)
	}
}

// What a limit in memory costs: the adapter makes a request of net/http.
func TestCostOfALimit(t *testing.T) {
	const most = 20
	limiter := must(tokenbucket.New(newStore(t), "api", tokenbucket.PerMinute(100).Burst(1e8)))
	allocs := func(handlers ...any) float64 {
		app := fiber.New()
		app.Post("/things/:id", handlers[0], handlers[1:]...)
		handle := app.Handler()
		var c fasthttp.RequestCtx
		c.Init(&fasthttp.Request{}, &net.TCPAddr{IP: net.IPv4(203, 0, 113, 7)}, nil)
		return testing.AllocsPerRun(1000, func() {
			c.Request.Header.SetMethod(http.MethodPost)
			c.Request.SetRequestURI("/things/1")
			handle(&c)
			c.ResetUserValues()
			c.Response.Reset()
		})
	}
	hello := func(c fiber.Ctx) error { return c.SendString("hello") }
	bare, limited := allocs(hello), allocs(ratelimit.New(limiter, fibermw.ByClientIP(clientip.Direct())), hello)
	t.Logf("%v without, %v with", bare, limited)
	if limited-bare > most {
		t.Errorf("it adds %v to %v", limited-bare, bare)
	}
}
