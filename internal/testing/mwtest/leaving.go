package mwtest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// crowd is a middleware with requests that wait for the key "1".
type crowd struct {
	name string
	// wire returns the middleware, and what counts its waiters and releases the key. Requests wait
	// for up to the duration, and at most that many of them; zero is the default.
	wire func(t *rig, wait time.Duration, most int) (m Middleware, waiting func() int, let func())
}

var crowds = []crowd{
	{"exclusive", func(t *rig, wait time.Duration, most int) (Middleware, func() int, func()) {
		l := newLocker(t, newStore(t))
		lease := locked(t, l)
		m := Exclusive{Locker: l, By: byID, Options: []policy.ExclusiveOption{policy.Wait(wait)}}
		if most > 0 {
			m.Options = append(m.Options, policy.MaxWaiting(most))
		}
		waiting := func() int {
			_, err := l.TryLock(t.Context(), "1")
			return heldWaiting(err)
		}
		return m, waiting, func() { _ = lease.Unlock(t.Context()) }
	}},
	{"concurrency", func(t *rig, wait time.Duration, most int) (Middleware, func() int, func()) {
		var opts []semaphore.Option
		if most > 0 {
			opts = append(opts, semaphore.WithMaxWaiting(most))
		}
		s := newSemaphore(t, newStore(t), 1, opts...)
		permit := permitted(t, s)
		m := Concurrency{Semaphore: s, By: byID, Options: []policy.ConcurrencyOption{policy.Wait(wait)}}
		waiting := func() int {
			_, err := s.TryAcquire(t.Context(), "1")
			return heldWaiting(err)
		}
		return m, waiting, func() { _ = permit.Release(t.Context()) }
	}},
}

// reaches waits until there are n waiters.
func reaches(t *rig, waiting func() int, want int) {
	t.Helper()
	for deadline := time.Now().Add(t.patience); waiting() != want; <-time.After(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d wait, want %d", waiting(), want)
		}
	}
}

// posting posts a body until the context ends.
func posting(ctx context.Context, client *http.Client, url, body string, header ...string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+Path+"1", strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/json")
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	return client.Do(req)
}

