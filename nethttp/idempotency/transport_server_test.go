package idempotency_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/iotest"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
)

// shop is a guarded service that counts what it runs.
type shop struct {
	http.Handler
	runs atomic.Int32
}

// newShop returns a shop whose handler is called before it answers, if there is one.
func newShop(t *testing.T, before func(http.ResponseWriter, *http.Request)) *shop {
	t.Helper()
	st := memstore.New()
	t.Cleanup(func() { _ = st.Close() })
	orders := must(guard.New(st, "checkout"))
	s := new(shop)
	once := idempotency.New(orders, nethttp.Unscoped(), policy.Required())
	s.Handler = once(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		n := s.runs.Add(1)
		order, _ := io.ReadAll(r.Body)
		if before != nil {
			before(w, r)
		}
		w.WriteHeader(http.StatusCreated)
		_, _ = fmt.Fprintf(w, "order %d: %s", n, order)
	}))
	return s
}

// quiet is the log of a server whose connections break.
var quiet = log.New(io.Discard, "", 0)

// client returns a client of a server, and closes both after the test.
func client(t *testing.T, server *httptest.Server, opts ...idempotency.TransportOption) *http.Client {
	t.Helper()
	t.Cleanup(server.Close)
	c := server.Client()
	c.Transport = idempotency.Transport(c.Transport, opts...)
	t.Cleanup(c.CloseIdleConnections)
	return c
}

// result is a response that has been read.
type result struct {
	status, tries int
	replayed      bool
	body, key     string
}

func do(c *http.Client, r *http.Request) (result, error) {
	resp, err := c.Do(r)
	if err != nil {
		return result{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return result{
		resp.StatusCode, idempotency.Tries(resp), idempotency.Replayed(resp),
		string(text), resp.Request.Header.Get("Idempotency-Key"),
	}, err
}

func order(ctx context.Context, c *http.Client, url string, body io.Reader) (result, error) {
	return do(c, must(http.NewRequestWithContext(ctx, http.MethodPost, url, body)))
}

// cut runs a handler to its end, and cuts the connection instead of sending its answer.
func cut(h http.Handler, w http.ResponseWriter, r *http.Request) {
	h.ServeHTTP(httptest.NewRecorder(), r)
	panic(http.ErrAbortHandler)
}

// A request whose answer was lost gets it by the next try, and has run once.
func TestTransportGetsTheAnswerThatWasLost(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		for name, sent := range map[string]func() io.Reader{
			"with GetBody":    func() io.Reader { return strings.NewReader("tea") },
			"without GetBody": func() io.Reader { return iotest.OneByteReader(strings.NewReader("tea")) },
		} {
			t.Run(fmt.Sprint(name, " http2 ", http2), func(t *testing.T) {
				t.Parallel()
				s := newShop(t, nil)
				var requests atomic.Int32
				server := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					if requests.Add(1) <= 2 {
						cut(s, w, r)
					}
					s.ServeHTTP(w, r)
				}))
				server.EnableHTTP2 = http2
				server.StartTLS()
				got, err := order(t.Context(), client(t, server), server.URL, sent())
				if err != nil || got.status != http.StatusCreated || got.body != "order 1: tea" || !got.replayed || got.tries != 3 {
					t.Errorf("%+v, %v", got, err)
				}
				if s.runs.Load() != 1 {
					t.Errorf("%d runs", s.runs.Load())
				}
			})
		}
	}
}

// The server ends all connections, with the answer of some half sent: one run each.
func TestTransportWhenAllConnectionsBreak(t *testing.T) {
	t.Parallel()
	for _, http2 := range []bool{false, true} {
		t.Run(fmt.Sprint("http2 ", http2), func(t *testing.T) {
			t.Parallel()
			const clients = 30
			var inside sync.WaitGroup
			inside.Add(clients)
			end := make(chan struct{})
			s := newShop(t, func(http.ResponseWriter, *http.Request) {
				inside.Done()
				<-end
			})
			server := httptest.NewUnstartedServer(s)
			server.Config.ErrorLog = quiet
			server.EnableHTTP2 = http2
			server.StartTLS()
			c := client(t, server, idempotency.WithMaxTries(20))
			var wg sync.WaitGroup
			var orders sync.Map
			for n := range clients {
				wg.Go(func() {
					got, err := order(t.Context(), c, server.URL, strings.NewReader(strconv.Itoa(n)))
					placed, of, _ := strings.Cut(got.body, ": ")
					if _, twice := orders.LoadOrStore(placed, n); err != nil || twice || of != strconv.Itoa(n) {
						t.Errorf("%+v, %v", got, err)
					}
					if !got.replayed || got.tries < 2 {
						t.Errorf("%+v", got)
					}
				})
			}
			inside.Wait()
			server.CloseClientConnections()
			close(end)
			wg.Wait()
			if s.runs.Load() != clients {
				t.Errorf("%d runs", s.runs.Load())
			}
		})
	}
}

