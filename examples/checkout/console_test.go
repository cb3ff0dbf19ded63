package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/chromedp"

	"github.com/lockkeeper/lockkeeper/examples/internal/pagetest"
)

// operator uses the console of an instance.
type operator struct {
	*instance
	token string
}

// operate returns an operator with the token that the program has printed.
func operate(i *instance) operator {
	i.t.Helper()
	var token string
	eventually(i.t, 5*time.Second, "it prints a token", func() (printed bool) {
		_, rest, _ := strings.Cut(i.stdout.String(), "operator's token: ")
		token, _, printed = strings.Cut(rest, "\n")
		return printed
	})
	return operator{i, token}
}

// basic returns the header of HTTP Basic authentication.
func basic(name, password string) string {
	r := http.Request{Header: http.Header{}}
	r.SetBasicAuth(name, password)
	return r.Header.Get("Authorization")
}

func (o operator) call(method, path string, form url.Values) call {
	return call{
		method: method, path: "/console/" + path + "?format=json", body: form.Encode(),
		header: map[string]string{"Authorization": basic("ada", o.token), "Content-Type": "application/x-www-form-urlencoded"},
	}
}

// read returns a page of the console.
func read[T any](o operator, path string) (page T) {
	o.t.Helper()
	a := o.do(o.call(http.MethodGet, path, nil)).want(o.t, http.StatusOK, false)
	if err := json.Unmarshal([]byte(a.body), &page); err != nil {
		o.t.Fatalf("%s: %v", path, err)
	}
	return page
}

type unresolved struct {
	ID, Version, Holder string
	Attempt             int

	path string // of its page
}

// unresolved returns the operations of a guard whose outcome is unknown.
func (o operator) unresolved(guard string) []unresolved {
	o.t.Helper()
	list := read[struct{ Unresolved []unresolved }](o, "operations/"+guard).Unresolved
	for i := range list {
		list[i].path = "operations/" + guard + "/" + list[i].ID
	}
	return list
}

// only returns the operation of unknown outcome, of which there is one.
func (o operator) only(guard string) unresolved {
	o.t.Helper()
	list := o.unresolved(guard)
	if len(list) != 1 {
		o.t.Fatalf("%d payments of unknown outcome: %+v", len(list), list)
	}
	return list[0]
}

func (o operator) resolution(seen unresolved, outcome string) call {
	return o.call(http.MethodPost, seen.path+"/resolve", url.Values{
		"version": {seen.Version}, "outcome": {outcome}, "why": {"the ledger"},
		"status": {"201"}, "type": {"application/json"}, "body": {`{"order_id":"by hand"}`},
	})
}

// resolves resolves an operation, and checks the console's answer.
func (o operator) resolves(seen unresolved, outcome, answer string) {
	o.t.Helper()
	a := o.do(o.resolution(seen, outcome)).want(o.t, http.StatusOK, false)
	if !strings.Contains(a.body, fmt.Sprintf(`"outcome": %q`, answer)) {
		o.t.Errorf("%s, want %s: %s", outcome, answer, a.body)
	}
}

