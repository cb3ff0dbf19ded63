package console_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/nethttp/console"
)

func TestNewNeedsAuthorization(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	defer st.Close()
	for name, f := range map[string]func(){
		"no option":     func() { console.New(st) },
		"nil function":  func() { console.New(st, console.Authorize(nil)) },
		"nil store":     func() { console.New(nil, console.AllowAnyone()) },
		"nil rules":     func() { console.New(st, console.AllowAnyone(), console.Rules(nil)) },
		"only ReadOnly": func() { console.New(st, console.ReadOnly()) },
	} {
		t.Run(name, func(t *testing.T) {
			defer func() {
				if recover() == nil {
					t.Error("New does not panic")
				}
			}()
			f()
		})
	}
}

// as returns an option by which a header says who the operator is.
func as() console.Option {
	return console.Authorize(func(r *http.Request) (console.Operator, error) {
		switch r.Header.Get("Who") {
		case "ada":
			return console.Operator{Name: "ada", May: console.Act}, nil
		case "bob":
			return console.Operator{Name: "bob", May: console.View}, nil
		case "nameless":
			return console.Operator{May: console.Act}, nil
		case "powerless":
			return console.Operator{Name: "eve"}, nil
		case "beyond":
			return console.Operator{Name: "eve", May: console.Act + 1}, nil
		}
		return console.Operator{}, errors.New("the session of secret-customer has ended")
	})
}

// deeds are all actions of a shop, as forms that work.
func (s *shop) deeds(v *visitor, key string) map[string]url.Values {
	v.t.Helper()
	id := presence.KeyHash(key)
	name := "shop"
	operation := s.unknown(v.t, key+v.t.Name())
	var op struct {
		Operation struct{ Version string } `json:"operation"`
	}
	v.json("operations/"+name+"/"+operation, &op)
	task := func(key string) string {
		var one struct{ ID string }
		v.json("tasks/"+name+"/"+presence.KeyHash(key), &one)
		return one.ID
	}
	why := "because of a test"
	return map[string]url.Values{
		"locks/" + name + "/" + id + "/release":                             {"fence": {text(s.lease.Fence().Number)}, "why": {why}},
		"permits/" + name + "/" + id + "/release":                           {"fence": {text(s.permit.Fence().Number)}, "why": {why}},
		"limits/" + name + "/-/reset":                                       {"key": {key}, "why": {why}},
		"limits/" + name + "/-/hold":                                        {"key": {key}, "hold": {"10m"}, "why": {why}},
		"operations/" + name + "/" + operation + "/resolve":                 {"version": {op.Operation.Version}, "outcome": {"never happened"}, "why": {why}},
		"tasks/" + name + "/" + id + "/cancel":                              {"version": {task(key)}, "why": {why}},
		"tasks/" + name + "/" + presence.KeyHash(key+"-buried") + "/revive": {"version": {task(key + "-buried")}, "why": {why}},
	}
}

// Without the right to act there is no action in any page, and none by its address.
func TestWithoutTheRightToAct(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		opts []console.Option
		who  string
	}{
		"view":                  {[]console.Option{as()}, "bob"},
		"act without a name":    {[]console.Option{as()}, "nameless"},
		"read only":             {[]console.Option{as(), console.ReadOnly()}, "ada"},
		"anyone, but read only": {[]console.Option{console.AllowAnyone(), console.ReadOnly()}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			st := memstore.New()
			defer st.Close()
			s := open(t, st, "shop", "ada")
			s.fill(t, "k")
			var log bytes.Buffer
			v := serve(t, st, append(c.opts, console.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))...)
			v.header = []string{"Who", c.who}
			for _, path := range []string{
				"", "monitor", "locks/shop", "locks/shop/" + presence.KeyHash("k"), "permits/shop", "permits/shop/" + presence.KeyHash("k"),
				"limits/shop", "operations/shop", "tasks/shop", "tasks/shop/" + presence.KeyHash("k"), "processes", "log",
			} {
				page := v.page(path)
				for _, deed := range []string{"/release", "/resolve", "/cancel", "/revive", "/hold", "/reset", ">Release", ">Resolve", ">Cancel", ">Revive"} {
					if strings.Contains(page, deed) {
						t.Errorf("%s has %s", path, deed)
					}
				}
			}
			if page := v.send(http.MethodPost, "limits/shop", url.Values{"key": {"k"}}); page.status != http.StatusOK || strings.Contains(page.body, "/hold") {
				t.Errorf("a limit that is looked up: %d\n%s", page.status, page.body)
			}
			for path, form := range s.deeds(v, "k") {
				for _, query := range []string{"", "?format=json", "?_method=POST"} {
					if a := v.send(http.MethodPost, path+query, form); a.status != http.StatusForbidden {
						t.Errorf("POST %s%s: %d", path, query, a.status)
					}
				}
				if a := v.send(http.MethodGet, path+"?"+form.Encode(), nil, "X-HTTP-Method-Override", "POST"); a.status != http.StatusForbidden && a.status != http.StatusNotFound {
					t.Errorf("GET %s: %d", path, a.status)
				}
			}
			s.untouched(t, "k")
			if !strings.Contains(log.String(), "an action of an operator is refused") {
				t.Errorf("refused actions are not logged: %s", log.String())
			}
		})
	}
}