// A handler's server in process, without a network, so that time is synctest's.
type inProcess struct{ http.Handler }

func (p inProcess) RoundTrip(r *http.Request) (*http.Response, error) {
	w := httptest.NewRecorder()
	p.ServeHTTP(w, r)
	return w.Result(), nil
}

// A twin in flight is waited for, and its answer replayed.
func TestTransportWaitsForTheTwin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newShop(t, func(http.ResponseWriter, *http.Request) { time.Sleep(2 * time.Second) })
		c := &http.Client{Transport: idempotency.Transport(inProcess{s}, idempotency.WithMaxTries(20))}
		ctx := idempotency.WithKey(t.Context(), "basket 7")
		var wg sync.WaitGroup
		var replays atomic.Int32
		for range 5 {
			wg.Go(func() {
				got, err := order(ctx, c, "http://shop.example/", strings.NewReader("tea"))
				if err != nil || got.status != http.StatusCreated || got.body != "order 1: tea" || got.replayed != (got.tries > 1) {
					t.Errorf("%+v, %v", got, err)
				}
				if got.replayed {
					replays.Add(1)
				}
			})
		}
		wg.Wait()
		if s.runs.Load() != 1 || replays.Load() != 4 {
			t.Errorf("%d runs, %d replays", s.runs.Load(), replays.Load())
		}
	})
}

// An answer that the guard keeps is final, though its status says to come back.
func TestTransportReturnsAReplayedRefusal(t *testing.T) {
	s := newShop(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "0")
		w.WriteHeader(http.StatusServiceUnavailable)
	})
	server := httptest.NewServer(s)
	got, err := order(t.Context(), client(t, server), server.URL, nil)
	if err != nil || got.status != http.StatusServiceUnavailable || got.tries != 2 || !got.replayed || s.runs.Load() != 1 {
		t.Errorf("%+v, %v, %d runs", got, err, s.runs.Load())
	}
}

// A redirect to another host has a key of its own, for all tries.
func TestTransportKeepsTheKeyFromOtherHosts(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ctx func(context.Context) context.Context
		set []string
		off bool
	}{
		"made":     {},
		"WithKey":  {ctx: func(ctx context.Context) context.Context { return idempotency.WithKey(ctx, "secret") }},
		"a field":  {set: []string{"secret"}},
		"switched": {set: []string{}, off: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var here string
			var there []string
			other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if there = append(there, r.Header.Get("Idempotency-Key")); len(there) == 1 && !c.off {
					w.Header().Set("Retry-After", "0")
					w.WriteHeader(http.StatusServiceUnavailable)
				}
			}))
			defer other.Close()
			elsewhere := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				here = r.Header.Get("Idempotency-Key")
				http.Redirect(w, r, elsewhere, http.StatusTemporaryRedirect)
			}))
			ctx := t.Context()
			if c.ctx != nil {
				ctx = c.ctx(ctx)
			}
			r := must(http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("tea")))
			if c.set != nil {
				r.Header["Idempotency-Key"] = c.set
			}
			got, err := do(client(t, server), r)
			if err != nil || got.status != http.StatusOK {
				t.Fatalf("%+v, %v", got, err)
			}
			if c.off {
				if here != "" || there[0] != "" {
					t.Errorf("the keys are %q and %q", here, there)
				}
				return
			}
			if len(there) != 2 || there[0] == "" || there[0] != there[1] || there[0] == here {
				t.Errorf("the keys are %q and %q", here, there)
			}
		})
	}
}

