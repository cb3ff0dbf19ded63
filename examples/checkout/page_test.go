package main_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/lockkeeper/lockkeeper/examples/internal/pagetest"
)

// visit is the page of an instance in the browser.
type visit struct{ pagetest.Visit }

func open(ctx context.Context, t *testing.T, i *instance, width int64, scheme string) (v visit, complaints func() []string) {
	t.Helper()
	v.Visit, complaints = pagetest.Open(ctx, t, i.url, width, scheme)
	return v, complaints
}

func (v visit) counter(id string) int {
	v.Helper()
	return v.Number(fmt.Sprintf(`Number(document.querySelector("#%s").textContent)`, id))
}

// press presses a button and waits until the page shows its answers.
func (v visit) press(id string) {
	v.Helper()
	v.click(id)
	v.answered()
}

func (v visit) click(id string) {
	v.Helper()
	v.Do("press "+id, chromedp.Click(chromedp.CSS("#"+id)))
}

func (v visit) answered() {
	v.Helper()
	v.Do("wait for the answers",
		chromedp.Poll[chromedp.Void](`!document.querySelector("button:disabled") && !document.querySelector("#summary").textContent.startsWith("Sending")`))
}

func (v visit) tiles(outcome string) int {
	v.Helper()
	return v.Number(fmt.Sprintf(`document.querySelectorAll("#tiles li.%s").length`, outcome))
}

// summary checks the text of the summary.
func (v visit) summary(want string) {
	v.Helper()
	got, err := chromedp.Run(v.Ctx, chromedp.Evaluate[string](`document.querySelector("#summary").textContent`))
	if err != nil || got != want {
		v.Errorf("the page summary %q, %v; want %q", got, err, want)
	}
}

func TestPage(t *testing.T) {
	ctx := pagetest.Browser(t)
	for _, width := range []int64{360, 1280} {
		for _, scheme := range []string{"light", "dark"} {
			t.Run(fmt.Sprintf("%d-%s", width, scheme), func(t *testing.T) { testPage(ctx, t, width, scheme) })
		}
	}
	t.Run("postgres", func(t *testing.T) { testPage(ctx, t, 1280, "light", shared["postgres"](t)...) })
}

func testPage(ctx context.Context, t *testing.T, width int64, scheme string, args ...string) {
	i := start(t, append(args, "-rate", "20", "-burst", "60")...)
	v, complaints := open(ctx, t, i, width, scheme)

	v.press("pay")
	if c, r := v.counter("charges"), v.counter("requests"); c != 1 || r != 1 || v.tiles("charged") != 1 {
		t.Errorf("one payment: %d charges for %d requests", c, r)
	}

	v.press("same")
	if c := v.counter("charges"); c != 2 || v.tiles("charged") != 1 || v.tiles("replayed") != 19 {
		t.Errorf("20 payments with one key: %d charges in all, %d tiles charged, %d replayed", c, v.tiles("charged"), v.tiles("replayed"))
	}
	if n := v.counter("replayed"); n != 19 {
		t.Errorf("%d replays", n)
	}
	v.Picture(fmt.Sprintf("%d-%s", width, scheme))

	v.press("different")
	if c := v.counter("charges"); c != 22 || v.tiles("charged") != 20 {
		t.Errorf("20 payments: %d charges in all, %d tiles charged", c, v.tiles("charged"))
	}

	v.press("car-1")
	v.summary("1 car: 1 served.")
	v.Do("the car has left", chromedp.Poll[chromedp.Void](empty))
	v.click("car-12")
	v.Do("the car park fills", chromedp.Poll[chromedp.Void](filled))
	v.Picture(fmt.Sprintf("%d-%s-cars", width, scheme))
	v.answered()
	if served, away := v.tiles("served"), v.tiles("away"); served != 6 || away != 6 {
		t.Errorf("12 cars: %d tiles served, %d turned away", served, away)
	}
	v.summary("12 cars: 6 served, two at a time, and 6 turned away.")
	v.Do("the car park empties", chromedp.Poll[chromedp.Void](empty))
	if served, away := v.counter("served"), v.counter("away"); served != 7 || away != 6 {
		t.Errorf("13 cars: %d served, %d turned away", served, away)
	}
	v.Picture(fmt.Sprintf("%d-%s-no-cars", width, scheme))

	v.press("again")
	v.summary("First let the shop die.")
	v.press("crash")
	v.press("again")
	v.summary("It ran again. The provider recognised the key and did not charge twice, and now there is an order.")
	if c := v.counter("charges"); c != 23 || v.tiles("charged") != 1 {
		t.Errorf("a payment that was interrupted: %d charges in all, %d tiles charged", c, v.tiles("charged"))
	}
	if v.Number(`Number(document.querySelector("#office").checkVisibility())`) != 0 {
		t.Error("the page shows what is for operators")
	}

	v.press("flood")
	if n := v.counter("denied"); n == 0 || n != v.tiles("denied") || n+v.tiles("passed") != 100 {
		t.Errorf("100 at once: %d denied, %d tiles denied, %d passed", n, v.tiles("denied"), v.tiles("passed"))
	}
	v.Picture(fmt.Sprintf("%d-%s-flood", width, scheme))

	v.press("oversale")
	if sold, over := v.tiles("sold"), v.tiles("over"); sold <= 50 || over != sold-50 || sold+v.tiles("soldout") != 200 {
		t.Errorf("a sale without the lock: %d tiles sold, %d of them too many, %d sold out", sold, over, v.tiles("soldout"))
	}
	v.summary(fmt.Sprintf("200 buyers, 50 items: %d sold. %d too many.", v.tiles("sold"), v.tiles("over")))
	v.Picture(fmt.Sprintf("%d-%s-oversale", width, scheme))

	v.press("sale")
	if sold, over := v.tiles("sold"), v.tiles("over"); sold != 50 || over != 0 || v.tiles("soldout") != 150 {
		t.Errorf("a sale: %d tiles sold, %d of them too many, %d sold out", sold, over, v.tiles("soldout"))
	}
	v.summary("200 buyers, 50 items: 50 sold, and not one too many.")
	v.Picture(fmt.Sprintf("%d-%s-sale", width, scheme))

	v.Fits()
	if list := complaints(); len(list) > 0 {
		t.Errorf("the page %v", list)
	}
}

// Scripts that look at the car park.
const (
	filled = `document.querySelectorAll("#places li.taken").length === 2 && document.querySelectorAll("#lane li.taken").length > 0`
	empty  = `document.querySelectorAll("#places li").length === 2 && document.querySelectorAll("#lane li").length === 4 && ` +
		`!document.querySelector(".lot li.taken")`
)
