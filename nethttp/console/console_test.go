package console_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"regexp"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/nethttp/console"
)

// shop is a process with a mechanism of each kind, and with something in each of them.
type shop struct {
	store   store.Store
	locker  *lock.Locker
	permits *semaphore.Semaphore
	limiter *tokenbucket.Limiter
	orders  *guard.Guard
	timers  *delay.Queue

	lease  *lock.Lease
	permit *semaphore.Permit
}

// hostile is a text for names of people and keys. That of mechanisms is printable ASCII.
const (
	hostile     = "<script>alert(1)</script>\"'&\u202e\x00\u2028😀"
	hostileName = `a/b?<script>&"'%2e~;..`
)

// open makes a shop whose mechanisms have a name, on a store.
func open(t testing.TB, st store.Store, name, key string) *shop {
	t.Helper()
	s := &shop{store: st}
	var err error
	quiet := slog.New(slog.DiscardHandler)
	s.locker, err = lock.New(st, name, lock.WithHolder(key), lock.WithLogger(quiet))
	must(t, err)
	s.permits, err = semaphore.New(st, name, 3, semaphore.WithHolder(key))
	must(t, err)
	s.limiter, err = tokenbucket.New(st, name, tokenbucket.PerMinute(2))
	must(t, err)
	s.orders, err = guard.New(st, name, guard.WithHolder(key))
	must(t, err)
	s.timers, err = delay.New(st, name, delay.WithHolder(key))
	must(t, err)
	t.Cleanup(func() { runtime.KeepAlive(s) }) // a mechanism that is dropped leaves the pages
	return s
}

// fill has a lock and a permit held, a key at its limit, an unknown outcome, and two tasks.
func (s *shop) fill(t testing.TB, key string) {
	t.Helper()
	ctx := t.Context()
	var err error
	s.lease, err = s.locker.Lock(ctx, key)
	must(t, err)
	s.permit, err = s.permits.Acquire(ctx, key)
	must(t, err)
	for range 3 {
		_, err = s.limiter.Allow(ctx, key)
		must(t, err)
	}
	s.unknown(t, key)
	_, err = s.timers.Put(ctx, key, []byte("x"), time.Hour)
	must(t, err)
	s.bury(t, key+"-buried")
}

// unknown leaves an operation of unknown outcome, and returns its ID.
func (s *shop) unknown(t testing.TB, key string) string {
	t.Helper()
	a, _, err := s.orders.Begin(t.Context(), guard.Operation{Scope: "customer", Key: key})
	must(t, err)
	must(t, a.CompleteUnknown(t.Context()))
	return a.OperationID()
}

func (s *shop) bury(t testing.TB, key string) {
	t.Helper()
	_, err := s.timers.Put(t.Context(), key, nil, 0)
	must(t, err)
	task, err := s.timers.Take(t.Context())
	must(t, err)
	must(t, task.Bury(t.Context(), "no such order "+key))
}

// visitor is a client of a console.
type visitor struct {
	t      testing.TB
	root   string   // with a slash at its end
	header []string // of every request
	http   *http.Client
}

// serve starts a server with a console below /ops, and returns a visitor.
func serve(t testing.TB, st store.Store, opts ...console.Option) *visitor {
	t.Helper()
	c := console.New(st, append([]console.Option{console.WithLogger(slog.New(slog.DiscardHandler))}, opts...)...)
	mux := http.NewServeMux()
	mux.Handle("/ops/", http.StripPrefix("/ops", c))
	server := httptest.NewServer(mux)
	t.Cleanup(func() {
		server.Close()
		_ = c.Close() // the store may be down
	})
	return visit(t, server.URL+"/ops/")
}

func visit(t testing.TB, root string) *visitor {
	jar, err := cookiejar.New(nil)
	must(t, err)
	return &visitor{t: t, root: root, http: &http.Client{Jar: jar, Timeout: 30 * time.Second}}
}

type answer struct {
	status int
	body   string
	header http.Header
	url    *url.URL // after redirects
}

func (v *visitor) send(method, path string, form url.Values, header ...string) answer {
	v.t.Helper()
	var body io.Reader
	if form != nil {
		body = strings.NewReader(form.Encode())
	}
	req, err := http.NewRequestWithContext(context.Background(), method, v.root+path, body)
	must(v.t, err)
	if form != nil {
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	}
	header = append(v.header, header...)
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	resp, err := v.http.Do(req)
	must(v.t, err)
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	must(v.t, err)
	return answer{resp.StatusCode, string(text), resp.Header, resp.Request.URL}
}

func (v *visitor) get(path string) answer { v.t.Helper(); return v.send(http.MethodGet, path, nil) }

// page gets a page that must be there.
func (v *visitor) page(path string) string {
	v.t.Helper()
	a := v.get(path)
	if a.status != http.StatusOK {
		v.t.Fatalf("GET %s: %d\n%s", path, a.status, a.body)
	}
	return a.body
}

