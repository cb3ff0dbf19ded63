package fibermw_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/fibermw"
	"github.com/lockkeeper/lockkeeper/fibermw/concurrency"
	"github.com/lockkeeper/lockkeeper/fibermw/exclusive"
	"github.com/lockkeeper/lockkeeper/fibermw/idempotency"
	"github.com/lockkeeper/lockkeeper/fibermw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// The tests of this file show what fasthttp does, on a server of its own.

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func newStore(t *testing.T) *memstore.Store {
	st := memstore.New()
	t.Cleanup(func() { _ = st.Close() })
	return st
}

// listen serves an app, and returns its URL and a client that has one connection.
func listen(t *testing.T, app *fiber.App) (url string, client *http.Client) {
	t.Helper()
	listener := must(net.Listen("tcp", "127.0.0.1:0"))
	app.Server().MaxIdleWorkerDuration = 100 * time.Millisecond // for which a goroutine of a server outlives it
	served := make(chan error, 1)
	go func() { served <- app.Listener(listener, fiber.ListenConfig{DisableStartupMessage: true}) }()
	transport := &http.Transport{MaxConnsPerHost: 1}
	t.Cleanup(func() {
		transport.CloseIdleConnections()
		_ = app.ShutdownWithTimeout(time.Second)
		if err := <-served; err != nil {
			t.Error(err)
		}
	})
	return "http://" + listener.Addr().String(), &http.Client{Transport: transport, Timeout: time.Minute}
}

func post(t *testing.T, client *http.Client, url string, header ...string) (status int, body string) {
	t.Helper()
	r := must(http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("a body")))
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	resp, err := client.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it has been read
	return resp.StatusCode, string(must(io.ReadAll(resp.Body)))
}

// Fiber's strings change when another request has its buffers; keys do not.
func TestKeysStayAsTheyAre(t *testing.T) {
	var fibers, keys []string
	plan := tokenbucket.PlanFunc(func(_ context.Context, key string) (tokenbucket.Plan, error) {
		keys = append(keys, key)
		return tokenbucket.PerDay(1), nil
	})
	byParam := func(c fiber.Ctx) (string, error) {
		fibers = append(fibers, c.Params("id"))
		return c.Params("id"), nil
	}
	for name, key := range map[string]fibermw.KeyFunc{
		"a function": byParam, "ByParam": fibermw.ByParam("id"), "ByHeader": fibermw.ByHeader("X-Id"), "ByContext": fibermw.ByContext("id"),
		"FirstOf": fibermw.FirstOf(fibermw.ByContext("none"), byParam),
	} {
		t.Run(name, func(t *testing.T) {
			fibers, keys = nil, nil
			limiter := must(tokenbucket.New(newStore(t), "api", plan))
			app := fiber.New()
			app.Use(func(c fiber.Ctx) error {
				c.Locals("id", c.Get("X-Id")) // a string of fiber's
				return c.Next()
			})
			app.Post("/things/:id", ratelimit.New(limiter, key), func(c fiber.Ctx) error { return c.SendStatus(http.StatusCreated) })
			url, client := listen(t, app)
			var want []string
			for n := range 5 {
				id := strings.Repeat(string(rune('a'+n)), 8) + name[:1]
				if status, body := post(t, client, url+"/things/"+id, "X-Id", id); status != http.StatusCreated {
					t.Fatalf("%d %s", status, body)
				}
				if name == "FirstOf" {
					id = "1:" + id
				}
				want = append(want, id)
			}
			if !slices.Equal(keys, want) {
				t.Errorf("keys %q, want %q", keys, want)
			}
			if len(fibers) > 0 && strings.Join(fibers, " ") == strings.ReplaceAll(strings.Join(want, " "), "1:", "") {
				t.Error("fiber's own string is as it was: this test shows nothing")
			}
		})
	}
}

