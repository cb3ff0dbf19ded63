package main_test

import (
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/lockkeeper/lockkeeper/examples/internal/pagetest"
)

// trials are the buttons with a known outcome, in the order in which they are pressed. Together
// with the flood and the cars they show every refusal that a client can get.
var trials = []struct {
	button, says string
	charges      int
	tiles        map[string]int
	answers      []string // how they begin, sorted
}{
	{"again", "First let the shop die.", 0, nil, nil},
	{"pay", "1 request: 1 charge, 1 order.", 1, map[string]int{"charged": 1}, []string{"201"}},
	{"same", "20 requests, one key: 1 charge, 1 order, 19 replays.", 1, map[string]int{"charged": 1, "replayed": 19},
		[]string{"201", "201, Idempotency-Replayed: true"}},
	{"different", "20 requests, 20 keys: 20 charges, 20 orders.", 20, map[string]int{"charged": 20}, []string{"201"}},
	{"twin", "Two at once: 1 charge, and 1 told to come back.", 1, map[string]int{"charged": 1, "in-flight": 1},
		[]string{"201", "409 in-flight, Retry-After: 1"}},
	{"patient", "Two at once: 1 charge, and 1 waited for that answer.", 1, map[string]int{"charged": 1, "replayed": 1},
		[]string{"201", "201, Idempotency-Replayed: true"}},
	{"reused", "One key, two orders: only the first was charged.", 1, map[string]int{"charged": 1, "key-reused": 1},
		[]string{"201", "422 key-reused"}},
	{"keyless", "No usable key: both refused, nothing charged.", 0, map[string]int{"key-missing": 1, "key-malformed": 1},
		[]string{"400 key-malformed, Link: <", "400 key-missing, Link: <"}},
	{"crash", "Charged, and no order. Now send that payment again.", 1, map[string]int{"died": 1}, []string{"502"}},
	{"again", "It ran again: no second charge, and now an order.", 0, map[string]int{"charged": 1}, []string{"201"}},
	{"unknown", "Charged or not? Nobody knows: it does not run again.", 1, map[string]int{"died": 1, "outcome-unknown": 1},
		[]string{"409 outcome-unknown", "502"}},
	{"giftcard", "Charged once, and its code was shown once.", 1, map[string]int{"charged": 1, "response-not-retained": 1},
		[]string{"201", "409 response-not-retained, original-status: 201"}},
	{"outage", "Refused at once, and nothing charged.", 0, map[string]int{"temporary-reduced-capacity": 1},
		[]string{"503 temporary-reduced-capacity, Retry-After: "}},
	{"count", "One takes stock, and the other is told to come back.", 0, map[string]int{"counted": 1, "locked": 1},
		[]string{"200", "409 locked, Retry-After: "}},
}

func TestPage(t *testing.T) {
	t.Parallel()
	for _, l := range looks {
		t.Run(l.String(), func(t *testing.T) {
			t.Parallel()
			testPage(t, l)
		})
	}
	t.Run("postgres", func(t *testing.T) {
		t.Parallel()
		testPage(t, looks[0], shared["postgres"](t)...)
	})
}

