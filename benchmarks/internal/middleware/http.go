package middleware

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"

	"github.com/go-chi/httprate"
	ulule "github.com/ulule/limiter/v3/drivers/middleware/stdlib"

	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// response is a reusable ResponseWriter that keeps only its header.
type response struct{ header http.Header }

func (w *response) Header() http.Header         { return w.header }
func (w *response) WriteHeader(int)             {}
func (w *response) Write(p []byte) (int, error) { return len(p), nil }

// body is a reusable request body.
type body struct{ strings.Reader }

func (*body) Close() error { return nil }

// httpSite sends the same request repeatedly, with a new key each time for fresh.
func httpSite(h http.Handler, runs *int, r requests, end func()) (site, error) {
	w := &response{make(http.Header)}
	req := httptest.NewRequest(http.MethodPost, "/orders", nil)
	req.Header.Set(clientField, client)
	req.Header.Set("Content-Type", "application/json")
	key := []string{""}
	if r.keyed() {
		req.Header[keyField] = key
		req.ContentLength = int64(len(requestBody))
	}
	var content body
	return site{
		call: func(i int) {
			clear(w.header)
			if r.keyed() {
				key[0] = keyOf(r, i)
				content.Reset(requestBody)
				req.Body = &content
			}
			h.ServeHTTP(w, req)
		},
		runs:    func() int { return *runs },
		headers: func() int { return len(w.header) },
		end:     end,
	}, nil
}

// plain returns the handler and the count of its runs.
func plain() (http.Handler, *int) {
	runs := new(int)
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		*runs++
		_, _ = io.WriteString(w, answer)
	}), runs
}

func nothing() {}

func bareHTTP(r requests) (site, error) {
	h, runs := plain()
	return httpSite(h, runs, r, nothing)
}

func lockkeeperHTTP(r requests) (site, error) {
	limiter, end, err := newLimiter(r)
	if err != nil {
		return site{}, err
	}
	h, runs := plain()
	return httpSite(ratelimit.New(limiter, nethttp.ByHeader(clientField))(h), runs, r, end)
}

func httprateHTTP(r requests) (site, error) {
	h, runs := plain()
	limit := httprate.LimitBy(limit, period, func(r *http.Request) (string, error) {
		return r.Header.Get(clientField), nil
	})
	return httpSite(limit(h), runs, r, nothing)
}

func ululeHTTP(r requests) (site, error) {
	h, runs := plain()
	m := ulule.NewMiddleware(newUlule(), ulule.WithKeyGetter(func(r *http.Request) string { return r.Header.Get(clientField) }))
	return httpSite(m.Handler(h), runs, r, nothing)
}

func onceHTTP(r requests) (site, error) {
	g, end, err := newGuard()
	if err != nil {
		return site{}, err
	}
	h, runs := plain()
	return httpSite(idempotency.New(g, nethttp.ScopeBy(nethttp.ByHeader(clientField)))(h), runs, r, end)
}
