package main_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// crash is a purchase in the middle of which the shop dies.
func crash(key string) call {
	c := purchase(key)
	c.body = `{"sku":"crash","quantity":1}`
	return c
}

// token returns the operator's token, which the program has printed.
func (i *instance) token() (token string) {
	i.t.Helper()
	eventually(i.t, 5*time.Second, "it prints a token", func() (printed bool) {
		_, rest, _ := strings.Cut(i.stdout.String(), "operator's token: ")
		token, _, printed = strings.Cut(rest, "\n")
		return printed
	})
	return token
}

func office(method, path, token, body string) call {
	return call{method: method, path: "/admin/payments" + path, body: body, header: map[string]string{"Authorization": "Bearer " + token}}
}

type unresolved struct {
	ID, Version, Holder, Charge string
	Attempt                     int
}

// unresolved returns the payments of unknown outcome.
func (i *instance) unresolved(token string) (list []unresolved) {
	i.t.Helper()
	a := i.do(office(http.MethodGet, "", token, "")).want(i.t, http.StatusOK, false)
	if err := json.Unmarshal([]byte(a.body), &list); err != nil {
		i.t.Fatal(err)
	}
	return list
}

// only returns the payment of unknown outcome, of which there is one.
func (i *instance) only(token string) unresolved {
	i.t.Helper()
	list := i.unresolved(token)
	if len(list) != 1 {
		i.t.Fatalf("%d payments of unknown outcome: %+v", len(list), list)
	}
	return list[0]
}

func resolution(p unresolved, token, outcome string) call {
	return office(http.MethodPost, "/"+p.ID, token, fmt.Sprintf(`{"version":%q,"outcome":%q,"why":"the ledger"}`, p.Version, outcome))
}

func TestOperatorResolves(t *testing.T) {
	t.Parallel()
	i := start(t, append([]string{"-admin"}, unlimited...)...)
	token := i.token()
	for n, c := range []struct {
		outcome string
		then    func(key string)
	}{
		{"charged", func(key string) {
			a := i.do(crash(key)).want(t, http.StatusCreated, true)
			i.do(call{method: http.MethodGet, path: a.header.Get("Location"), user: "alice"}).want(t, http.StatusOK, false)
		}},
		{"answer lost", func(key string) { i.do(crash(key)).wantProblem(t, http.StatusConflict, "response-not-retained") }},
		{"never charged", func(key string) {
			a := i.do(crash(key)).want(t, http.StatusCreated, false)
			if a.header.Get("X-Attempt") != "2" {
				t.Errorf("attempt %q, want 2", a.header.Get("X-Attempt"))
			}
		}},
	} {
		key := "k" + c.outcome[:3]
		i.do(crash(key)).wantProblem(t, http.StatusBadGateway, "")
		i.do(crash(key)).wantProblem(t, http.StatusConflict, "outcome-unknown")
		seen := i.only(token)
		if seen.Charge == "" || seen.Attempt != 1 || seen.Holder == "" {
			t.Errorf("the operator sees %+v", seen)
		}
		i.do(resolution(seen, token, c.outcome)).want(t, http.StatusNoContent, false)
		i.do(resolution(seen, token, c.outcome)).wantProblem(t, http.StatusConflict, "") // from a stale view
		if list := i.unresolved(token); len(list) != 0 {
			t.Errorf("%s: still unresolved: %+v", c.outcome, list)
		}
		c.then(key)
		if s := i.stats(); s.Charges != n+1 {
			t.Errorf("%s: %d charges, want %d", c.outcome, s.Charges, n+1)
		}
	}
}

// A failure before the charge is not unknown: the next request tries again.
func TestFailedPaymentIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"-admin", "-reconcile"} {
		i := start(t, append([]string{how}, unlimited...)...)
		p := purchase("k")
		p.body = `{"sku":"broken","quantity":1}`
		for range 2 {
			i.do(p).want(t, http.StatusBadGateway, false)
		}
	}
}

func TestOperatorIsAuthenticated(t *testing.T) {
	t.Parallel()
	i := start(t)
	i.do(office(http.MethodGet, "", "", "")).wantProblem(t, http.StatusNotFound, "") // without -admin
	i.do(office(http.MethodPost, "/x", "", "")).wantProblem(t, http.StatusNotFound, "")

	i = start(t, append([]string{"-admin"}, unlimited...)...)
	token := i.token()
	i.do(crash("k")).wantProblem(t, http.StatusBadGateway, "")
	seen := i.only(token)
	for name, forged := range map[string]string{"none": "", "another": token[1:] + "x", "a part": token[:5], "more": token + "x"} {
		for _, c := range []call{
			office(http.MethodGet, "", forged, ""), office(http.MethodGet, "?token="+token, forged, ""), resolution(seen, forged, "charged"),
		} {
			if a := i.do(c).wantProblem(t, http.StatusUnauthorized, ""); strings.Contains(a.body, seen.ID) {
				t.Errorf("%s: %s", name, a.body)
			}
		}
	}
	basic := office(http.MethodGet, "", token, "")
	basic.header["Authorization"] = token
	i.do(basic).wantProblem(t, http.StatusUnauthorized, "")

	for name, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"} {
		c := resolution(seen, token, "charged")
		c.header[name] = value
		i.do(c).wantProblem(t, http.StatusForbidden, "")
	}
	if got := i.only(token); got != seen {
		t.Errorf("%+v became %+v", seen, got)
	}
}