// untouched checks that what fill has made is there.
func (s *shop) untouched(t *testing.T, key string) {
	t.Helper()
	if state, err := s.locker.Inspect(t.Context(), key); err != nil || len(state.Holders) != 1 {
		t.Errorf("the lock: %+v, %v", state, err)
	}
	if state, err := s.permits.Inspect(t.Context(), key); err != nil || len(state.Holders) != 1 {
		t.Errorf("the permit: %+v, %v", state, err)
	}
	if d, err := s.limiter.Peek(t.Context(), key); err != nil || d.Allowed || d.Held != 0 {
		t.Errorf("the limit: %+v, %v", d, err)
	}
	if state, err := s.timers.Inspect(t.Context(), key); err != nil || state.State != "waiting" {
		t.Errorf("the task: %+v, %v", state, err)
	}
	if state, err := s.timers.Inspect(t.Context(), key+"-buried"); err != nil || state.State != "buried" {
		t.Errorf("the buried task: %+v, %v", state, err)
	}
}

// A request without a known sender gets nothing: no page, no file, no text of the error.
func TestUnauthorizedRequests(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	defer st.Close()
	s := open(t, st, "shop", "ada")
	s.fill(t, "k")
	v := serve(t, st, as())
	v.header = []string{"Who", "ada"}
	deeds := s.deeds(v, "k")
	for _, who := range []string{"", "powerless", "beyond"} {
		v.header = []string{"Who", who}
		for _, path := range []string{"", "monitor", "monitor?fragment=1", "locks/shop", "log?format=json", "nothing", "console.js"} {
			a := v.get(path)
			if a.status != http.StatusForbidden || strings.Contains(a.body, "secret-customer") || strings.Contains(a.body, "shop") {
				t.Errorf("%q: GET %s: %d\n%s", who, path, a.status, a.body)
			}
		}
		for path, form := range deeds {
			if a := v.send(http.MethodPost, path, form); a.status != http.StatusForbidden {
				t.Errorf("%q: POST %s: %d", who, path, a.status)
			}
		}
	}
	s.untouched(t, "k")
}

// A form of another site is refused, also in the browser of an operator who may act.
func TestFormsOfOtherSites(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	defer st.Close()
	s := open(t, st, "shop", "ada")
	s.fill(t, "k")
	v := serve(t, st, console.AllowAnyone())
	for path, form := range s.deeds(v, "k") {
		for _, header := range [][]string{
			{"Sec-Fetch-Site", "cross-site"}, {"Sec-Fetch-Site", "same-site"}, {"Origin", "https://elsewhere.example"}, {"Origin", "null"},
		} {
			if a := v.send(http.MethodPost, path, form, header...); a.status != http.StatusForbidden {
				t.Errorf("POST %s from %v: %d", path, header, a.status)
			}
		}
	}
	s.untouched(t, "k")
	if a := v.send(http.MethodPost, "limits/shop/-/reset", url.Values{"key": {"k"}, "why": {"it may"}}, "Sec-Fetch-Site", "same-origin"); a.status != http.StatusOK {
		t.Errorf("from the same origin: %d", a.status)
	}
}