func testPage(t *testing.T, l look, args ...string) {
	i := start(t, append(args, "-rate", "20", "-burst", "60")...)
	v, complaints := open(pagetest.Browser(t), t, i, l)
	v.InView("#summary", "#tiles", ".counters", "#pay")
	v.View(l.String() + "-start")

	charges, requests := 0, 0
	for _, trial := range trials {
		v.press(trial.button)
		v.summary(trial.says)
		for outcome, n := range trial.tiles {
			requests += n
			if got := v.tiles(outcome); got != n {
				t.Errorf("%s: %d tiles are %s, want %d", trial.button, got, outcome, n)
			}
		}
		answers := v.Texts(`[...document.querySelectorAll("#answers code")].map((e) => e.textContent)`)
		slices.Sort(answers)
		if !slices.EqualFunc(answers, trial.answers, strings.HasPrefix) {
			t.Errorf("%s: the answers are %q, want %q", trial.button, answers, trial.answers)
		}
		charges += trial.charges
		if got := v.counter("charges"); got != charges {
			t.Errorf("%s: %d charges, want %d", trial.button, got, charges)
		}
		v.sent(trial.tiles, trial.charges)
		if got := v.counter("requests"); got != requests { // a request that was told to come back is one
			t.Errorf("%s: %d requests, want %d", trial.button, got, requests)
		}
		v.View(l.String() + "-" + trial.button)
	}
	if n := v.counter("replayed"); n != 20 {
		t.Errorf("%d replays", n)
	}
	requests += v.cars() + v.later()
	charges++

	if v.Number(`Number(document.querySelector("#console").checkVisibility())`) != 0 {
		t.Error("the page links to a console that there is not")
	}

	var floods, passed, denied int
	for floods < 5 && denied == 0 { // a busy machine takes so long that the tokens for all come back meanwhile
		floods++
		before := v.counter("denied")
		v.press("flood")
		passed, denied = v.tiles("passed"), v.tiles("quota-exceeded")
		if n := v.counter("denied") - before; n != denied || n+passed != 100 {
			t.Errorf("100 at once: %d denied, %d tiles denied, %d passed", n, denied, passed)
		}
		v.sent(map[string]int{"passed": passed, "quota-exceeded": denied}, 0)
	}
	v.summary(fmt.Sprintf("100 at once: %d let through, %d refused at no cost.", passed, denied))
	v.refusal(`429 quota-exceeded, violated-policies: api, Retry-After: \d+, RateLimit: "api";r=0;t=\d+, RateLimit-Policy: "api";q=60;w=3`)
	v.View(l.String() + "-flood")

	v.sales()
	if got := v.counter("charges"); got != charges {
		t.Errorf("%d charges, want %d", got, charges)
	}
	if got, want := v.counter("requests"), requests+100*floods+2*200; got != want {
		t.Errorf("%d requests after a flood and two sales, want %d", got, want)
	}
	v.Picture(l.String() + "-all")
	v.Fits()
	v.Size(320, 640) // a small phone, or 1280 pixels at 400 %
	v.Fits()
	if list := complaints(); len(list) > 0 {
		t.Errorf("the page %v", list)
	}
}

// sent checks what the counters say of the last button: its requests, by their outcomes, and charges.
func (v visit) sent(outcomes map[string]int, charges int) {
	v.Helper()
	requests := 0
	for _, n := range outcomes {
		requests += n
	}
	for id, want := range map[string]int{
		"requests-now": requests, "charges-now": charges,
		"replayed-now": outcomes["replayed"], "denied-now": outcomes["quota-exceeded"],
	} {
		if got := v.counter(id); got != want {
			v.Errorf("%s is %d, want %d", id, got, want)
		}
	}
}

// later places two orders, and pays the first of them. It returns the number of its requests.
func (v visit) later() int {
	v.Helper()
	v.shelf(0)
	for n := range 2 {
		v.press("order")
		v.summary("Placed: a tin is yours until its time is over.")
		v.shelf(9 - n)
		v.wantOrder(n+1, `\d+:\d\d left to pay`, true)
	}
	v.View(v.look.String() + "-ordered")
	v.click("pay-1")
	v.answered()
	v.summary("Paid in time: the tin is yours.")
	v.wantOrder(1, "paid", false)
	v.wantOrder(2, `\d+:\d\d left to pay`, true)
	v.shelf(8)
	if v.Number(`Number(document.activeElement.id === "order")`) != 1 && v.look.scheme == "dark" {
		v.Error("the focus was lost with the button")
	}
	v.Readable()
	v.View(v.look.String() + "-paid")
	return 3
}

// shelf waits until the page shows how many tins of coffee are left.
func (v visit) shelf(left int) {
	v.Helper()
	thing := "tins"
	if left == 1 {
		thing = "tin"
	}
	v.Do("look at the shelf", chromedp.Poll[chromedp.Void](
		fmt.Sprintf(`document.querySelector("#coffee").textContent === "%d %s of coffee on the shelf."`, left, thing)))
}

