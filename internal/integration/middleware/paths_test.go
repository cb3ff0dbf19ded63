package middleware_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	chimiddleware "github.com/go-chi/chi/v5/middleware"
	echov4 "github.com/labstack/echo/v4"
	echov5 "github.com/labstack/echo/v5"

	"github.com/lockkeeper/lockkeeper/echomw"
	"github.com/lockkeeper/lockkeeper/echov5mw"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/nethttp"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode)
	leaktest.Main(m, redistest.Redialing)
}

// site is a router with a route whose parameter "id" is the key.
type site struct {
	name    string
	handler http.Handler
	// path has the value in the place of %s, and another value in that of %[2]s.
	path string
	// decodesPlus is set where the router takes a plus sign for a space, and so does its handler.
	decodesPlus bool
	// decodesTwice is set where the router decodes, for its handler as well, what net/http has decoded, but
	// only if the path is sent in its usual spelling: values with an escape in them are not the same then.
	decodesTwice bool
	// prefix is what the router puts before the value.
	prefix string
}

// say answers with a key.
func say(w io.Writer, key string, err error) { _, _ = fmt.Fprintf(w, "%q %v", key, err) }

func sites() []site {
	by := func(name string) http.HandlerFunc {
		key := nethttp.ByPathValue(name)
		return func(w http.ResponseWriter, r *http.Request) {
			k, err := key(r)
			say(w, k, err)
		}
	}
	mux := func(pattern, path string) site {
		m := http.NewServeMux()
		m.Handle(pattern, by("id"))
		return site{name: "ServeMux " + pattern, handler: m, path: path}
	}
	onChi := func(pattern, path string) site {
		r := chi.NewRouter()
		r.Get(pattern, by("id"))
		return site{name: "chi " + pattern, handler: r, path: path}
	}
	all := []site{
		mux("/carts/{id}", "/carts/%s"),
		mux("GET /carts/{id}", "/carts/%s"),
		mux("GET 127.0.0.1/carts/{id}", "/carts/%s"),
		mux("/of/{other}/carts/{id}/items", "/of/%[2]s/carts/%[1]s/items"),
		mux("/carts/{id}/of/{other}", "/carts/%s/of/%[2]s"),
		mux("/carts/{id}/", "/carts/%s/items/7"),
		mux("/carts/{id}/{$}", "/carts/%s/"),
		mux("/files/{id...}", "/files/%s"),
		mux("/a%20b/{id}", "/a%%20b/%s"),
		mux("/a%20b/{id}", "/%%61%%20b/%s"),
		onChi("/carts/{id}", "/carts/%s"),
		onChi("/carts/{id}/", "/carts/%s/"),
		onChi("/of/{other}/carts/{id}/items", "/of/%[2]s/carts/%[1]s/items"),
		onChi("/carts/{id}/of/{other}", "/carts/%s/of/%[2]s"),
		onChi("/carts/{id:.{1,}}", "/carts/%s"),
		onChi("/of/{other:[^{}]+}/carts/{id}", "/of/%[2]s/carts/%[1]s"),
		onChi("/v{id}.json", "/v%s.json"),
		onChi("/{other}-of-{id}", "/x-of-%s"),
		onChi("/carts/{id}/*", "/carts/%s/%[2]s"),
	}

	star := chi.NewRouter()
	star.Get("/files/*", by("*"))
	all = append(all, site{name: "chi /files/*", handler: star, path: "/files/%s"})

	mounted := chi.NewRouter()
	mounted.Route("/of/{other}", func(r chi.Router) {
		r.Mount("/carts", chi.NewRouter().Group(func(r chi.Router) { r.Get("/{id}", by("id")) }))
	})
	all = append(all, site{name: "chi, mounted", handler: mounted, path: "/of/%[2]s/carts/%[1]s"})

	outside := chi.NewRouter()
	outside.Route("/carts/{id}", func(r chi.Router) {
		r.Use(func(http.Handler) http.Handler { return by("id") })
		r.Get("/items/{other}", by("id"))
	})
	all = append(all, site{name: "chi, before the sub-router", handler: outside, path: "/carts/%s/items/%[2]s"})

	slashes := chi.NewRouter()
	slashes.Use(chimiddleware.StripSlashes)
	slashes.Get("/carts/{id}", by("id"))
	all = append(all, site{name: "chi, StripSlashes", handler: slashes, path: "/carts/%s/"})

	stripped := http.NewServeMux()
	inner := chi.NewRouter()
	inner.Get("/carts/{id}", by("id"))
	stripped.Handle("/chi/", http.StripPrefix("/chi", inner))
	innerMux := http.NewServeMux()
	innerMux.Handle("/carts/{id}", by("id"))
	stripped.Handle("/mux/", http.StripPrefix("/mux", innerMux))
	all = append(all, site{name: "chi, StripPrefix", handler: stripped, path: "/chi/carts/%s"},
		site{name: "ServeMux, StripPrefix", handler: stripped, path: "/mux/carts/%s"})

	for _, c := range []struct {
		name                   string
		raw, escaped, unescape bool
	}{
		{"default", false, false, true}, {"not unescaping", false, false, false},
		{"UseRawPath", true, false, true}, {"UseRawPath, not unescaping", true, false, false},
		{"UseEscapedPath", false, true, true}, {"UseEscapedPath, not unescaping", false, true, false},
	} {
		e := gin.New()
		e.UseRawPath, e.UseEscapedPath, e.UnescapePathValues = c.raw, c.escaped, c.unescape
		answer := func(ctx *gin.Context) {
			k, err := ginmw.ByParam("id")(ctx)
			say(ctx.Writer, k, err)
		}
		e.GET("/carts/:id", answer)
		e.GET("/of/:other/carts/:id/items", answer)
		e.GET("/files/*id", answer)
		plus := (c.raw || c.escaped) && c.unescape
		all = append(all,
			site{name: "gin, " + c.name, handler: e, path: "/carts/%s", decodesPlus: plus},
			site{name: "gin, two, " + c.name, handler: e, path: "/of/%[2]s/carts/%[1]s/items", decodesPlus: plus},
			site{name: "gin, catch-all, " + c.name, handler: e, path: "/files/%s", decodesPlus: plus, prefix: "/"})
	}

	e4 := echov4.New()
	answer4 := func(name string) echov4.HandlerFunc {
		return func(c echov4.Context) error {
			k, err := echomw.ByParam(name)(c)
			say(c.Response(), k, err)
			return nil
		}
	}
	e4.GET("/carts/:id", answer4("id"))
	e4.GET("/of/:other/carts/:id/items", answer4("id"))
	e4.GET("/files/*", answer4("*"))
	e4.Group("/group/:other").GET("/carts/:id", answer4("id"))
	all = append(all, site{name: "echo v4", handler: e4, path: "/carts/%s"},
		site{name: "echo v4, two", handler: e4, path: "/of/%[2]s/carts/%[1]s/items"},
		site{name: "echo v4, group", handler: e4, path: "/group/%[2]s/carts/%[1]s"},
		site{name: "echo v4, catch-all", handler: e4, path: "/files/%s"})

	for _, c := range []echov5.RouterConfig{
		{}, {UnescapePathParamValues: true}, {UseEscapedPathForMatching: true}, {UseEscapedPathForMatching: true, UnescapePathParamValues: true},
	} {
		e := echov5.NewWithConfig(echov5.Config{Router: echov5.NewRouter(c)})
		answer := func(name string) echov5.HandlerFunc {
			return func(c *echov5.Context) error {
				k, err := echov5mw.ByParam(name)(c)
				say(c.Response(), k, err)
				return nil
			}
		}
		e.GET("/carts/:id", answer("id"))
		e.GET("/of/:other/carts/:id/items", answer("id"))
		e.GET("/files/*", answer("*"))
		name, twice := fmt.Sprintf("echo v5 %+v", c), c.UnescapePathParamValues
		all = append(all, site{name: name, handler: e, path: "/carts/%s", decodesTwice: twice},
			site{name: name + ", two", handler: e, path: "/of/%[2]s/carts/%[1]s/items", decodesTwice: twice},
			site{name: name + ", catch-all", handler: e, path: "/files/%s", decodesTwice: twice})
	}
	return all
}

