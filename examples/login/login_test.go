package main

import (
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/cookiejar"
	"net/http/httptest"
	"net/url"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/examples/internal/demo/demotest"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// soon is how long a test waits for what should happen at once.
const soon = 20 * time.Second

const (
	home  = "198.51.100.7"
	cafe  = "203.0.113.66"
	right = "open sesame"
	wrong = "guess"
)

// small are budgets whose failures do not come back while a test runs.
var small = func() budgets {
	const forever = 3650 * 24 * time.Hour
	return budgets{tokenbucket.Per(10, forever), tokenbucket.Per(30, forever), tokenbucket.Per(40, forever)}
}()

// fixture is a login, and a browser, which keeps cookies.
type fixture struct {
	*testing.T
	url     string
	users   *users
	browser *http.Client
}

func start(t *testing.T) *fixture {
	t.Helper()
	st := memstore.New()
	t.Cleanup(func() { _ = st.Close() })
	return startOn(t, st)
}

func startOn(t *testing.T, st store.Store) *fixture {
	t.Helper()
	users := newUsers(10)
	handler, err := newLogin(st, users, []byte("secret"), small)
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(handler)
	t.Cleanup(server.Close)
	jar, err := cookiejar.New(nil)
	if err != nil {
		t.Fatal(err)
	}
	return &fixture{t, server.URL, users, &http.Client{Transport: server.Client().Transport, Jar: jar, Timeout: soon}}
}

func (f *fixture) post(path, account, password, from string, header ...string) (status int, h http.Header, body string) {
	f.Helper()
	form := url.Values{"account": {account}, "password": {password}}.Encode()
	req, err := http.NewRequestWithContext(f.Context(), http.MethodPost, f.url+path, strings.NewReader(form))
	if err != nil {
		f.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("X-Forwarded-For", from)
	for n := 0; n < len(header); n += 2 {
		req.Header.Set(header[n], header[n+1])
	}
	resp, err := f.browser.Do(req)
	if err != nil {
		f.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		f.Fatal(err)
	}
	return resp.StatusCode, resp.Header, string(text)
}

func (f *fixture) login(account, password, from string, want int) {
	f.Helper()
	if status, _, body := f.post("/login", account, password, from); status != want {
		f.Errorf("%s from %s with %q: %d %s, want %d", account, from, password, status, body, want)
	}
}

// forget makes the browser a new one.
func (f *fixture) forget() { f.browser.Jar, _ = cookiejar.New(nil) }

// left checks how many failures are left of the pair, the account and the address.
func (f *fixture) left(account, from string, want ...int64) {
	f.Helper()
	status, _, body := f.post("/demo/budgets", account, "any", from)
	var b []budget
	if err := json.Unmarshal([]byte(body), &b); err != nil || status != http.StatusOK || len(b) != len(want) {
		f.Fatalf("%d %s: %v", status, body, err)
	}
	for i := range b {
		if b[i].Left != want[i] {
			f.Errorf("the budgets of %s at %s are %+v, want %v left", account, from, b, want)
			return
		}
	}
}

func TestOnlyFailuresCount(t *testing.T) {
	f := start(t)
	for range 100 {
		f.login("alice", right, home, http.StatusNoContent)
		f.forget()
	}
	f.left("alice", home, 10, 30, 40)
	f.login("alice", wrong, home, http.StatusUnauthorized)
	f.login("nobody", wrong, home, http.StatusUnauthorized)
	f.left("alice", home, 9, 29, 38)
}

// guess tries 100 wrong passwords at once, and returns the answers by status.
func (f *fixture) guess(account, from, query string) map[int][]answer {
	f.Helper()
	status, _, body := f.post("/demo/guess"+query, account, "any", from)
	if status != http.StatusOK {
		f.Fatalf("%d %s", status, body)
	}
	answers := map[int][]answer{}
	lines := json.NewDecoder(strings.NewReader(body))
	for {
		var a answer
		if err := lines.Decode(&a); errors.Is(err, io.EOF) {
			return answers
		} else if err != nil {
			f.Fatal(err)
		}
		answers[a.Status] = append(answers[a.Status], a)
	}
}

// Of 100 at once, exactly the budget reaches the password, and who guessed is held.
func TestHundredAtOnce(t *testing.T) {
	f := start(t)
	answers := f.guess("alice", cafe, "")
	if len(answers[401]) != 10 || len(answers[429]) != 90 || f.users.checked.Load() != 10 {
		t.Errorf("%d tried, %d refused, %d checked", len(answers[401]), len(answers[429]), f.users.checked.Load())
	}
	f.left("alice", cafe, 0, 20, 30)

	status, h, body := f.post("/login", "alice", right, cafe)
	var problem struct{ Type string }
	if err := json.Unmarshal([]byte(body), &problem); err != nil || status != http.StatusTooManyRequests ||
		!strings.HasSuffix(problem.Type, "abnormal-usage-detected") || h.Get("Retry-After") == "" || h.Get("RateLimit") != "" {
		t.Errorf("the right password: %d %v %s", status, h, body)
	}
	f.login("ALICE ", right, cafe, http.StatusTooManyRequests) // is the same account
	f.login("alice", right, home, http.StatusNoContent)        // the owner does not notice
	f.login("bob", "let me in", cafe, http.StatusNoContent)    // nor does another one at the same address
	if n := f.users.checked.Load(); n != 12 {
		t.Errorf("%d passwords were checked", n)
	}
}

// Who guesses from many addresses uses up the account's budget: its owner is locked out, except in
// a browser that the owner has used before.
func TestManyAddresses(t *testing.T) {
	f := start(t)
	f.login("alice", right, home, http.StatusNoContent)
	stranger, owner := &fixture{T: t, url: f.url, users: f.users, browser: &http.Client{Transport: f.browser.Transport}}, f
	answers := stranger.guess("alice", cafe, "?from=many")
	if len(answers[401]) != 30 || len(answers[429]) != 70 || f.users.checked.Load() != 31 {
		t.Errorf("%d tried, %d refused, %d checked", len(answers[401]), len(answers[429]), f.users.checked.Load())
	}
	if body := string(answers[429][0].Problem); !strings.Contains(body, "login-account") {
		t.Errorf("it is refused by another limit: %s", body)
	}
	stranger.login("alice", right, cafe, http.StatusTooManyRequests)
	owner.login("alice", right, home, http.StatusNoContent)
	owner.login("alice", right, "192.0.2.1", http.StatusNoContent) // elsewhere, too
	owner.login("alice", wrong, home, http.StatusUnauthorized)
	owner.left("alice", home, 9, 29, 39)
	stranger.left("alice", home, 9, 0, 39)
	owner.left("bob", home, 10, 30, 39) // the cookie is worth nothing for others
	owner.forget()
	owner.login("alice", right, home, http.StatusTooManyRequests)
}

// Who tries one password with many accounts uses up the address's budget, and theirs only.
func TestManyAccounts(t *testing.T) {
	f := start(t)
	for n := range 40 {
		f.login("user-"+strconv.Itoa(n), wrong, cafe, http.StatusUnauthorized)
	}
	f.login("alice", right, cafe, http.StatusTooManyRequests)
	f.login("alice", right, home, http.StatusNoContent)
	f.left("alice", cafe, 10, 30, 0) // what is refused costs nobody anything
}

// The narrowest limit decides first: what it refuses must not take room of the account and the address,
// not even for a moment.
func TestOrder(t *testing.T) {
	f := start(t)
	refusedBy := func(limit string) {
		t.Helper()
		if status, _, body := f.post("/login", "alice", wrong, cafe); status != http.StatusTooManyRequests || !strings.Contains(body, limit) {
			t.Errorf("%d %s, want a refusal by %s", status, body, limit)
		}
	}
	f.guess("alice", home, "?from=many") // 30 failures
	for n := range 40 {
		f.login("user-"+strconv.Itoa(n), wrong, cafe, http.StatusUnauthorized)
	}
	refusedBy("login-account")
	f.post("/demo/reset", "alice", "any", home)
	refusedBy("login-address")
	f.post("/demo/reset", "alice", "any", cafe)
	for range 10 {
		f.login("alice", wrong, cafe, http.StatusUnauthorized)
	}
	for n := range 30 {
		f.login("user-"+strconv.Itoa(n), wrong, cafe, http.StatusUnauthorized)
	}
	f.guess("alice", home, "?from=many") // 20 more
	refusedBy("login-pair")
}

// A cookie that was made up, or changed, is none.
func TestForgedDevices(t *testing.T) {
	d := devices{[]byte("secret")}
	of := func(value, account string) string {
		r := httptest.NewRequest(http.MethodPost, "/", nil)
		r.AddCookie(&http.Cookie{Name: deviceCookie, Value: value})
		return d.of(r, account)
	}
	valid := d.sign("laptop", "alice")
	if of(valid, "alice") != "laptop" {
		t.Error("a valid cookie is refused")
	}
	for name, device := range map[string]string{
		"of another account": of(valid, "bob"),
		"renamed":            of("phone"+strings.TrimPrefix(valid, "laptop"), "alice"),
		"unsigned":           of("laptop", "alice"),
		"of another secret":  of(devices{[]byte("guess")}.sign("laptop", "alice"), "alice"),
		"empty":              of("", "alice"),
		"without a name":     of("."+strings.TrimPrefix(valid, "laptop."), "alice"),
	} {
		if device != "" {
			t.Errorf("%s: it is %q", name, device)
		}
	}
}

// Two instances on one Redis have one budget.
func TestTwoInstances(t *testing.T) {
	server := redistest.Start(t)
	instance := func() *fixture {
		client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true, PoolTimeout: soon})
		t.Cleanup(func() { _ = client.Close() })
		st, err := redisstore.New(client, redisstore.WithTimeout(soon)) // so that every outcome is known
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = st.Close() })
		return startOn(t, st)
	}
	instances := []*fixture{instance(), instance()}
	var guessing sync.WaitGroup
	for _, f := range instances {
		guessing.Go(func() { f.guess("alice", cafe, "") })
	}
	guessing.Wait()
	if n := instances[0].users.checked.Load() + instances[1].users.checked.Load(); n != 10 {
		t.Errorf("%d passwords were checked", n)
	}
	for _, f := range instances {
		f.left("alice", cafe, 0, 20, 30)
		f.login("alice", right, cafe, http.StatusTooManyRequests)
		f.login("alice", right, home, http.StatusNoContent)
	}
}