// json gets a page as JSON.
func (v *visitor) json(path string, into any) {
	v.t.Helper()
	separator := "?"
	if strings.Contains(path, "?") {
		separator = "&"
	}
	if err := json.Unmarshal([]byte(v.page(path+separator+"format=json")), into); err != nil {
		v.t.Fatalf("GET %s: %v", path, err)
	}
}

// links returns the links of a page, as a browser resolves them, without those to other sites.
func (a answer) links(t testing.TB) (links []string) {
	t.Helper()
	for _, m := range regexp.MustCompile(`(?:href|action|src)="([^"#]*)"`).FindAllStringSubmatch(a.body, -1) {
		to, err := a.url.Parse(strings.ReplaceAll(m[1], "&amp;", "&"))
		must(t, err)
		links = append(links, to.String())
	}
	return links
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The number in the navigation is that of the content of Now, on its page and in what replaces that.
func TestNumberOfWhatIsWrong(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	defer st.Close()
	open(t, st, "shop", "key").fill(t, "key")
	v := serve(t, st, console.AllowAnyone())
	part := func(expression, page string) string {
		found := regexp.MustCompile(expression).FindStringSubmatch(page)
		if found == nil {
			t.Fatalf("no %s in\n%s", expression, page)
		}
		return found[1]
	}
	testpace.Eventually(t, 20*time.Second, "what waits for a person", func() bool {
		page, fragment := v.page(""), v.get("?fragment=1")
		number := part(`<span id="wrong">(\d+)</span>`, page)
		for text, number := range map[string]string{page: number, fragment.body: fragment.header.Get("Lockkeeper-Wrong")} {
			told := part(`<p class="sentence">(\d* ?)[^<]*</p>`, text)
			if want := strings.TrimSpace(told); want != number && (want != "" || number != "0") {
				t.Errorf("%s wrong beside %s", number, part(`(<p class="sentence">.*</p>)`, text))
			}
		}
		if hidden := strings.Contains(page, `<span class="wrong" hidden>`); hidden != (number == "0") {
			t.Errorf("%s wrong are hidden: %t", number, hidden)
		}
		return number != "0"
	})
}

// Every page of every kind of mechanism is there, by links from the first one alone, as a page and as
// JSON; also with hostile names, keys and holders.
func TestEveryPageIsLinked(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]console.Option{
		"keys hidden": {console.AllowAnyone()}, "keys shown": {console.AllowAnyone(), console.ShowKeys()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := memstore.New()
			defer st.Close()
			open(t, st, hostileName, hostile).fill(t, hostile)
			v := serve(t, st, opts...)
			seen := map[string]bool{}
			found := []string{v.root}
			for len(found) > 0 {
				at := found[0]
				found = found[1:]
				path, ok := strings.CutPrefix(at, v.root)
				if seen[at] || !ok {
					if !ok {
						t.Errorf("a link leads away: %s", at)
					}
					continue
				}
				seen[at] = true
				if strings.Contains(path, "/-/") { // takes forms alone
					continue
				}
				a := v.get(path)
				if a.status != http.StatusOK {
					t.Errorf("GET %s: %d", path, a.status)
				}
				if strings.Contains(a.body, "<script>alert") || strings.Contains(a.body, "\x00") || strings.Contains(a.body, "ZgotmplZ") {
					t.Errorf("%s: not escaped", path)
				}
				if name == "keys hidden" && strings.Contains(a.body, "alert(1)") && !strings.Contains(path, "processes") {
					for _, line := range strings.Split(a.body, "\n") {
						if strings.Contains(line, "alert(1)") && strings.Contains(line, "-buried") {
							t.Logf("%s: %s", path, line) // a reason is a text of the application
						}
					}
				}
				found = append(found, a.links(t)...)
				if strings.HasPrefix(a.header.Get("Content-Type"), "text/html") {
					var into any
					v.json(path, &into)
				}
			}
			for _, want := range []string{
				"", "monitor", "locks", "permits", "limits", "operations", "tasks", "processes", "log", "console.css", "console.js",
			} {
				if !seen[v.root+want] {
					t.Errorf("%q is not linked", want)
				}
			}
			if len(seen) < 30 {
				t.Errorf("%d pages: %v", len(seen), seen)
			}
			t.Log(len(seen))
		})
	}
}

var errNo = errors.New("no")

func ExampleNew() {
	st := memstore.New()
	defer st.Close()
	c := console.New(st, console.Authorize(func(r *http.Request) (console.Operator, error) {
		user, password, _ := r.BasicAuth() // or a session of yours
		if user != "ada" || password != "secret" {
			return console.Operator{}, errNo
		}
		return console.Operator{Name: user, May: console.Act}, nil
	}))
	defer c.Close()
	http.Handle("/lockkeeper/", http.StripPrefix("/lockkeeper", c))
	fmt.Println("mounted")
	// Output: mounted
}

func text(fence int64) string { return strconv.FormatInt(fence, 10) }