// served is a site with its server.
type served struct {
	site
	url    *url.URL
	client *http.Client
}

func serve(tb testing.TB) (all []served) {
	for _, s := range sites() {
		server := httptest.NewServer(s.handler)
		tb.Cleanup(server.Close)
		u, err := url.Parse(server.URL)
		if err != nil {
			tb.Fatal(err)
		}
		client := server.Client()
		client.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
		all = append(all, served{s, u, client})
	}
	return all
}

// answer returns what a path, as it is sent, is answered with; false if no handler has run.
func (s *served) answer(t *testing.T, path string) (string, bool) {
	t.Helper()
	req := &http.Request{Method: http.MethodGet, URL: &url.URL{Scheme: "http", Host: s.url.Host, Opaque: path}, Host: s.url.Host}
	resp, err := s.client.Do(req.WithContext(t.Context()))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close() //nolint:errcheck // it has been read
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(body), resp.StatusCode == http.StatusOK
}

// spell returns a spelling of a value: the bits of how choose the bytes that are escaped without
// need, and the case.
func spell(value, how string, plus bool) string {
	var b strings.Builder
	for i := range len(value) {
		c, bits := value[i], byte(0)
		if len(how) > 0 {
			bits = how[i%len(how)]
		}
		free := strings.IndexByte("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-._~!$&'()*,;=:@", c) >= 0 || c == '+' && plus
		switch {
		case free && bits&1 == 0:
			b.WriteByte(c)
		case bits&2 == 0:
			fmt.Fprintf(&b, "%%%02X", c)
		default:
			fmt.Fprintf(&b, "%%%02x", c)
		}
	}
	return b.String()
}