// While the store is down no login succeeds, since failures could not be counted.
func TestStoreDown(t *testing.T) {
	st := storetest.NewFaulty(memstore.New())
	defer func() { _ = st.Close() }()
	f := startOn(t, st)
	st.Break(storetest.Any, storetest.Down)
	f.login("alice", right, home, http.StatusServiceUnavailable)
	st.Mend(storetest.Any)
	if n := f.users.checked.Load(); n != 0 {
		t.Errorf("%d passwords were checked", n)
	}
	f.login("alice", right, home, http.StatusNoContent)
}

func TestBadRequests(t *testing.T) {
	f := start(t)
	f.login("", wrong, cafe, http.StatusBadRequest)
	f.login("alice", "", cafe, http.StatusBadRequest)
	f.login(strings.Repeat("x", 65), wrong, cafe, http.StatusBadRequest)
	f.login("alice", strings.Repeat("x", 5<<10), cafe, http.StatusBadRequest)
	if status, _, body := f.post("/login", "alice", wrong, cafe, "Sec-Fetch-Site", "cross-site"); status != http.StatusForbidden {
		t.Errorf("another site: %d %s", status, body)
	}
	f.left("alice", cafe, 10, 30, 40)
}

func TestReset(t *testing.T) {
	f := start(t)
	f.guess("alice", cafe, "")
	f.login("alice", right, cafe, http.StatusTooManyRequests)
	f.post("/demo/reset", "alice", "any", cafe)
	f.left("alice", cafe, 10, 30, 40)
	f.login("alice", right, cafe, http.StatusNoContent)
}

func TestProgram(t *testing.T) {
	run := demotest.Start(t, program())
	f := &fixture{T: t, url: run.URL, browser: run.Client}
	f.login("alice", wrong, home, http.StatusUnauthorized)
	f.login("alice", right, home, http.StatusNoContent)
	if code := run.Stop(); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
