package main_test

import (
	"context"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/chromedp/chromedp"

	"github.com/lockkeeper/lockkeeper/examples/internal/pagetest"
)

// list shows the payments of unknown outcome to an operator with this token, and checks what the page
// says.
func (v visit) list(token, says string) {
	v.Helper()
	v.Do("show the payments",
		chromedp.SetValue(chromedp.CSS("#token"), token),
		chromedp.SetValue(chromedp.CSS("#why"), "the provider's ledger"),
		chromedp.Click(chromedp.CSS("#show")))
	v.says(says)
}

// says waits until the operator's part of the page says something.
func (v visit) says(want string) {
	v.Helper()
	ctx, cancel := context.WithTimeout(v.Ctx, 10*time.Second)
	defer cancel()
	err := chromedp.Do(ctx, chromedp.Poll[chromedp.Void](fmt.Sprintf(`document.querySelector("#office-says").textContent === %q`, want)))
	if err != nil {
		got, _ := chromedp.Run(v.Ctx, chromedp.Evaluate[string](`document.querySelector("#office-says").textContent`))
		v.Fatalf("the page says %q, want %q: %v", got, want, err)
	}
}

// resolve resolves the first payment that the page shows.
func (v visit) resolve(outcome, says string) {
	v.Helper()
	v.Do("resolve as "+outcome, chromedp.Click(chromedp.CSS(fmt.Sprintf(`#unresolved button[data-outcome="%s"]`, outcome))))
	v.says(says)
}

func TestOffice(t *testing.T) {
	t.Parallel()
	ctx := pagetest.Browser(t)
	for _, l := range looks {
		t.Run(l.String(), func(t *testing.T) { testOffice(ctx, t, l) })
	}
}

// An operator resolves payments in each way, and the customer's next request shows it.
func testOffice(ctx context.Context, t *testing.T, l look) {
	i := start(t, append([]string{"-admin"}, unlimited...)...)
	token := i.token()
	v, complaints := open(ctx, t, i, l)
	v.list("guessed", "This is not the token that the shop has printed.")
	v.list(token, "There is none.")
	for n, c := range []struct{ outcome, tile, summary string }{
		{"charged", "replayed", "The shop found the charge: here is the order."},
		{"answer lost", "response-not-retained", "It was charged, but the order is not shown again."},
		{"never charged", "charged", "It ran again: no second charge, and now an order."},
	} {
		v.press("crash")
		if v.tiles("died") != 1 {
			t.Fatal("the shop did not die")
		}
		v.press("again")
		v.summary("Charged or not? Nobody knows: it does not run again.")
		if v.tiles("outcome-unknown") != 1 {
			t.Fatal("the payment is not shown as unknown")
		}
		v.list(token, "There is 1.")
		v.Fits()
		v.Named()
		v.Readable()
		v.Picture(l.String() + "-office")
		v.resolve(c.outcome, "It is resolved. There is none.")
		v.press("again")
		v.summary(c.summary)
		if v.tiles(c.tile) != 1 {
			t.Errorf("%s: no tile %s", c.outcome, c.tile)
		}
		if charges := v.counter("charges"); charges != n+1 {
			t.Errorf("%s: %d charges, want %d", c.outcome, charges, n+1)
		}
	}
	if list := complaints(); len(list) > 0 {
		t.Errorf("the page %v", list)
	}
}

// The second of two operators, who has looked before the first one has resolved it, is told.
func TestOfficeStale(t *testing.T) {
	t.Parallel()
	ctx := pagetest.Browser(t)
	i := start(t, append([]string{"-admin"}, unlimited...)...)
	token := i.token()
	first, _ := open(ctx, t, i, looks[0])
	second, _ := open(ctx, t, i, looks[0])
	first.press("crash")
	first.list(token, "There is 1.")
	second.list(token, "There is 1.")
	first.resolve("charged", "It is resolved. There is none.")
	second.resolve("never charged", "It has changed since you looked, and was left as it is. There is none.")
	first.press("again")
	first.summary("The shop found the charge: here is the order.")
}

// A payment whose process was killed is shown by another one as soon as its lease has ended.
func TestOfficeAfterKill(t *testing.T) {
	t.Parallel()
	ctx := pagetest.Browser(t)
	i, charges := killed(t, "-admin")
	token := i.token()
	eventually(t, 5*time.Second, "the payment is of unknown outcome", func() bool { return len(i.unresolved(token)) == 1 })
	v, _ := open(ctx, t, i, looks[0])
	v.list(token, "There is 1.")
	if charges() == 0 {
		v.resolve("charged", "The provider has no such charge, so there is no order to place. There is 1.")
	}
	v.Number(`(document.querySelector("#why").value = "").length`)
	v.resolve("never charged", "Say how you know: it is kept in the log. There is 1.")
	v.Do("say something", chromedp.SetValue(chromedp.CSS("#why"), "the ledger"))
	v.resolve("never charged", "It is resolved. There is none.")
	i.do(purchase("k")).want(t, http.StatusCreated, false)
	if n := charges(); n != 1 {
		t.Errorf("%d charges", n)
	}
}
