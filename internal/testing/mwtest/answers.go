package mwtest

import (
	"compress/gzip"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
)

// answerRows are about replays: a replay is identical to the first answer.
var answerRows = []row{
	{"a status of 0 is not recorded, and is answered as without a guard", func(t *rig) {
		runs := 0
		handler := func(w http.ResponseWriter, _ *http.Request) {
			runs++
			w.WriteHeader(0)
			_, _ = io.WriteString(w, "body")
		}
		bare := serve(t, handler).send("1", "")
		runs = 0
		s := serve(t, handler, Idempotency{Guard: newGuard(t, newStore(t))})
		s.send("1", "", keyHeader, "k").is(bare.status, bare.body)
		again := s.send("1", "", keyHeader, "k")
		if bare.status == http.StatusInternalServerError { // the handler panicked
			again.denies("outcome-unknown")
		} else {
			again.is(bare.status, bare.body).has("Idempotency-Replayed", "true")
		}
		if runs != 1 {
			t.Errorf("the handler ran %d times", runs)
		}
	}},
	{"a suppressed Content-Type stays suppressed", replays("", func(w http.ResponseWriter, _ *http.Request) {
		w.Header()["Content-Type"] = nil
		_, _ = io.WriteString(w, "<html>")
	})},
	{"header fields that the handler deletes stay deleted", replays("", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Del("X-Outer")
		w.Header().Del("Set-Cookie")
		w.Header()["Date"] = nil
		_, _ = io.WriteString(w, "body")
	})},
	{"announced trailers are replayed", replays("X-Sum: 4", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "body")
		w.Header().Set("X-Sum", "4")
		w.Header().Set("X-Too-Late", "yes")
	})},
	{"unannounced trailers are replayed", replays("X-Sum: 4", func(w http.ResponseWriter, _ *http.Request) {
		_, _ = io.WriteString(w, strings.Repeat("body", 2000)) // net/http sends none after less
		w.Header().Set(http.TrailerPrefix+"X-Sum", "4")
	})},
	{"trailers without a body are replayed", replays("X-Sum: 4", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Trailer", "X-Sum")
		w.WriteHeader(http.StatusCreated)
		w.Header().Set("X-Sum", "4")
		if c, ok := w.(interface{ WriteHeaderNow() }); ok {
			c.WriteHeaderNow() // gin sends no header before
		}
	})},
	{"a Content-Length is replayed", replays("", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "5000")
		_, _ = io.WriteString(w, strings.Repeat("12345", 1000))
	})},
	{"a Content-Length that the body exceeds is replayed", replays("", func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Length", "4")
		_, _ = io.WriteString(w, "body")
		_, _ = io.WriteString(w, ", and more")
	})},
}

// replays tests that an answer is the same without a guard, with one, and as a replay: over
// HTTP/1.1 and HTTP/2, behind middleware that sets header fields, and behind one that compresses.
// If trailer is not empty, the answer must have it.
func replays(trailer string, handler http.HandlerFunc) func(*rig) {
	return func(t *rig) {
		for _, version := range []string{"HTTP/1.1", "HTTP/2.0"} {
			for name, outer := range map[string]func(http.Handler) http.Handler{"plain": outerFields, "gzip": compressing} {
				t.Run(name+" "+version, func(t *rig) {
					see := func(middleware ...Middleware) func() string {
						server := httptest.NewUnstartedServer(outer(t.framework.Serve(handler, middleware...)))
						server.EnableHTTP2 = version == "HTTP/2.0"
						server.StartTLS()
						t.Cleanup(server.Close)
						return func() string { return client{t.Context(), server}.everything(t) }
					}
					want := see()()
					if trailer != "" && name == "plain" && !strings.Contains(want, trailer) {
						t.Fatalf("without a guard: %s", want)
					}
					guarded := see(Idempotency{Guard: newGuard(t, newStore(t))})
					for _, which := range []string{"first", "replay"} {
						got, replayed := strings.CutPrefix(guarded(), "replayed ")
						if replayed != (which == "replay") {
							t.Errorf("%s: replayed is %v", which, replayed)
						}
						if got != want {
							t.Errorf("%s is\n%s\nwithout a guard it is\n%s", which, got, want)
						}
					}
				})
			}
		}
	}
}

// everything returns the full answer without the date.
func (c client) everything(t *rig) string {
	t.Helper()
	resp, err := c.post(t, nil, keyHeader, "k", "Accept-Encoding", "gzip")
	if err != nil {
		return "no answer"
	}
	defer resp.Body.Close() //nolint:errcheck // it has been read
	var r io.Reader = resp.Body
	if resp.Header.Get("Content-Encoding") == "gzip" {
		if r, err = gzip.NewReader(resp.Body); err != nil {
			return err.Error()
		}
	}
	body, err := io.ReadAll(r)
	_, _ = io.Copy(io.Discard, resp.Body) // trailers come after it
	if resp.Header.Get("Date") != "" {
		resp.Header.Set("Date", "today")
	}
	var b strings.Builder
	if resp.Header.Get("Idempotency-Replayed") == "true" {
		resp.Header.Del("Idempotency-Replayed")
		b.WriteString("replayed ")
	}
	_, _ = fmt.Fprintf(&b, "%d, length %d, %v, %q, %v\n", resp.StatusCode, resp.ContentLength, resp.TransferEncoding, body, err)
	_ = resp.Header.Write(&b)
	b.WriteString("trailer\n")
	_ = resp.Trailer.Write(&b)
	return b.String()
}

// outerFields is middleware that sets header fields before the handler runs.
func outerFields(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("X-Outer", "outer")
		w.Header().Set("Set-Cookie", "outer=1")
		next.ServeHTTP(w, r)
	})
}

// compressing is middleware that compresses, as simply as it can be done.
func compressing(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g := gzip.NewWriter(w)
		defer g.Close() //nolint:errcheck // the client would see
		next.ServeHTTP(&compressor{ResponseWriter: w, gzip: g}, r)
	})
}

type compressor struct {
	http.ResponseWriter
	gzip  *gzip.Writer
	begun bool
}

func (c *compressor) WriteHeader(status int) {
	if !c.begun {
		c.begun = true
		c.Header().Del("Content-Length")
		c.Header().Set("Content-Encoding", "gzip")
	}
	c.ResponseWriter.WriteHeader(status)
}

func (c *compressor) Write(p []byte) (int, error) {
	if !c.begun {
		c.WriteHeader(http.StatusOK)
	}
	return c.gzip.Write(p)
}

func (c *compressor) Unwrap() http.ResponseWriter { return c.ResponseWriter }