// leavingRows are about clients that disconnect, and handlers that do not end by themselves.
var leavingRows = []row{
	{"a client that has ended its side gets the answer to a fresh key", func(t *rig) {
		var c counter
		served := t.framework.Serve(c.handle, Idempotency{Guard: newGuard(t, newStore(t)), By: byUser, Options: []policy.IdempotencyOption{policy.Wait(t.patience)}})
		s := serveHandler(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done() // the server takes the end for the client's leaving
			served.ServeHTTP(w, r)
		}))
		conn := must(net.Dial("tcp", s.Listener.Addr().String()))
		defer conn.Close() //nolint:errcheck // it has been read
		_, _ = fmt.Fprintf(conn, "POST %s1 HTTP/1.1\r\nHost: shop\r\nX-User: u\r\n%s: k\r\nContent-Length: 0\r\n\r\n", Path, keyHeader)
		_ = conn.(*net.TCPConn).CloseWrite()
		resp, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Fatal(err)
		}
		if body := readAll(resp); resp.StatusCode != http.StatusCreated || body != "run 1" {
			t.Errorf("%d %q", resp.StatusCode, body)
		}
	}},
	{"a client that disconnects stops waiting", func(t *rig) {
		for _, c := range crowds {
			for _, guarded := range []bool{false, true} {
				for _, http2 := range []bool{false, true} {
					var runs counter
					m, waiting, let := c.wire(t, time.Minute, 0)
					chain := []Middleware{m}
					if guarded {
						chain = []Middleware{Idempotency{Guard: newGuard(t, newStore(t)), By: byUser}, m}
					}
					server := httptest.NewUnstartedServer(t.framework.Serve(runs.handle, chain...))
					server.EnableHTTP2 = http2
					server.Config.ErrorLog = log.New(io.Discard, "", 0) // connections that were not needed
					server.StartTLS()
					ctx, leave := context.WithCancel(t.Context())
					var left sync.WaitGroup
					t.Cleanup(left.Wait) // no reports to a test that has ended
					for n := range 5 {
						left.Go(func() {
							resp, err := posting(ctx, server.Client(), server.URL, `{"n":1}`, "X-User", "u", keyHeader, fmt.Sprint(n))
							if err == nil {
								_ = resp.Body.Close()
								t.Errorf("%s: %s", c.name, resp.Status)
							}
						})
					}
					reaches(t, waiting, 5)
					leave()
					left.Wait()
					reaches(t, waiting, 0)
					let()
					server.Close()
					runs.ran(t, 0)
				}
			}
		}
	}},
	{"the handler reads the body of a request that waited", func(t *rig) {
		for _, c := range crowds {
			m, waiting, let := c.wire(t, t.patience, 0)
			large := strings.Repeat("x", 100_000)
			s := serve(t, func(w http.ResponseWriter, r *http.Request) {
				body, err := io.ReadAll(r.Body)
				if err != nil {
					t.Error(err)
				}
				_, _ = fmt.Fprint(w, len(body), r.ContentLength)
			}, m)
			answers := make(chan string, 3)
			for _, body := range []io.Reader{strings.NewReader("small"), strings.NewReader(large), io.MultiReader(strings.NewReader("chunked"))} {
				go func() {
					req := must(http.NewRequestWithContext(t.Context(), http.MethodPost, s.URL+Path+"1", body))
					resp, err := s.Client().Do(req)
					if err != nil {
						answers <- err.Error()
						return
					}
					answers <- readAll(resp)
				}()
			}
			reaches(t, waiting, 3)
			let()
			got := map[string]bool{}
			for range 3 {
				got[<-answers] = true
			}
			if !got["5 5"] || !got["100000 100000"] || !got["7 -1"] {
				t.Errorf("%s: %v", c.name, got)
			}
		}
	}},
	{"the maximum of waiters is exact", func(t *rig) {
		for _, c := range crowds {
			var runs counter
			m, waiting, let := c.wire(t, t.patience, 3)
			s := serve(t, runs.handle, m)
			answers := make(chan answer, 20)
			for range cap(answers) {
				go func() { answers <- s.send("1", "") }()
			}
			for range cap(answers) - 3 {
				a := <-answers
				if a.status != http.StatusConflict && a.status != http.StatusTooManyRequests {
					t.Errorf("%s: %d", c.name, a.status)
				}
				retries(t, a)
			}
			reaches(t, waiting, 3)
			let()
			for range 3 {
				if a := <-answers; a.status != http.StatusCreated {
					t.Errorf("%s: %d", c.name, a.status)
				}
			}
			runs.ran(t, 3)
		}
	}},
	{"a handler can see that its client has disconnected", func(t *rig) {
		ended := make(chan bool, 1)
		entered := make(chan struct{})
		server := httptest.NewServer(t.framework.Serve(func(_ http.ResponseWriter, r *http.Request) {
			close(entered)
			select {
			case <-guard.ClientContext(r.Context()).Done():
				ended <- r.Context().Err() == nil
			case <-time.After(t.patience):
				ended <- false
			}
		}, Idempotency{Guard: newGuard(t, newStore(t)), By: byUser}, Idempotency{Guard: inner(t), By: byUser}))
		defer server.Close()
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		go func() {
			if resp, err := posting(ctx, server.Client(), server.URL, `{}`, "X-User", "u", keyHeader, "k"); err == nil {
				_ = resp.Body.Close()
			}
		}()
		select {
		case <-entered:
		case <-time.After(t.patience):
			t.Fatal("the handler does not run")
		}
		leave()
		if !<-ended {
			t.Error("it cannot see that, or its own context has ended")
		}
	}},
	{"handlers end after the maximum time", func(t *rig) {
		s := orders(t, func(w http.ResponseWriter, r *http.Request) {
			select {
			case <-r.Context().Done():
				_, _ = io.WriteString(w, context.Cause(r.Context()).Error())
			case <-time.After(t.patience):
			}
		}, policy.MaxRun(50*time.Millisecond))
		var all sync.WaitGroup
		for n := range 200 {
			all.Go(func() {
				for range 2 {
					s.send("1", "", "X-User", "u", keyHeader, fmt.Sprint(n)).is(http.StatusOK, policy.ErrMaxRun.Error())
				}
			})
		}
		all.Wait()
	}},
}