func TestBadInput(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	defer st.Close()
	s := open(t, st, "shop", "ada")
	s.fill(t, "k")
	v := serve(t, st, console.AllowAnyone())
	id := presence.KeyHash("k")
	for path, want := range map[string]int{
		"nothing": 404, "monitor/lock": 404, "monitor/lock/none": 404, "monitor/none/shop": 404, "locks/%2e%2e": 404, "locks/shop/none": 404,
		"locks/shop/" + id + "/release": 400, "locks/shop/" + id + "/release?fence=x": 400, "locks/shop/" + id + "/release?fence=-1": 400,
		"locks/shop/" + id + "/release?fence=01": 400, "locks/shop/" + id + "/release?fence=99999999999999999999": 400,
		"locks/shop/" + id + "/release?fence=7": 404, "locks/shop/" + id + "/none": 404, "locks/shop/" + id + "/revive": 404,
		"locks/shop/" + id + "/release/more": 404, "limits/shop/" + id: 404, "limits/shop/-/hold": 404, "operations/shop/none": 404,
		"operations/shop/" + strings.Repeat("a", 44): 404, "tasks/shop/none": 404, "?format=xml": 400, "monitor?page=0": 400,
		"monitor?page=x": 400, "monitor?page=99999": 200, "locks/none": 200, "tasks/none": 200, "limits/none": 200, "operations/none": 200,
		"locks/~zz": 404, "locks/a~41": 404, "log/more": 404, "console.css/more": 404,
	} {
		a := v.get(path)
		if a.status != want || strings.Contains(a.body, "goroutine") || strings.Contains(a.body, "template:") {
			t.Errorf("GET %s: %d, want %d\n%s", path, a.status, want, a.body)
		}
		separator := "?"
		if strings.Contains(path, "?") {
			separator = "&"
		}
		if a := v.get(path + separator + "format=json"); want >= 400 && path != "?format=xml" && (a.status != want || !strings.HasPrefix(a.body, "{")) {
			t.Errorf("GET %s as JSON: %d %s", path, a.status, a.body)
		}
	}
	release := "locks/shop/" + id + "/release"
	fence := text(s.lease.Fence().Number)
	for name, c := range map[string]struct {
		path, body, kind string
		want             int
	}{
		"no reason":           {release, "fence=" + fence, "", 400},
		"a short reason":      {release, "fence=" + fence + "&why=+a+", "", 400},
		"line breaks only":    {release, "fence=" + fence + "&why=%0a%0d%0a%0a%0a", "", 400},
		"a long reason":       {release, "fence=" + fence + "&why=" + strings.Repeat("a", 501), "", 400},
		"a field twice":       {release, "fence=" + fence + "&fence=" + fence + "&why=because", "", 400},
		"an unknown field":    {release, "fence=" + fence + "&why=because&more=1", "", 400},
		"a large body":        {release, "fence=" + fence + "&why=because" + strings.Repeat("+", 17<<10), "", 400},
		"no fence":            {release, "why=because", "", 400},
		"a fence of letters":  {release, "fence=x&why=because", "", 400},
		"JSON":                {release, `{"fence":1}`, "application/json", 400},
		"multipart":           {release, "", "multipart/form-data; boundary=a", 400},
		"no form":             {release, "fence=%zz", "", 400},
		"an unknown action":   {"locks/shop/" + id + "/none", "why=because", "", 404},
		"an action elsewhere": {"locks/shop/" + id + "/revive", "why=because", "", 404},
		"a page":              {"monitor", "why=because", "", 405},
		"a hold of no time":   {"limits/shop/-/hold", "key=k&hold=0s&why=because", "", 400},
		"a hold of words":     {"limits/shop/-/hold", "key=k&hold=long&why=because", "", 400},
		"a hold of years":     {"limits/shop/-/hold", "key=k&hold=9000h&why=because", "", 400},
		"a key of nothing":    {"limits/shop", "key=", "", 400},
		"a long key":          {"limits/shop", "key=" + strings.Repeat("k", 1025), "", 400},
		"a strange outcome":   {"operations/shop/" + strings.Repeat("a", 44) + "/resolve", "outcome=x&why=because", "", 400},
		"a strange status":    {"operations/shop/" + strings.Repeat("a", 44) + "/resolve", "outcome=happened&status=99&why=because", "", 400},
		"a type of two lines": {"operations/shop/" + strings.Repeat("a", 44) + "/resolve", "outcome=happened&type=a%0ab&why=because", "", 400},
		"a DELETE":            {release, "", "DELETE", 405},
	} {
		method, kind := http.MethodPost, "application/x-www-form-urlencoded"
		switch {
		case c.kind == "DELETE":
			method = c.kind
		case c.kind != "":
			kind = c.kind
		}
		req, err := http.NewRequestWithContext(t.Context(), method, v.root+c.path, strings.NewReader(c.body))
		must(t, err)
		req.Header.Set("Content-Type", kind)
		resp, err := v.http.Do(req)
		must(t, err)
		_ = resp.Body.Close()
		if resp.StatusCode != c.want {
			t.Errorf("%s: %d, want %d", name, resp.StatusCode, c.want)
		}
	}
	s.untouched(t, "k")
}

// Headers keep pages out of frames, caches and other sites' logs.
func TestHeaders(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	defer st.Close()
	v := serve(t, st, as())
	for _, who := range []string{"ada", ""} {
		for _, path := range []string{"", "log?format=json", "nothing", "console.js"} {
			a := v.send(http.MethodGet, path, nil, "Who", who)
			for name, want := range map[string]string{
				"Content-Security-Policy": "default-src 'none'", "Referrer-Policy": "no-referrer", "X-Content-Type-Options": "nosniff", "Cache-Control": "no-",
			} {
				if got := a.header.Get(name); !strings.HasPrefix(got, want) {
					t.Errorf("%s %s: %s: %q", who, path, name, got)
				}
			}
			if policy := a.header.Get("Content-Security-Policy"); !strings.Contains(policy, "frame-ancestors 'none'") || strings.Contains(policy, "unsafe") {
				t.Errorf("%s: %s", path, policy)
			}
		}
	}
}