// check sends a value in a spelling, which must be the key. It reports whether a handler has run.
func (s *served) check(t *testing.T, value, how, other string) bool {
	t.Helper()
	if s.decodesTwice {
		value, other = strings.ReplaceAll(value, "%", "-"), strings.ReplaceAll(other, "%", "-")
	}
	id := spell(value, how, !s.decodesPlus)
	path := strings.NewReplacer("%s", id, "%[1]s", id, "%[2]s", spell(other, how, !s.decodesPlus), "%%", "%").Replace(s.path)
	got, ran := s.answer(t, path)
	if want := fmt.Sprintf("%q <nil>", s.prefix+value); ran && got != want {
		t.Errorf("%s: %s has the key %s, want %s", s.name, path, got, want)
	}
	return ran
}

// Every spelling of a value is one key, and another value is another key.
func TestPathValues(t *testing.T) {
	all := serve(t)
	for _, value := range []string{
		"42", "a-b", "a b", "a+b", "%", "%41", "%2541", "%25%34%31", "%zz", "4%3", "é", "\xff", "a/b", "a%2Fb", "a\x00b", "?#", "{id}", "*:id", "a.b",
	} {
		for _, how := range []string{"\x00", "\x01", "\x03\x00", "\x00\x01"} {
			for _, other := range []string{"x", "%41"} {
				for i := range all {
					if ran := all[i].check(t, value, how, other); !ran && value == "42" && how == "\x00" {
						t.Errorf("%s: no handler runs for %s", all[i].name, all[i].path)
					}
				}
			}
		}
	}
}

func FuzzPathValues(f *testing.F) {
	f.Add("%41", "\x01\x00", "x")
	f.Add("a%2Fb", "\x03", "%25")
	f.Add("4%32", "\x00\x01\x02\x03", "+")
	all := serve(f)
	f.Fuzz(func(t *testing.T, value, how, other string) {
		if value == "" || other == "" || len(value)+len(other) > 200 {
			t.Skip("not a segment")
		}
		for i := range all {
			all[i].check(t, value, how, other)
		}
	})
}