// A redirect is of the same operation, and has its key.
func TestTransportKeepsTheKeyThroughRedirects(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		ctx  func(context.Context) context.Context
		set  []string
		want string // "" for one that was made
		off  bool
	}{
		"made":     {},
		"WithKey":  {ctx: func(ctx context.Context) context.Context { return idempotency.WithKey(ctx, "k") }, want: `"k"`},
		"a field":  {set: []string{"k"}, want: "k"},
		"switched": {set: []string{}, off: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var keys []string
			requests := 0
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				body, _ := io.ReadAll(r.Body)
				keys = append(keys, r.Method+" "+string(body)+" "+r.Header.Get("Idempotency-Key"))
				switch requests++; requests {
				case 1, 3:
					http.Redirect(w, r, "/"+strconv.Itoa(requests), http.StatusTemporaryRedirect)
				case 2:
					if !c.off {
						w.Header().Set("Retry-After", "0")
						w.WriteHeader(http.StatusServiceUnavailable)
						return
					}
					http.Redirect(w, r, "/other", http.StatusPermanentRedirect)
				case 4:
					http.Redirect(w, r, "/done", http.StatusSeeOther)
				}
			}))
			ctx := t.Context()
			if c.ctx != nil {
				ctx = c.ctx(ctx)
			}
			r := must(http.NewRequestWithContext(ctx, http.MethodPost, server.URL, strings.NewReader("tea")))
			if c.set != nil {
				r.Header["Idempotency-Key"] = c.set
			}
			got, err := do(client(t, server), r)
			if err != nil || got.status != http.StatusOK || got.tries != 1 || len(keys) != 5 {
				t.Fatalf("%+v, %v: %q", got, err, keys)
			}
			for n, sent := range keys[:4] {
				if sent != keys[0] || c.want != "" && sent != "POST tea "+c.want || c.off != (sent == "POST tea ") {
					t.Errorf("request %d: %q", n+1, sent)
				}
			}
		})
	}
}

// Informational responses are not answers.
func TestTransportPassesInformationOn(t *testing.T) {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Retry-After", "7")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Retry-After", "0")
		if requests++; requests == 1 {
			w.WriteHeader(http.StatusTooEarly)
		}
	}))
	hints := 0
	ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error {
		hints++
		return nil
	}})
	got, err := order(ctx, client(t, server), server.URL, nil)
	if err != nil || got.status != http.StatusOK || got.tries != 2 || hints != 2 {
		t.Errorf("%+v, %v, %d hints", got, err, hints)
	}
}

// A server that answers before it has read the body gets it again, from its beginning.
func TestTransportWhenTheAnswerComesEarly(t *testing.T) {
	t.Parallel()
	long := bytes.Repeat([]byte("tea "), 1<<20)
	for name, c := range map[string]struct {
		expect bool
		body   func() io.Reader
	}{
		"with GetBody":    {body: func() io.Reader { return bytes.NewReader(long) }},
		"without GetBody": {body: func() io.Reader { return bufio.NewReader(bytes.NewReader(long)) }},
		"100-continue":    {expect: true, body: func() io.Reader { return bytes.NewReader(long) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var requests atomic.Int32
			server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if requests.Add(1) < 3 {
					w.Header().Set("Retry-After", "0")
					w.WriteHeader(http.StatusServiceUnavailable)
					return
				}
				if got, err := io.ReadAll(r.Body); err != nil || !bytes.Equal(got, long) {
					w.WriteHeader(http.StatusBadRequest)
				}
			}))
			r := must(http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, c.body()))
			if c.expect {
				r.Header.Set("Expect", "100-continue")
			}
			got, err := do(client(t, server, idempotency.WithMaxBody(int64(len(long)))), r)
			if err != nil || got.status != http.StatusOK || got.tries < 3 {
				t.Errorf("%+v, %v", got, err)
			}
		})
	}
}

// Bodies without a GetBody are kept up to a size, sent whole, and closed in every case.
func TestTransportKeepsBodies(t *testing.T) {
	for _, c := range []struct {
		name         string
		body         string
		fails        bool // at its end
		length       int64
		off          bool
		sent, closed int
	}{
		{name: "small", body: "12345", sent: 2, closed: 1},
		{name: "of a length", body: "12345", length: 5, sent: 2, closed: 1},
		{name: "as large as may be", body: "1234567890", sent: 2, closed: 1},
		{name: "empty", sent: 2, closed: 1},
		{name: "larger", body: "12345678901", sent: 1, closed: 1},
		{name: "much larger", body: strings.Repeat("1234567890", 1000), sent: 1, closed: 1},
		{name: "larger by its length", body: "12345678901", length: 11, sent: 1, closed: 1},
		{name: "small, and fails", body: "12345", fails: true, closed: 1},
		{name: "larger, and fails", body: "12345678901", fails: true, closed: 1},
		{name: "without a key", body: "12345", off: true, sent: 1, closed: 1},
	} {
		t.Run(c.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := &body{Reader: strings.NewReader(c.body)}
				if c.fails {
					b.Reader = io.MultiReader(b.Reader, iotest.ErrReader(errBroken))
				}
				w := wire{answers: []answer{{status: 503}, created}}
				r := request(t.Context(), "POST", b)
				r.ContentLength = c.length
				if c.off {
					r.Header["Idempotency-Key"] = nil
				}
				resp, err := idempotency.Transport(&w, idempotency.WithMaxBody(10)).RoundTrip(r)
				if err == nil {
					_ = resp.Body.Close()
				}
				if len(w.bodies) != c.sent || c.fails != errors.Is(err, errBroken) || int(b.closed.Load()) != c.closed {
					t.Errorf("sent %d times, %v, closed %d times", len(w.bodies), err, b.closed.Load())
				}
				for n, got := range w.bodies {
					if got != c.body || w.sent[n].ContentLength != c.length {
						t.Errorf("try %d: %d bytes of %d, length %d", n+1, len(got), len(c.body), w.sent[n].ContentLength)
					}
				}
			})
		})
	}
}