// A streamed answer begins when the handlers have returned: a guard does not keep it, and a lock is
// free by then.
func TestAStreamBeginsAfterItsHandlers(t *testing.T) {
	st := newStore(t)
	orders, carts := must(guard.New(st, "orders")), must(lock.New(st, "carts"))
	defer carts.Close() //nolint:errcheck // it holds nothing
	free := make(chan bool, 1)
	runs := 0
	app := fiber.New()
	app.Post("/things/:id", idempotency.New(orders, fibermw.Unscoped()), exclusive.New(carts, fibermw.ByParam("id")), func(c fiber.Ctx) error {
		runs++
		return c.SendStreamWriter(func(w *bufio.Writer) {
			lease, err := carts.TryLock(context.Background(), "1")
			if err == nil {
				_ = lease.Unlock(context.Background())
			}
			free <- err == nil
			_, _ = fmt.Fprint(w, "one, ")
			_ = w.Flush()
			_, _ = fmt.Fprint(w, "two")
		})
	})
	url, client := listen(t, app)
	if status, body := post(t, client, url+"/things/1", "Idempotency-Key", "k"); status != http.StatusOK || body != "one, two" {
		t.Errorf("%d %q", status, body)
	}
	if !<-free {
		t.Error("the lock is held while the answer is streamed: the exceptions of the table are none")
	}
	if status, body := post(t, client, url+"/things/1", "Idempotency-Key", "k"); status != http.StatusConflict || !strings.Contains(body, string(policy.ResponseNotRetained)) {
		t.Errorf("%d %s", status, body)
	}
	if runs != 1 {
		t.Errorf("the handler ran %d times", runs)
	}
}

// A file, or another stream of known length, is kept.
func TestAStreamOfKnownLengthIsKept(t *testing.T) {
	orders := must(guard.New(newStore(t), "orders"))
	runs := 0
	app := fiber.New()
	app.Post("/things", idempotency.New(orders, fibermw.Unscoped()), func(c fiber.Ctx) error {
		runs++
		return c.SendStream(strings.NewReader("done"), 4)
	})
	url, client := listen(t, app)
	for range 2 {
		if status, body := post(t, client, url+"/things", "Idempotency-Key", "k"); status != http.StatusOK || body != "done" {
			t.Errorf("%d %q", status, body)
		}
	}
	if runs != 1 {
		t.Errorf("the handler ran %d times", runs)
	}
}

// A client that leaves is still served: fasthttp does not look at a connection while a handler runs.
func TestAClientThatLeavesIsServed(t *testing.T) {
	carts := must(lock.New(newStore(t), "carts"))
	defer carts.Close() //nolint:errcheck // it holds nothing
	lease := must(carts.Lock(t.Context(), "1"))
	ran := make(chan error, 1)
	app := fiber.New()
	app.Post("/things/:id", exclusive.New(carts, fibermw.ByParam("id"), policy.Wait(time.Minute)), func(c fiber.Ctx) error {
		ran <- guard.ClientContext(c.Context()).Err()
		return nil
	})
	url, _ := listen(t, app)
	conn := must(net.Dial("tcp", strings.TrimPrefix(url, "http://")))
	_, _ = fmt.Fprint(conn, "POST /things/1 HTTP/1.1\r\nHost: shop\r\nContent-Length: 0\r\n\r\n")
	awaitsOne(t, carts)
	_ = conn.(*net.TCPConn).SetLinger(0)
	_ = conn.Close() // with a reset
	_ = lease.Unlock(t.Context())
	select {
	case err := <-ran:
		if err != nil {
			t.Errorf("the client's context has ended: %v", err)
		}
	case <-time.After(testpace.Scale(10 * time.Second)):
		t.Error("the handler does not run")
	}
}

// awaitsOne waits until a request waits for the lock of the key "1".
func awaitsOne(t *testing.T, carts *lock.Locker) {
	t.Helper()
	testpace.Eventually(t, 10*time.Second, "the request waits", func() bool {
		_, err := carts.TryLock(t.Context(), "1")
		var held *lock.HeldError
		return errors.As(err, &held) && held.Waiting == 1
	})
}

// A connection is taken over when the handlers have returned, so that no permit is held by then.
func TestAConnectionIsTakenOverAfterItsHandlers(t *testing.T) {
	sem := must(semaphore.New(newStore(t), "sockets", 1))
	defer sem.Close() //nolint:errcheck // it holds nothing
	free := make(chan error, 1)
	var over sync.WaitGroup
	over.Add(1)
	app := fiber.New()
	app.Get("/socket", concurrency.New(sem, fibermw.Global()), func(c fiber.Ctx) error {
		c.RequestCtx().Hijack(func(net.Conn) {
			defer over.Done()
			permit, err := sem.Acquire(context.Background(), "global")
			if err == nil {
				_ = permit.Release(context.Background())
			}
			free <- err
		})
		return nil
	})
	url, client := listen(t, app)
	resp := must(client.Get(url + "/socket"))
	_ = resp.Body.Close()
	if err := <-free; err != nil {
		t.Error(err)
	}
	over.Wait()
}