// wantOrder waits until the page shows an order in a state, which is a pattern, and checks whether it
// can be paid.
func (v visit) wantOrder(number int, state string, payable bool) {
	v.Helper()
	v.Do("look at the orders", chromedp.Poll[chromedp.Void](fmt.Sprintf(
		`[...document.querySelectorAll("#orders li")].some((e) => /^Order %d, \$6\.20%s%s$/.test(e.textContent))`,
		number, state, map[bool]string{true: fmt.Sprintf("Pay order %d", number)}[payable])))
}

// An order that is not paid in time is shown as cancelled, its tin comes back, and it cannot be paid.
func TestPageOfOrdersThatAreNotPaid(t *testing.T) {
	t.Parallel()
	ctx := pagetest.Browser(t)
	for _, l := range looks {
		t.Run(l.String(), func(t *testing.T) {
			v, complaints := open(ctx, t, start(t, "-unpaid", "3s"), l)
			v.press("order")
			v.wantOrder(1, `0:0[1-3] left to pay`, true)
			v.Number(`(fetch("/api/stock/coffee", { method: "POST", headers: { "X-User": "clerk" }, body: '{"quantity":0}' }), 0)`)
			v.press("order") // none is left, and one may come back
			v.summary("Sold out: no tin is left.")
			v.wantOrder(1, "cancelled: not paid", false)
			v.shelf(1)
			v.Readable()
			v.Fits()
			v.Named()
			v.Number(`(document.querySelector("#order").scrollIntoView({ block: "center" }), 0)`)
			v.View(l.String() + "-not-paid")
			if n := v.counter("charges"); n != 0 {
				t.Errorf("%d charges", n)
			}
			if list := complaints(); len(list) > 0 {
				t.Errorf("the page %v", list)
			}
		})
	}
}

// cars sends cars to the car park. It returns the number of its requests.
func (v visit) cars() int {
	v.Helper()
	v.press("car-1")
	v.summary("1 car: 1 served.")
	v.Do("the car has left", chromedp.Poll[chromedp.Void](empty))
	v.click("car-12")
	v.Do("the car park fills", chromedp.Poll[chromedp.Void](filled))
	v.View(v.look.String() + "-cars")
	v.answered()
	v.InView("#summary", "#tiles", "#talk", ".counters")
	served, away := v.tiles("served"), v.tiles("too-many-at-once")
	if served < 2 || away == 0 || served+away != 12 { // six, unless the machine is busy
		v.Errorf("12 cars: %d tiles served, %d turned away", served, away)
	}
	pairs := ""
	if served > 2 {
		pairs = ", two at a time"
	}
	v.summary(fmt.Sprintf("12 cars: %d served%s, %d turned away.", served, pairs, away))
	v.sent(map[string]int{"served": served, "too-many-at-once": away}, 0)
	v.refusal(`429 too-many-at-once, Retry-After: \d+`)
	v.Do("the car park empties", chromedp.Poll[chromedp.Void](empty))

	v.press("strangers")
	strangers, refused := v.tiles("served"), v.tiles("temporary-reduced-capacity")
	if strangers < 2 || strangers+refused != 12 { // on a busy machine some come when others have left
		v.Errorf("12 cars of strangers: %d tiles served, %d turned away", strangers, refused)
	}
	v.summary(fmt.Sprintf("12 cars: %d served, %d turned away.", strangers, refused))
	v.refusal(`503 temporary-reduced-capacity, Retry-After: \d+`)
	v.Do("the car park empties", chromedp.Poll[chromedp.Void](empty))
	if got, left := v.counter("served"), v.counter("away"); got != 1+served+strangers || left != away+refused {
		v.Errorf("25 cars: %d served, %d turned away", got, left)
	}
	v.View(v.look.String() + "-strangers")
	return 1 + 12 + 12
}

