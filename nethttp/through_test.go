package nethttp_test

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
	"github.com/lockkeeper/lockkeeper/nethttp/exclusive"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// throughEach runs a test with each middleware before a handler, and with all of them, over HTTP/1.1
// and HTTP/2.
func throughEach(t *testing.T, handler http.HandlerFunc, test func(t *testing.T, server *httptest.Server)) {
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	limiter := must(tokenbucket.New(store, "limit", tokenbucket.PerMinute(1000)))
	orders := must(guard.New(store, "orders"))
	carts := must(lock.New(store, "carts"))
	reports := must(semaphore.New(store, "reports", 10))
	t.Cleanup(func() { _, _ = carts.Close(), reports.Close() })
	chain := []func(http.Handler) http.Handler{
		ratelimit.New(limiter, nethttp.Global()), idempotency.New(orders, nethttp.Unscoped()),
		exclusive.New(carts, nethttp.Global()), concurrency.New(reports, nethttp.Global()),
	}
	for i, name := range []string{"ratelimit", "idempotency", "exclusive", "concurrency", "all"} {
		behind := chain
		if i < len(chain) {
			behind = chain[i : i+1]
		}
		for _, version := range []string{"HTTP/1.1", "HTTP/2.0"} {
			t.Run(name+" "+version, func(t *testing.T) {
				server := httptest.NewUnstartedServer(wrap(handler, behind))
				server.EnableHTTP2 = version == "HTTP/2.0"
				server.StartTLS()
				defer server.Close()
				test(t, server)
			})
		}
	}
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// ownKey is an idempotency key of the test's own.
func ownKey(t *testing.T) string { return strconv.Quote(t.Name()) }

// post sends a request with an idempotency key of the test's own. The caller closes the answer's body.
func post(t *testing.T, server *httptest.Server, contentType string, body io.Reader) *http.Response {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, body)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", contentType)
	req.Header.Set("Idempotency-Key", ownKey(t))
	resp, err := server.Client().Do(req)
	if err != nil {
		t.Fatal(err)
	}
	return resp
}

func read(t *testing.T, resp *http.Response) string {
	t.Helper()
	body, err := io.ReadAll(resp.Body)
	_ = resp.Body.Close()
	if err != nil {
		t.Fatal(err)
	}
	return string(body)
}

func TestResponseControllerReachesTheConnection(t *testing.T) {
	throughEach(t, func(w http.ResponseWriter, _ *http.Request) {
		c := http.NewResponseController(w)
		for what, err := range map[string]error{
			"SetReadDeadline":  c.SetReadDeadline(time.Now().Add(time.Minute)),
			"SetWriteDeadline": c.SetWriteDeadline(time.Now().Add(time.Minute)),
			"Flush":            c.Flush(),
		} {
			if err != nil {
				_, _ = fmt.Fprintf(w, "%s: %v", what, err)
			}
		}
		if _, ok := w.(http.Flusher); !ok {
			_, _ = io.WriteString(w, "no http.Flusher")
		}
	}, func(t *testing.T, server *httptest.Server) {
		if body := read(t, post(t, server, "text/plain", nil)); body != "" {
			t.Error(body)
		}
	})
}

func TestADeadlineOfTheHandlerHolds(t *testing.T) {
	throughEach(t, func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(-time.Second))
		_, err := io.ReadAll(r.Body)
		_, _ = fmt.Fprint(w, err != nil || r.Header.Get("Idempotency-Key") == "")
	}, func(t *testing.T, server *httptest.Server) {
		if strings.Contains(t.Name(), "idempotency") || strings.Contains(t.Name(), "all") {
			t.Skip("the body has been read before the handler runs")
		}
		body, write := io.Pipe()
		defer write.Close() //nolint:errcheck // a pipe's never fails
		if got := read(t, post(t, server, "text/plain", body)); got != "true" {
			t.Errorf("the handler read from a client that sends nothing: %s", got)
		}
	})
}

// Server-sent events arrive while the handler runs.
func TestEventsArriveAsTheyAreWritten(t *testing.T) {
	seen := make(chan struct{})
	throughEach(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "text/event-stream")
		for i := range 3 {
			_, _ = fmt.Fprintf(w, "data: %d\n\n", i)
			_ = http.NewResponseController(w).Flush()
			<-seen
		}
	}, func(t *testing.T, server *httptest.Server) {
		resp := post(t, server, "text/plain", nil)
		defer resp.Body.Close() //nolint:errcheck // it has been read
		lines := bufio.NewReader(resp.Body)
		for i := range 3 {
			line, err := lines.ReadString('\n')
			_, _ = lines.ReadString('\n')
			seen <- struct{}{}
			if want := fmt.Sprintf("data: %d\n", i); line != want || err != nil {
				t.Fatalf("%q, %v", line, err)
			}
		}
	})
}