func TestBadResolutions(t *testing.T) {
	t.Parallel()
	i := start(t, append([]string{"-admin"}, unlimited...)...)
	token := i.token()
	i.do(crash("k")).wantProblem(t, http.StatusBadGateway, "")
	seen := i.only(token)
	for body, status := range map[string]int{
		"":  http.StatusBadRequest,
		"{": http.StatusBadRequest,
		`{"version":"` + seen.Version + `","outcome":"charged","why":" "}`:                                 http.StatusBadRequest,
		`{"version":"` + seen.Version + `","outcome":"perhaps","why":"x"}`:                                 http.StatusBadRequest,
		`{"version":"` + seen.Version + `","outcome":"charged","why":"x","force":true}`:                    http.StatusBadRequest,
		`{"version":"` + seen.Version + `","outcome":"charged","why":"` + strings.Repeat("x", 2000) + `"}`: http.StatusBadRequest,
		`{"version":"","outcome":"charged","why":"x"}`:                                                     http.StatusConflict,
	} {
		i.do(office(http.MethodPost, "/"+seen.ID, token, body)).wantProblem(t, status, "")
	}
	for _, id := range []string{"x", strings.Repeat("A", len(seen.ID))} {
		i.do(resolution(unresolved{ID: id, Version: seen.Version}, token, "charged")).wantProblem(t, http.StatusNotFound, "")
	}
	if got := i.only(token); got != seen {
		t.Errorf("%+v became %+v", seen, got)
	}
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	i := start(t, append([]string{"-reconcile"}, unlimited...)...)
	i.do(crash("k")).wantProblem(t, http.StatusBadGateway, "")
	a := i.do(crash("k")).want(t, http.StatusCreated, true)
	if again := i.do(crash("k")).want(t, http.StatusCreated, true); again.body != a.body {
		t.Errorf("%s, then %s", a.body, again.body)
	}
	look := call{method: http.MethodGet, path: a.header.Get("Location"), user: "alice"}
	if got := i.do(look).want(t, http.StatusOK, false); got.body != a.body {
		t.Errorf("the order is %s, and the answer %s", got.body, a.body)
	}
	if s := i.stats(); s.Charges != 1 {
		t.Errorf("%d charges", s.Charges)
	}
}

// killed starts two instances, and kills one in the middle of a payment, most likely before the charge.
// It returns the other one, and a function that returns how many charges the provider has.
func killed(t *testing.T, args ...string) (other *instance, charges func() int) {
	t.Helper()
	server := redistest.Start(t)
	args = append(append(args, "-redis", server.URL(), "-lease", "1s"), unlimited...)
	dying, other := start(t, args...), start(t, args...)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = dying.try(purchase("k"))
	}()
	client := server.Client()
	count := func(pattern string) int {
		keys, err := client.Keys(t.Context(), pattern).Result()
		if err != nil {
			t.Fatal(err)
		}
		return len(keys)
	}
	eventually(t, 5*time.Second, "the payment has begun", func() bool { return count("lk:g:{*}:*") == 1 }) // records, and not what counts them
	dying.kill()
	<-gone
	return other, func() int { return count("checkout:charge:*") }
}

func TestKilledPaymentIsResolved(t *testing.T) {
	t.Parallel()
	i, charges := killed(t, "-admin")
	token := i.token()
	eventually(t, 5*time.Second, "the payment is of unknown outcome", func() bool { return len(i.unresolved(token)) == 1 })
	i.do(purchase("k")).wantProblem(t, http.StatusConflict, "outcome-unknown")
	seen := i.only(token)
	if known := charges(); known == 0 {
		i.do(resolution(seen, token, "charged")).wantProblem(t, http.StatusUnprocessableEntity, "")
	}
	i.do(resolution(seen, token, "never charged")).want(t, http.StatusNoContent, false)
	if a := i.do(purchase("k")).want(t, http.StatusCreated, false); a.header.Get("X-Attempt") != "2" {
		t.Errorf("attempt %q, want 2", a.header.Get("X-Attempt"))
	}
	if n := charges(); n != 1 {
		t.Errorf("%d charges", n)
	}
}

func TestKilledPaymentIsReconciled(t *testing.T) {
	t.Parallel()
	i, charges := killed(t, "-reconcile")
	eventually(t, 5*time.Second, "the payment is answered", func() bool { return i.do(purchase("k")).status == http.StatusCreated })
	i.do(purchase("k")).want(t, http.StatusCreated, true)
	if n := charges(); n != 1 {
		t.Errorf("%d charges", n)
	}
}
