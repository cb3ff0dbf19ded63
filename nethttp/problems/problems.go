// Package problems serves the explanations of refusals, so that the URIs of their problem types
// lead to pages of the application's own:
//
//	const types = "https://shop.example/problems/"
//
//	mux.Handle("GET /problems/", problems.Handler(types))
//	limit := ratelimit.New(limiter, key, policy.ProblemTypes(types))
//
// The texts come from https://github.com/lockkeeper/lockkeeper/blob/main/docs/problems.md, without
// its notes for operators. An application that wants other texts serves pages of its own.
package problems

import (
	"bytes"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

// Handler returns the handler of the pages behind the base of policy.ProblemTypes. With a base that
// ends in a slash, the last element of a request's path is the type, such as key-missing. Without a
// type, as in /problems/, the page has all types. With a base that ends in #, every request gets
// that page, which has a section for each type.
//
// Other frameworks serve it, too: gin.WrapH and echo.WrapHandler convert it. Register it in front
// of rate limits and authentication, so that a client that was refused can read why.
//
// GET and HEAD requests are answered with 200 in the form that the Accept field prefers: HTML,
// JSON, or else plain text. Caches may keep an answer for an hour. A type that does not exist is
// answered with 404, and another method with 405. An answer contains nothing of the request, and
// its Content-Security-Policy allows no script.
//
// Handler panics if policy.ProblemTypes does, if base has a query, and if base ends in neither a
// slash nor #.
func Handler(base string) http.Handler {
	policy.ProblemTypes(base) // panics if base is invalid
	end := base[len(base)-1]
	if strings.ContainsAny(base[:len(base)-1], "?#") || end != '/' && end != '#' {
		panic(fmt.Sprintf("problems: Handler: %q does not end in a path's slash or in #", base))
	}
	all := explanations(base)
	h := &handler{pages: map[string]page{"": newPage(all)}, single: end == '#'}
	for _, e := range all {
		h.pages[string(e.reason)] = newPage([]explanation{e})
	}
	return h
}

type handler struct {
	pages  map[string]page // by reason; the empty one has all types
	single bool            // every request is for the page with all types
}

func (h *handler) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	reason := ""
	if !h.single {
		reason = r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	}
	p, ok := h.pages[reason]
	if !ok {
		http.NotFound(w, r)
		return
	}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "Method Not Allowed", http.StatusMethodNotAllowed)
		return
	}
	f := p[preferred(r.Header.Values("Accept"))]
	header := w.Header()
	header.Add("Vary", "Accept")
	header.Set("Content-Type", f.contentType)
	header.Set("ETag", f.tag)
	header.Set("Cache-Control", "public, max-age=3600")
	header.Set("Content-Security-Policy", securityPolicy)
	header.Set("X-Content-Type-Options", "nosniff")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.body)) // also HEAD, and 304
}