// An upgrade takes the connection over, as WebSocket libraries do, and both sides talk on it.
func TestAnUpgradedConnectionIsTheHandlers(t *testing.T) {
	throughEach(t, func(w http.ResponseWriter, _ *http.Request) {
		conn, rw, err := w.(http.Hijacker).Hijack()
		if err != nil {
			panic(err)
		}
		defer conn.Close() //nolint:errcheck // the test's client has what it wants
		_, _ = rw.WriteString("HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n")
		_ = rw.Flush()
		line, _ := rw.ReadString('\n')
		_, _ = rw.WriteString("you said " + line)
		_ = rw.Flush()
	}, func(t *testing.T, server *httptest.Server) {
		if server.EnableHTTP2 {
			t.Skip("HTTP/2 has no upgrade")
		}
		req := must(http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL, nil))
		for name, value := range map[string]string{"Connection": "Upgrade", "Upgrade": "echo", "Idempotency-Key": ownKey(t)} {
			req.Header.Set(name, value)
		}
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		conn, ok := resp.Body.(io.ReadWriteCloser)
		if !ok {
			t.Fatalf("status %d, want an upgrade", resp.StatusCode)
		}
		defer conn.Close() //nolint:errcheck // the connection is done with
		_, _ = io.WriteString(conn, "hello\n")
		if line, err := bufio.NewReader(conn).ReadString('\n'); line != "you said hello\n" {
			t.Errorf("%q, %v", line, err)
		}
	})
}

func TestTrailersAndEarlyHintsArrive(t *testing.T) {
	throughEach(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Link", "</style.css>; rel=preload")
		w.WriteHeader(http.StatusEarlyHints)
		w.Header().Set("Trailer", "X-Sum")
		_, _ = io.WriteString(w, "body")
		w.Header().Set("X-Sum", "4")
		w.Header().Set(http.TrailerPrefix+"X-Late", "yes")
		w.Header().Set("X-Too-Late", "yes")
	}, func(t *testing.T, server *httptest.Server) {
		hints := 0
		ctx := httptrace.WithClientTrace(t.Context(), &httptrace.ClientTrace{
			Got1xxResponse: func(int, textproto.MIMEHeader) error { hints++; return nil },
		})
		req := must(http.NewRequestWithContext(ctx, http.MethodPost, server.URL, nil))
		req.Header.Set("Idempotency-Key", ownKey(t))
		resp, err := server.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		body := read(t, resp)
		if hints != 1 || body != "body" || resp.Trailer.Get("X-Sum") != "4" || resp.Trailer.Get("X-Late") != "yes" {
			t.Errorf("%d hints, %q with %v", hints, body, resp.Trailer)
		}
		if resp.Header.Get("X-Too-Late") != "" {
			t.Errorf("what was set too late has been sent: %v", resp.Header)
		}
	})
}

// The server removes the files of a form, though it was a copy of its request that parsed it.
func TestFilesOfFormsAreRemoved(t *testing.T) {
	throughEach(t, func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(0); err != nil {
			panic(err)
		}
		file, err := r.MultipartForm.File["upload"][0].Open()
		if err != nil {
			panic(err)
		}
		defer file.Close() //nolint:errcheck // it was read from only
		_, _ = io.WriteString(w, file.(*os.File).Name())
	}, func(t *testing.T, server *httptest.Server) {
		var form bytes.Buffer
		writer := multipart.NewWriter(&form)
		part := must(writer.CreateFormFile("upload", "a.txt"))
		// The server keeps as much as 10 MiB in memory, whatever it is told, of fields; of files, nothing.
		_, _ = io.WriteString(part, strings.Repeat("x", 100_000))
		_ = writer.Close()
		name := read(t, post(t, server, writer.FormDataContentType(), &form))
		server.Close() // waits for the request to be over
		if _, err := os.Stat(name); !strings.Contains(name, "multipart-") || !os.IsNotExist(err) {
			t.Errorf("%q: %v", name, err)
		}
	})
}