// A body that does not come ends with the context.
func TestTransportWhenTheBodyIsStuck(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := wire{answers: []answer{created}}
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := idempotency.Transport(&w).RoundTrip(request(ctx, "POST", newStuck()))
		if !errors.Is(err, context.DeadlineExceeded) || len(w.sent) != 0 {
			t.Errorf("%v, sent %d times", err, len(w.sent))
		}
	})
}

// A body whose length says that it is too large to be kept is sent as it comes.
func TestTransportStreamsALargeBody(t *testing.T) {
	large, writer := io.Pipe()
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		go func() { // not before the request is there
			_, _ = writer.Write([]byte("tea"))
			_ = writer.Close()
		}()
		_, _ = io.ReadAll(r.Body)
	}))
	c := client(t, server, idempotency.WithMaxBody(2))
	r := must(http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, large))
	r.ContentLength = 3
	late := time.AfterFunc(10*time.Second, func() { _ = writer.CloseWithError(errBroken) })
	defer late.Stop()
	if got, err := do(c, r); err != nil || got.status != http.StatusOK {
		t.Errorf("%+v, %v", got, err)
	}
}

// A GetBody that fails ends the tries.
func TestTransportWhenGetBodyFails(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := wire{answers: []answer{{status: 503}}}
		r := request(t.Context(), "POST", strings.NewReader("tea"))
		r.GetBody = func() (io.ReadCloser, error) { return nil, errBroken }
		if _, err := idempotency.Transport(&w).RoundTrip(r); !errors.Is(err, errBroken) || len(w.sent) != 1 {
			t.Errorf("%v, sent %d times", err, len(w.sent))
		}
	})
}

// A server that is not who it should be is not asked again, and no server is.
func TestTransportErrors(t *testing.T) {
	t.Parallel()
	server := httptest.NewUnstartedServer(http.NotFoundHandler())
	server.Config.ErrorLog = quiet
	server.StartTLS()
	t.Cleanup(server.Close)
	start := time.Now()
	stranger := &http.Client{Transport: idempotency.Transport(&http.Transport{}, idempotency.WithMaxTries(50))}
	if got, err := order(t.Context(), stranger, server.URL, nil); err == nil || time.Since(start) > 20*time.Second { // 50 tries take minutes
		t.Errorf("%+v, %v after %v", got, err, time.Since(start))
	}
	server.Close()
	ctx, cancel := context.WithCancel(t.Context())
	time.AfterFunc(100*time.Millisecond, cancel)
	if got, err := order(ctx, stranger, server.URL, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("%+v, %v", got, err)
	}
}

// A client's timeout counts for all tries.
func TestTransportWithAClientsTimeout(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answers: []answer{{status: 503, header: header("Retry-After", "2")}}}
		c := &http.Client{Transport: idempotency.Transport(w, idempotency.WithMaxTries(99)), Timeout: 10 * time.Second}
		start := time.Now()
		got, err := order(t.Context(), c, "http://shop.example/", nil)
		if took := time.Since(start); took > 10*time.Second || len(w.sent) < 2 || err == nil && got.status != http.StatusServiceUnavailable {
			t.Errorf("%+v, %v after %v and %d tries", got, err, took, len(w.sent))
		}
	})
}

// Without a key a POST is sent once, by net/http too, which sends what has an empty field again if
// a connection breaks that was used before.
func TestTransportWithoutAKey(t *testing.T) {
	var orders atomic.Int32
	server := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		if r.Method == http.MethodPost {
			orders.Add(1)
			panic(http.ErrAbortHandler)
		}
	}))
	c := client(t, server)
	_ = must(do(c, must(http.NewRequestWithContext(t.Context(), http.MethodGet, server.URL, nil))))
	r := must(http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, strings.NewReader("tea")))
	r.Header["Idempotency-Key"] = nil
	if got, err := do(c, r); err == nil || orders.Load() != 1 {
		t.Errorf("%+v, %v, sent %d times", got, err, orders.Load())
	}
}