// sales sells more than there is, and then no more.
func (v visit) sales() {
	v.Helper()
	shelf := func() string {
		v.Helper()
		v.InView("#shelf")
		return v.Texts(`[document.querySelector("#shelf").getAttribute("aria-label")]`)[0]
	}
	v.press("oversale")
	over := v.tiles("over")
	if sold := v.tiles("sold"); sold != 50 || over == 0 || sold+over+v.tiles("soldout") != 200 {
		v.Errorf("a sale without the lock: %d tiles sold, %d too many, %d sold out", sold, over, v.tiles("soldout"))
	}
	v.summary(fmt.Sprintf("200 buyers, 50 items: %d sold, %d too many.", 50+over, over))
	if got, want := shelf(), fmt.Sprintf("50 in stock, %d sold, %d too many", 50+over, over); got != want {
		v.Errorf("the shelf has %q, want %q", got, want)
	}
	// What is too many begins where the stock ends.
	left := func(id string) int {
		return v.Number(fmt.Sprintf(`Math.round(document.querySelector("#%s").getBoundingClientRect().left)`, id))
	}
	if off := left("too-many") - left("end"); off < -3 || off > 3 {
		v.Errorf("the end of the stock is %d pixels off", off)
	}
	v.View(v.look.String() + "-oversale")

	v.press("sale")
	if sold, over := v.tiles("sold"), v.tiles("over"); sold != 50 || over != 0 || v.tiles("soldout") != 150 {
		v.Errorf("a sale: %d tiles sold, %d too many, %d sold out", sold, over, v.tiles("soldout"))
	}
	v.summary("200 buyers, 50 items: 50 sold, not one too many.")
	if got := shelf(); got != "50 in stock, 50 sold, 0 too many" {
		v.Errorf("the shelf has %q", got)
	}
	v.View(v.look.String() + "-sale")
}

// Everything can be reached and operated by keyboard, and has a name for a screen reader, which
// reads what happened.
func TestPageWithoutAMouse(t *testing.T) {
	t.Parallel()
	ctx := pagetest.Browser(t)
	for _, l := range looks {
		t.Run(l.String(), func(t *testing.T) {
			v, complaints := open(ctx, t, start(t), l)
			v.Do("the car park is shown", chromedp.Poll[chromedp.Void](empty))
			v.Tabs()
			v.Named()
			v.Readable()
			v.Do("pay", chromedp.Focus(chromedp.CSS("#pay")))
			for n, key := range []string{"\r", " "} {
				v.Do("press a key", chromedp.KeyEvent(key)) // the focus has stayed
				v.answered()
				if got := v.counter("charges"); got != n+1 {
					t.Errorf("after %d keys: %d charges", n+1, got)
				}
			}
			tree := v.Tree()
			if !slices.ContainsFunc(tree, func(n pagetest.Node) bool { return n.Role == "status" && n.Live == "polite" }) ||
				!slices.ContainsFunc(tree, func(n pagetest.Node) bool { return n.Name == "1 request: 1 charge, 1 order." }) {
				t.Errorf("a screen reader does not read what happened: %v", tree)
			}
			if list := complaints(); len(list) > 0 {
				t.Errorf("the page %v", list)
			}
		})
	}
}

// The sentence counts the payments that were denied, too.
func TestPageOverTheLimit(t *testing.T) {
	t.Parallel()
	v, _ := open(pagetest.Browser(t), t, start(t, "-rate", "1", "-burst", "1"), look{390, 844, "light"})
	v.press("different")
	charged, denied := v.tiles("charged"), v.tiles("quota-exceeded")
	if charged == 0 || denied < 2 || charged+denied != 20 {
		t.Fatalf("of 20 payments %d were charged, and %d denied", charged, denied)
	}
	if got := v.text("#summary"); !strings.HasSuffix(got, fmt.Sprintf(", %d denied.", denied)) {
		t.Errorf("the page says %q, with %d denied", got, denied)
	}
	if got := v.counter("requests"); got != 20 || v.counter("denied") != denied {
		t.Errorf("%d requests were counted, and %d denied", got, v.counter("denied"))
	}
	v.press("twin")
	if n := v.tiles("quota-exceeded"); n > 0 {
		v.summary(fmt.Sprintf("It went otherwise: see below, %d denied.", n))
	}
}

