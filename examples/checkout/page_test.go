package main_test

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/cdp"
	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/network"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// requireBrowser turns a missing browser from a skipped test into a failed one when it is 1.
const requireBrowser = "LOCKKEEPER_REQUIRE_BROWSER"

// screenshots names a folder for pictures of the page.
const screenshots = "LOCKKEEPER_SCREENSHOTS"

// browser starts a headless browser with its own profile.
func browser(t *testing.T) context.Context {
	t.Helper()
	var path string
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if found, err := exec.LookPath(name); err == nil {
			path = found
			break
		}
	}
	if path == "" {
		if os.Getenv(requireBrowser) == "1" {
			t.Fatalf("no browser is installed, and %s=1", requireBrowser)
		}
		t.Skipf("no browser is installed; %s=1 makes this a failure", requireBrowser)
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.UserDataDir(t.TempDir()), chromedp.NoSandbox,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	ctx, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel = chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil { // or else each tab starts a browser
		t.Fatal(err)
	}
	return ctx
}

// visit is the page of an instance in the browser.
type visit struct {
	*testing.T
	ctx context.Context
}

func (v visit) do(what string, actions ...chromedp.Action[chromedp.Void]) {
	v.Helper()
	if err := chromedp.Do(v.ctx, actions...); err != nil {
		v.Fatalf("%s: %v", what, err)
	}
}

func (v visit) number(script string) int {
	v.Helper()
	n, err := chromedp.Run(v.ctx, chromedp.Evaluate[int](script))
	if err != nil {
		v.Fatalf("%s: %v", script, err)
	}
	return n
}

func (v visit) counter(id string) int {
	v.Helper()
	return v.number(fmt.Sprintf(`Number(document.querySelector("#%s").textContent)`, id))
}

// press presses a button and waits until the page shows its answers.
func (v visit) press(id string) {
	v.Helper()
	v.click(id)
	v.answered()
}

func (v visit) click(id string) {
	v.Helper()
	v.do("press "+id, chromedp.Click(chromedp.CSS("#"+id)))
}

func (v visit) answered() {
	v.Helper()
	v.do("wait for the answers",
		chromedp.Poll[chromedp.Void](`!document.querySelector("button:disabled") && !document.querySelector("#summary").textContent.startsWith("Sending")`))
}

func (v visit) tiles(outcome string) int {
	v.Helper()
	return v.number(fmt.Sprintf(`document.querySelectorAll("#tiles li.%s").length`, outcome))
}

// summary checks the text of the summary.
func (v visit) summary(want string) {
	v.Helper()
	got, err := chromedp.Run(v.ctx, chromedp.Evaluate[string](`document.querySelector("#summary").textContent`))
	if err != nil || got != want {
		v.Errorf("the page summary %q, %v; want %q", got, err, want)
	}
}

func TestPage(t *testing.T) {
	ctx := browser(t)
	for _, width := range []int64{360, 1280} {
		for _, scheme := range []string{"light", "dark"} {
			t.Run(fmt.Sprintf("%d-%s", width, scheme), func(t *testing.T) { testPage(ctx, t, width, scheme) })
		}
	}
}

// open loads the page of an instance in a tab of its own. The function that it returns reports what the
// page fetched from other hosts, and what it complained about.
func open(ctx context.Context, t *testing.T, i *instance, width int64, scheme string) (v visit, complaints func() []string) {
	t.Helper()
	tab, cancel := chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	v = visit{t, tab}
	var mu sync.Mutex
	var list []string
	err := chromedp.Listen(tab, func(event any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			if u, err := url.Parse(e.Request.URL); err != nil || "http://"+u.Host != i.url {
				list = append(list, "fetched "+e.Request.URL)
			}
		case *runtime.EventExceptionThrown:
			list = append(list, "threw "+e.ExceptionDetails.Text)
		case *runtime.EventConsoleAPICalled:
			list = append(list, fmt.Sprintf("logged %v", e.Type))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	send(v, network.Enable, network.EnableParams{})
	send(v, runtime.Enable, cdp.Empty{})
	send(v, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: scheme}},
	})
	v.do("load", chromedp.EmulateViewport(width, 800), chromedp.Navigate(i.url), chromedp.WaitVisible(chromedp.CSS("#pay")))
	return v, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
}