// The customer's next request shows what the operator has said.
func TestOperatorResolves(t *testing.T) {
	t.Parallel()
	o := operate(start(t, append([]string{"-console"}, unlimited...)...))
	for n, c := range []struct {
		outcome string
		then    func(again answer)
	}{
		{"happened", func(again answer) {
			if again.want(t, http.StatusCreated, true); again.body != `{"order_id":"by hand"}` {
				t.Errorf("the customer gets %s", again.body)
			}
		}},
		{"answer lost", func(again answer) { again.wantProblem(t, http.StatusConflict, "response-not-retained") }},
		{"never happened", func(again answer) {
			if attempt := again.want(t, http.StatusCreated, false).header.Get("X-Attempt"); attempt != "2" {
				t.Errorf("attempt %q, want 2", attempt)
			}
		}},
	} {
		payment := crash(c.outcome[:3])
		o.do(payment).wantProblem(t, http.StatusBadGateway, "")
		o.do(payment).wantProblem(t, http.StatusConflict, "outcome-unknown")
		seen := o.only("checkout")
		if seen.Attempt != 1 || seen.Holder == "" {
			t.Errorf("the operator sees %+v", seen)
		}
		o.resolves(seen, c.outcome, "done")
		o.resolves(seen, c.outcome, "changed") // from a stale view
		if list := o.unresolved("checkout"); len(list) != 0 {
			t.Errorf("%s: still unresolved: %+v", c.outcome, list)
		}
		c.then(o.do(payment))
		if s := o.stats(); s.Charges != n+1 {
			t.Errorf("%s: %d charges, want %d", c.outcome, s.Charges, n+1)
		}
	}
	for _, e := range read[struct{ Entries []struct{ Operator string } }](o, "log").Entries {
		if e.Operator != "ada" {
			t.Errorf("the log says that %q did it", e.Operator)
		}
	}
	if code := o.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d:\n%s", code, o.stderr)
	}
}

func TestOperatorIsAuthenticated(t *testing.T) {
	t.Parallel()
	without := start(t)
	without.do(operator{without, ""}.call(http.MethodGet, "", nil)).wantProblem(t, http.StatusNotFound, "")

	o := operate(start(t, append([]string{"-console"}, unlimited...)...))
	o.do(crash("k")).wantProblem(t, http.StatusBadGateway, "")
	seen := o.only("checkout")
	for name, header := range map[string]string{
		"none": "", "empty": basic("ada", ""), "another": basic("ada", o.token[1:]+"x"), "a part": basic("ada", o.token[:5]),
		"more": basic("ada", o.token+"x"), "as a name": basic(o.token, ""), "as it is": o.token, "a bearer": "Bearer " + o.token,
	} {
		for _, c := range []call{o.call(http.MethodGet, "operations/checkout", nil), o.call(http.MethodGet, "console.css", nil), o.resolution(seen, "happened")} {
			if c.header["Authorization"] = header; header == "" {
				delete(c.header, "Authorization")
			}
			a := o.do(c).wantProblem(t, http.StatusUnauthorized, "")
			if strings.Contains(a.body, seen.ID) || a.header.Get("WWW-Authenticate") != `Basic realm="console"` {
				t.Errorf("%s: %v %s", name, a.header, a.body)
			}
		}
	}
	for name, value := range map[string]string{"Sec-Fetch-Site": "cross-site", "Origin": "https://evil.example"} {
		c := o.resolution(seen, "happened")
		c.header[name] = value
		o.do(c).want(t, http.StatusForbidden, false)
	}
	if got := o.only("checkout"); got != seen {
		t.Errorf("%+v became %+v", seen, got)
	}
}

// Nobody guesses the token: guesses are limited by address.
func TestGuessesAreLimited(t *testing.T) {
	t.Parallel()
	guesser := operator{start(t, "-console", "-rate", "1", "-burst", "1"), "guessed"}
	eventually(t, 5*time.Second, "a guess is denied", func() bool {
		return guesser.do(guesser.call(http.MethodGet, "", nil)).status == http.StatusTooManyRequests
	})
}

// The console is there when the store is not.
func TestConsoleWithoutTheStore(t *testing.T) {
	t.Parallel()
	o := operate(start(t, "-console", "-redis", "redis://127.0.0.1:1"))
	now := read[map[string]any](o, "processes")
	if says, _ := now["error"].(string); !strings.Contains(says, "Only this process is shown") {
		t.Errorf("the console says %v", now)
	}
}

func TestKilledPaymentIsResolved(t *testing.T) {
	t.Parallel()
	i, charges := killed(t, "-console")
	o := operate(i)
	eventually(t, 5*time.Second, "the payment is of unknown outcome", func() bool {
		return len(o.unresolved("checkout")) == 1 && o.do(purchase("k")).status == http.StatusConflict
	})
	o.do(purchase("k")).wantProblem(t, http.StatusConflict, "outcome-unknown")
	o.resolves(o.only("checkout"), "never happened", "done")
	if a := o.do(purchase("k")).want(t, http.StatusCreated, false); a.header.Get("X-Attempt") != "2" {
		t.Errorf("attempt %q, want 2", a.header.Get("X-Attempt"))
	}
	if n := charges(); n != 1 {
		t.Errorf("%d charges", n)
	}
}

