// Package console_test tests the console below the paths and in the frameworks that it may be mounted in.
package console_test

import (
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	echov4 "github.com/labstack/echo/v4"
	"github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp/console"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// Every link leads to a page, and every form to its action, wherever the console is mounted.
func TestMounts(t *testing.T) {
	t.Parallel()
	gin.SetMode(gin.ReleaseMode)
	for name, c := range map[string]struct {
		path  string // of the first request
		mount func(c *console.Console) http.Handler
	}{
		"the root": {"/", func(c *console.Console) http.Handler { return c }},
		"a path": {"/x", func(c *console.Console) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/x", http.StripPrefix("/x", c))
			mux.Handle("/x/", http.StripPrefix("/x", c))
			return mux
		}},
		"a path with a slash": {"/x/", func(c *console.Console) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/x/", http.StripPrefix("/x", c))
			return mux
		}},
		"a path that is redirected": {"/x/y", func(c *console.Console) http.Handler {
			mux := http.NewServeMux()
			mux.Handle("/x/y/", http.StripPrefix("/x/y", c))
			return mux
		}},
		"a proxy that strips": {"/ops/", func(c *console.Console) http.Handler {
			behind := httptest.NewServer(c)
			t.Cleanup(behind.Close)
			proxy := &httputil.ReverseProxy{Rewrite: func(r *httputil.ProxyRequest) { r.SetURL(must(url.Parse(behind.URL))) }}
			mux := http.NewServeMux()
			mux.Handle("/ops/", http.StripPrefix("/ops", proxy))
			return mux
		}},
		"gin": {"/ops/", func(c *console.Console) http.Handler {
			r := gin.New()
			r.Any("/ops/*path", gin.WrapH(http.StripPrefix("/ops", c)))
			return r
		}},
		"echo v4": {"/ops/", func(c *console.Console) http.Handler {
			e := echov4.New()
			e.Any("/ops/*", echov4.WrapHandler(http.StripPrefix("/ops", c)))
			return e
		}},
		"echo v5": {"/ops/", func(c *console.Console) http.Handler {
			e := echo.New()
			e.Any("/ops/*", echo.WrapHandler(http.StripPrefix("/ops", c)))
			return e
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := memstore.New()
			defer st.Close()
			const odd = "a/b%2f?c d" // as a mechanism may be named
			locker := must(lock.New(st, odd))
			lease := must(locker.Lock(t.Context(), "k"))
			limiter := must(tokenbucket.New(st, odd, tokenbucket.PerHour(1)))
			_ = must(limiter.Allow(t.Context(), "k"))
			shop := console.New(st, console.AllowAnyone())
			defer shop.Close()
			server := httptest.NewServer(c.mount(shop))
			defer server.Close()
			v := &visitor{t, server.URL + c.path, &http.Client{Jar: must(cookiejar.New(nil)), Timeout: time.Minute}}
			release := v.crawl()
			if release == "" {
				t.Fatal("no link to the release of the lock")
			}
			a := v.send(http.MethodPost, strings.Split(release, "?")[0], url.Values{
				"fence": {must(url.Parse(release)).Query().Get("fence")}, "why": {"it hangs"},
			})
			if a.status != http.StatusOK || !strings.Contains(a.body, "Done, and in the log.") {
				t.Errorf("release: %d %s\n%s", a.status, a.url, a.body)
			}
			select {
			case <-lease.Context().Done():
			case <-time.After(time.Minute):
				t.Error("the lock is held")
			}
			mount, rest, _ := strings.Cut(release, "/locks/")
			escaped, _, _ := strings.Cut(rest, "/")
			page := v.send(http.MethodPost, mount+"/limits/"+escaped, url.Values{"key": {"k"}})
			form := page.links(t, `action="([^"]*/reset)"`)
			if len(form) != 1 {
				t.Fatalf("%d %s: no form to reset the limit\n%s", page.status, page.url, page.body)
			}
			if a := v.send(http.MethodPost, form[0], url.Values{"key": {"k"}, "why": {"it may"}}); a.status != http.StatusOK || !must(limiter.Peek(t.Context(), "k")).Allowed {
				t.Errorf("reset: %d\n%s", a.status, a.body)
			}
		})
	}
}

type visitor struct {
	t    *testing.T
	root string
	http *http.Client
}

type answer struct {
	status int
	body   string
	url    *url.URL
}

func (v *visitor) send(method, to string, form url.Values) answer {
	v.t.Helper()
	req := must(http.NewRequestWithContext(v.t.Context(), method, to, strings.NewReader(form.Encode())))
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	resp, err := v.http.Do(req)
	if err != nil {
		v.t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	return answer{resp.StatusCode, string(must(io.ReadAll(resp.Body))), resp.Request.URL}
}

// links returns the addresses in a page, as a browser resolves them.
func (a answer) links(t *testing.T, pattern string) (links []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(pattern).FindAllStringSubmatch(a.body, -1) {
		links = append(links, a.resolve(t, strings.ReplaceAll(m[1], "&amp;", "&")))
	}
	return links
}

func (a answer) resolve(t *testing.T, link string) string {
	t.Helper()
	to, err := a.url.Parse(link)
	if err != nil {
		t.Fatal(err)
	}
	return to.String()
}

// crawl gets every page that is linked from the first one, and returns the link to a release.
func (v *visitor) crawl() (release string) {
	v.t.Helper()
	found, seen := []string{v.root}, map[string]bool{}
	for len(found) > 0 {
		to := found[0]
		found = found[1:]
		if seen[to] {
			continue
		}
		seen[to] = true
		a := v.send(http.MethodGet, to, nil)
		if a.status != http.StatusOK {
			v.t.Errorf("GET %s: %d", to, a.status)
		}
		if strings.Contains(to, "/release?") {
			release = to
		}
		found = append(found, a.links(v.t, `(?:href|src)="([^"#]+)"`)...)
	}
	if len(seen) < 15 {
		v.t.Errorf("only %d pages", len(seen))
	}
	return release
}