// fits checks the size of the page, and of its buttons.
func (v visit) fits() {
	v.Helper()
	if over := v.number(`document.documentElement.scrollWidth - document.documentElement.clientWidth`); over > 0 {
		v.Errorf("the page is %d pixels too wide", over)
	}
	low := v.number(`Math.min(...[...document.querySelectorAll("button")].filter((b) => b.checkVisibility()).` +
		`map((b) => b.getBoundingClientRect().height))`)
	if low < 44 {
		v.Errorf("a button is %d pixels high", low)
	}
}

func testPage(ctx context.Context, t *testing.T, width int64, scheme string) {
	i := start(t, "-rate", "20", "-burst", "60")
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
	v.picture(fmt.Sprintf("%d-%s", width, scheme))

	v.press("different")
	if c := v.counter("charges"); c != 22 || v.tiles("charged") != 20 {
		t.Errorf("20 payments: %d charges in all, %d tiles charged", c, v.tiles("charged"))
	}

	v.press("car-1")
	v.summary("1 car: 1 served.")
	v.do("the car has left", chromedp.Poll[chromedp.Void](empty))
	v.click("car-12")
	v.do("the car park fills", chromedp.Poll[chromedp.Void](filled))
	v.picture(fmt.Sprintf("%d-%s-cars", width, scheme))
	v.answered()
	if served, away := v.tiles("served"), v.tiles("away"); served != 6 || away != 6 {
		t.Errorf("12 cars: %d tiles served, %d turned away", served, away)
	}
	v.summary("12 cars: 6 served, two at a time, and 6 turned away.")
	v.do("the car park empties", chromedp.Poll[chromedp.Void](empty))
	if served, away := v.counter("served"), v.counter("away"); served != 7 || away != 6 {
		t.Errorf("13 cars: %d served, %d turned away", served, away)
	}
	v.picture(fmt.Sprintf("%d-%s-no-cars", width, scheme))

	v.press("again")
	v.summary("First let the shop die.")
	v.press("crash")
	v.press("again")
	v.summary("It ran again. The provider recognised the key and did not charge twice, and now there is an order.")
	if c := v.counter("charges"); c != 23 || v.tiles("charged") != 1 {
		t.Errorf("a payment that was interrupted: %d charges in all, %d tiles charged", c, v.tiles("charged"))
	}
	if v.number(`Number(document.querySelector("#office").checkVisibility())`) != 0 {
		t.Error("the page shows what is for operators")
	}

	v.press("flood")
	if n := v.counter("denied"); n == 0 || n != v.tiles("denied") || n+v.tiles("passed") != 100 {
		t.Errorf("100 at once: %d denied, %d tiles denied, %d passed", n, v.tiles("denied"), v.tiles("passed"))
	}
	v.picture(fmt.Sprintf("%d-%s-flood", width, scheme))

	v.press("oversale")
	if sold, over := v.tiles("sold"), v.tiles("over"); sold <= 50 || over != sold-50 || sold+v.tiles("soldout") != 200 {
		t.Errorf("a sale without the lock: %d tiles sold, %d of them too many, %d sold out", sold, over, v.tiles("soldout"))
	}
	v.summary(fmt.Sprintf("200 buyers, 50 items: %d sold. %d too many.", v.tiles("sold"), v.tiles("over")))
	v.picture(fmt.Sprintf("%d-%s-oversale", width, scheme))

	v.press("sale")
	if sold, over := v.tiles("sold"), v.tiles("over"); sold != 50 || over != 0 || v.tiles("soldout") != 150 {
		t.Errorf("a sale: %d tiles sold, %d of them too many, %d sold out", sold, over, v.tiles("soldout"))
	}
	v.summary("200 buyers, 50 items: 50 sold, and not one too many.")
	v.picture(fmt.Sprintf("%d-%s-sale", width, scheme))

	v.fits()
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

func (v visit) picture(name string) {
	v.Helper()
	dir := os.Getenv(screenshots)
	if dir == "" {
		return
	}
	png, err := chromedp.Run(v.ctx, chromedp.FullScreenshot(100))
	if err != nil {
		v.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
		v.Fatal(err)
	}
}

// send sends a command of the browser's protocol.
func send[P, R any](v visit, command cdp.Command[P, R], params P) {
	v.Helper()
	if _, err := chromedp.Call(v.ctx, command, params); err != nil {
		v.Fatalf("%T: %v", params, err)
	}
}