// Each instance shows all of them, as processes of the shop.
func TestConsoleShowsAllInstances(t *testing.T) {
	t.Parallel()
	args := append(append(shared["redis"](t), "-console"), unlimited...)
	for _, i := range []*instance{start(t, args...), start(t, args...)} {
		o := operate(i)
		eventually(t, 10*time.Second, "two processes are shown", func() bool {
			services := make(map[string]string)
			for _, p := range read[struct {
				Processes []struct{ ID, Service string }
			}](o, "processes").Processes {
				services[p.ID] = p.Service
			}
			return slices.Equal(slices.Collect(maps.Values(services)), []string{"checkout", "checkout"})
		})
	}
}

func TestConsolePage(t *testing.T) {
	t.Parallel()
	ctx := pagetest.Browser(t)
	for _, l := range []look{looks[0], looks[3]} { // wide and narrow, light and dark
		t.Run(l.String(), func(t *testing.T) { testConsolePage(ctx, t, l) })
	}
}

// An operator follows the page's link to the console, and resolves a payment there. The customer's
// next request shows it.
func testConsolePage(ctx context.Context, t *testing.T, l look) {
	o := operate(start(t, append([]string{"-console"}, unlimited...)...))
	customer, _ := open(ctx, t, o.instance, l)
	customer.press("crash")
	customer.press("again")
	customer.summary("Charged or not? Nobody knows: it does not run again.")

	v, complaints := open(ctx, t, o.instance, l)
	v.Do("the page links to the console", chromedp.WaitVisible(chromedp.CSS("#console")))
	v.Named()
	v.Readable()
	headers := network.SetExtraHTTPHeadersParams{Headers: network.Headers{"Authorization": basic("ada", o.token)}}
	if _, err := chromedp.Call(v.Ctx, network.SetExtraHTTPHeaders, headers); err != nil {
		t.Fatal(err)
	}
	v.load("#console")
	v.follow(`nav a[href$="operations"]`, "Operations")
	v.follow(`a[href$="operations/checkout"]`, "checkout")
	v.follow(`a.button[href$="/resolve"]`, "Resolve operation")
	v.Do("say how it ended",
		chromedp.Click(chromedp.CSS(`input[value="answer lost"]`)),
		chromedp.SendKeys(chromedp.CSS("textarea[name=why]"), "the provider's ledger"))
	v.Picture(l.String() + "-resolve")
	v.load("button.act")
	if says := v.text(".answer"); says != "Done, and in the log." {
		t.Errorf("the console says %q", says)
	}
	v.follow(`nav a[href$="log"]`, "Log")
	if log := v.text("main"); !strings.Contains(log, "ada") || !strings.Contains(log, "the provider's ledger") {
		t.Errorf("the log says %q", log)
	}
	if list := complaints(); len(list) > 0 {
		t.Errorf("the page %v", list)
	}

	customer.press("again")
	customer.summary("It was charged, but the order is not shown again.")
}

// load clicks on what leads to another page, and waits for it.
func (v visit) load(selector string) {
	v.Helper()
	if _, err := chromedp.RunResponse(v.Ctx, chromedp.Click(chromedp.CSS(selector))); err != nil {
		v.Fatalf("%s: %v", selector, err)
	}
}

// follow follows a link to a page of the console, and checks that it can be used.
func (v visit) follow(link, title string) {
	v.Helper()
	v.load(link)
	if says := v.text("h1"); says != title {
		v.Errorf("%s leads to %q, want %q", link, says, title)
	}
	v.Named()
	v.Readable()
	if v.look.width < 640 && v.Number(`document.querySelectorAll("button").length`) > 0 { // smaller ones do for a mouse
		v.Fits()
	}
}