// No key, scope, token or reason is in addresses, and no key or scope in logs; the log of actions has
// one line for each, whatever its reason is. The tests of telemetry look for them in metrics.
func TestNothingPrivateIsTold(t *testing.T) {
	t.Parallel()
	const key, scope, reason = "private-key", "private-scope", "private-reason\r\nof two lines\u2028and more"
	st := memstore.New()
	defer st.Close()
	s := open(t, st, "shop", "ada")
	s.fill(t, key)
	var log bytes.Buffer
	var addresses []string
	c := console.New(st, console.AllowAnyone(), console.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
	defer c.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		addresses = append(addresses, r.URL.String(), r.Referer())
		c.ServeHTTP(w, r)
	}))
	defer server.Close()
	v := visit(t, server.URL+"/")
	for path, form := range s.deeds(v, key) {
		form.Set("why", reason)
		if a := v.send(http.MethodPost, path, form); a.status != http.StatusOK {
			t.Errorf("POST %s: %d\n%s", path, a.status, a.body)
		}
	}
	v.send(http.MethodPost, "operations/shop", url.Values{"scope": {scope}, "key": {key}})
	v.send(http.MethodPost, "locks/shop", url.Values{"key": {key}})
	told := strings.Join(addresses, "\n")
	for _, private := range []string{key, scope, "private-reason"} {
		if strings.Contains(told, private) {
			t.Errorf("%s is told: %s", private, told)
		}
	}
	lines := strings.Split(strings.TrimSpace(log.String()), "\n")
	if len(lines) != 7 {
		t.Errorf("%d lines:\n%s", len(lines), log.String())
	}
	for _, line := range lines {
		if strings.Contains(line, key) || strings.Contains(line, scope) || !strings.Contains(line, "operator=anyone") || !strings.Contains(line, "outcome=done") {
			t.Errorf("a line: %s", line)
		}
	}
	page := v.page("log")
	if strings.Contains(page, key) || !strings.Contains(page, "private-reason  of two lines and more") {
		t.Errorf("the log: %s", page)
	}
}

// OnAction refuses an action before it, and hears of it after it.
func TestOnAction(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	defer st.Close()
	s := open(t, st, "shop", "ada")
	s.fill(t, "k")
	var heard []console.Action
	v := serve(t, st, console.AllowAnyone(), console.OnAction(func(_ context.Context, a console.Action) error {
		heard = append(heard, a)
		if !strings.Contains(a.Why, "OPS-") {
			return errors.New("name a ticket <b>")
		}
		return nil
	}))
	path := "locks/shop/" + presence.KeyHash("k") + "/release"
	form := url.Values{"fence": {text(s.lease.Fence().Number)}, "why": {"it hangs"}}
	if a := v.send(http.MethodPost, path, form); a.status != http.StatusForbidden || !strings.Contains(a.body, "name a ticket &lt;b&gt;") {
		t.Errorf("%d %s", a.status, a.body)
	}
	s.untouched(t, "k")
	if len(heard) != 1 {
		t.Fatalf("%+v", heard)
	}
	form.Set("why", "OPS-7: it hangs")
	if a := v.send(http.MethodPost, path, form); a.status != http.StatusOK {
		t.Errorf("%d %s", a.status, a.body)
	}
	if len(heard) != 3 || heard[1].Outcome != "" || heard[2].Outcome != "done" || heard[2].Operator != "anyone" || heard[2].Kind != "release_lock" {
		t.Errorf("%+v", heard)
	}
}

// A page that was open before the session ended changes nothing.
func TestASessionEndsBeforeThePost(t *testing.T) {
	t.Parallel()
	st := memstore.New()
	defer st.Close()
	s := open(t, st, "shop", "ada")
	s.fill(t, "k")
	var ended atomic.Bool
	v := serve(t, st, console.Authorize(func(*http.Request) (console.Operator, error) {
		if ended.Load() {
			return console.Operator{}, errNo
		}
		return console.Operator{Name: "ada", May: console.Act}, nil
	}))
	deeds := s.deeds(v, "k")
	ended.Store(true)
	for path, form := range deeds {
		if a := v.send(http.MethodPost, path, form); a.status != http.StatusForbidden {
			t.Errorf("POST %s: %d", path, a.status)
		}
	}
	s.untouched(t, "k")
}