// The page shows each request as a command that sends it, and its answer as it came.
func TestPageShowsRequestsAndAnswers(t *testing.T) {
	t.Parallel()
	ctx := pagetest.Browser(t)
	for _, l := range []look{looks[0], looks[3]} {
		t.Run(l.String(), func(t *testing.T) {
			i := start(t, unlimited...)
			v, complaints := open(ctx, t, i, l)
			v.press("same")
			if opened := v.Number(`Number(document.querySelector("#talk").open)`) == 1; opened != (l.width > 1000) {
				t.Errorf("the answers are shown: %v", opened)
			}
			v.Number(`(document.querySelectorAll("details").forEach((e) => { e.open = true; }), 0)`)
			v.Readable()
			v.Fits()
			v.View(l.String() + "-talk")
			exchanges := v.Texts(`[...document.querySelectorAll("#answers pre")].map((e) => e.textContent)`)
			if len(exchanges) != 2 {
				t.Fatalf("of a charge and its replays the page shows %q", exchanges)
			}
			for _, exchange := range exchanges {
				request, answer, _ := strings.Cut(exchange, "\n\n")
				if !strings.HasPrefix(answer, "201 Created\n") || !strings.Contains(answer, "\n\n{\"order_id\":") {
					t.Errorf("the answer is %q", answer)
				}
				if sent := shell(t, request); !strings.HasPrefix(sent, "HTTP/1.1 201 Created") || !strings.Contains(sent, "Idempotency-Replayed: true") {
					t.Errorf("%s\nis answered\n%s", request, sent)
				}
			}
			if n := i.stats().Charges; n != 1 {
				t.Errorf("%d charges", n)
			}
			if list := complaints(); len(list) > 0 {
				t.Errorf("the page %v", list)
			}
		})
	}
}

// Without scripts the page says what to do instead.
func TestPageWithoutScripts(t *testing.T) {
	t.Parallel()
	i := start(t)
	v, _ := open(pagetest.Browser(t), t, i, look{390, 844, "light"})
	v.WithoutScripts()
	v.Do("load again", chromedp.Navigate(i.url), chromedp.WaitVisible(chromedp.CSS("noscript code")))
	v.Readable()
	v.Fits()
	v.View("390x844-light-noscript")
}

// Each button has a link to a line of the code, which a browser shows.
func TestPageOfCode(t *testing.T) {
	t.Parallel()
	ctx := pagetest.Browser(t)
	for _, l := range []look{looks[0], looks[3]} {
		t.Run(l.String(), func(t *testing.T) {
			v, complaints := open(ctx, t, start(t), l)
			v.Number(`(document.querySelector("#same + .code").scrollIntoView({ block: "center" }), 0)`)
			v.Do("open the code", chromedp.Click(chromedp.CSS("#same + .code")), chromedp.WaitVisible(chromedp.CSS("#here")))
			v.InView("#here")
			v.Readable()
			v.Fits()
			v.View(l.String() + "-code")
			if list := complaints(); len(list) > 0 {
				t.Errorf("the page %v", list)
			}
		})
	}
}

// TestReadmePictures makes the pictures of the README: see CONTRIBUTING.md.
func TestReadmePictures(t *testing.T) {
	if os.Getenv(pagetest.Screenshots) == "" {
		t.Skipf("%s names no folder for them", pagetest.Screenshots)
	}
	ctx := pagetest.Browser(t)
	for _, l := range looks[:2] {
		t.Run(l.scheme, func(t *testing.T) {
			v, _ := open(ctx, t, start(t), l)
			for _, button := range []string{"pay", "same", "sale"} {
				v.press(button)
			}
			v.Number(`(document.activeElement.blur(), scrollTo(0, 0), 0)`)
			v.View("checkout-" + l.scheme)
		})
	}
}

// Scripts that look at the car park.
const (
	filled = `document.querySelectorAll("#places li.taken").length === 2 && document.querySelectorAll("#lane li.taken").length > 0`
	empty  = `document.querySelectorAll("#places li").length === 2 && document.querySelectorAll("#lane li").length === 4 && ` +
		`!document.querySelector(".lot li.taken")`
)
