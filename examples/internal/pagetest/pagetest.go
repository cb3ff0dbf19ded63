// Package pagetest looks at the pages of the examples in a headless browser.
package pagetest

import (
	"context"
	"fmt"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
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

// Screenshots is the environment variable that names a folder for pictures of the page.
const Screenshots = "LOCKKEEPER_SCREENSHOTS"

// Browser returns a headless browser with cookies of its own, which ends with the test. Tests that
// run side by side share its process, up to three at a time: each of them keeps a core busy. It
// skips with -short.
func Browser(t *testing.T) context.Context {
	t.Helper()
	if testing.Short() {
		t.Skip("a page keeps a core busy")
	}
	path := program(t)
	seats <- struct{}{}
	t.Cleanup(func() { <-seats })
	browser, err := shared.use(path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(shared.leave)
	ctx, cancel := chromedp.NewContext(browser, chromedp.WithNewBrowserContext())
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	if err := chromedp.Do(ctx); err != nil { // or else each tab has cookies of its own
		t.Fatal(err)
	}
	return ctx
}

// program returns the path of a browser.
func program(t *testing.T) string {
	t.Helper()
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return path
		}
	}
	if os.Getenv(requireBrowser) == "1" {
		t.Fatalf("no browser is installed, and %s=1", requireBrowser)
	}
	t.Skipf("no browser is installed; %s=1 makes this a failure", requireBrowser)
	return ""
}

var (
	seats  = make(chan struct{}, 3)
	shared process
)

// process is a browser that runs while tests use it.
type process struct {
	mu    sync.Mutex
	users int
	ctx   context.Context
	end   func()
}

// use returns the browser, which it starts for the first user.
func (p *process) use(path string) (context.Context, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users == 0 {
		if err := p.start(path); err != nil {
			return nil, err
		}
	}
	p.users++
	return p.ctx, nil
}

func (p *process) start(path string) error {
	dir, err := os.MkdirTemp("", "pagetest")
	if err != nil {
		return err
	}
	options := append(chromedp.DefaultExecAllocatorOptions[:],
		chromedp.ExecPath(path), chromedp.UserDataDir(dir), chromedp.NoSandbox,
		chromedp.Flag("disable-quic", true), chromedp.Flag("disable-component-update", true))
	allocator, stop := chromedp.NewExecAllocator(context.Background(), options...)
	ctx, quit := chromedp.NewContext(allocator)
	p.ctx, p.end = ctx, func() {
		quit()
		stop()
		_ = os.RemoveAll(dir)
	}
	if err := chromedp.Do(ctx); err != nil {
		p.end()
		return err
	}
	return nil
}

// leave ends the browser after the last user.
func (p *process) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.users--; p.users == 0 {
		p.end()
	}
}

// Visit is a page in the browser.
type Visit struct {
	*testing.T
	Ctx context.Context
}

// Do makes the browser do something.
func (v Visit) Do(what string, actions ...chromedp.Action[chromedp.Void]) {
	v.Helper()
	if err := chromedp.Do(v.Ctx, actions...); err != nil {
		v.Fatalf("%s: %v", what, err)
	}
}

// Number returns what a script is.
func (v Visit) Number(script string) int {
	v.Helper()
	n, err := chromedp.Run(v.Ctx, chromedp.Evaluate[int](script))
	if err != nil {
		v.Fatalf("%s: %v", script, err)
	}
	return n
}

// Open loads the page at a URL in a tab of its own. The function that it returns reports what the
// page fetched from other hosts, and what it complained about.
func Open(ctx context.Context, t *testing.T, page string, width int64, scheme string) (v Visit, complaints func() []string) {
	t.Helper()
	tab, cancel := chromedp.NewContext(ctx)
	t.Cleanup(cancel)
	v = Visit{t, tab}
	var mu sync.Mutex
	var list []string
	err := chromedp.Listen(tab, func(event any) {
		mu.Lock()
		defer mu.Unlock()
		switch e := event.(type) {
		case *network.EventRequestWillBeSent:
			if u, err := url.Parse(e.Request.URL); err != nil || "http://"+u.Host != strings.TrimSuffix(page, "/") {
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
	send(v, emulation.SetFocusEmulationEnabled, emulation.SetFocusEmulationEnabledParams{Enabled: true}) // beside other tabs
	v.Scheme(scheme)
	v.Do("load", chromedp.EmulateViewport(width, 800), chromedp.Navigate(page), chromedp.WaitVisible(chromedp.CSS("main")))
	return v, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return slices.Clone(list)
	}
}

// Scheme shows the page in the "light" or in the "dark" colours.
func (v Visit) Scheme(name string) {
	v.Helper()
	send(v, emulation.SetEmulatedMedia, emulation.SetEmulatedMediaParams{
		Features: []*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: name}},
	})
}

// WithoutScripts keeps the scripts of the pages that are opened from now on from running.
func (v Visit) WithoutScripts() {
	v.Helper()
	send(v, emulation.SetScriptExecutionDisabled, emulation.SetScriptExecutionDisabledParams{Value: true})
}

// Fits checks the size of the page, and of its buttons.
func (v Visit) Fits() {
	v.Helper()
	if over := v.Number(`document.documentElement.scrollWidth - document.documentElement.clientWidth`); over > 0 {
		v.Errorf("the page is %d pixels too wide: %q", over, v.Texts(`[...document.querySelectorAll("body *")]
			.filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth)
			.map((e) => e.id || e.className || e.tagName)`))
	}
	low := v.Number(`Math.floor(Math.min(44, ...[...document.querySelectorAll("button")].filter((b) => b.checkVisibility()).` +
		`map((b) => b.getBoundingClientRect().height)))`)
	if low < 44 {
		v.Errorf("a button is %d pixels high", low)
	}
}

// Picture takes a picture of the page, if a folder for them is named.
func (v Visit) Picture(name string) {
	v.Helper()
	v.save(name, chromedp.FullScreenshot(100))
}

// View takes a picture of what is in the window, if a folder for them is named.
func (v Visit) View(name string) {
	v.Helper()
	v.save(name, chromedp.CaptureScreenshot())
}

func (v Visit) save(name string, picture chromedp.Action[[]byte]) {
	v.Helper()
	dir := os.Getenv(Screenshots)
	if dir == "" {
		return
	}
	png, err := chromedp.Run(v.Ctx, picture)
	if err != nil {
		v.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, name+".png"), png, 0o600); err != nil {
		v.Fatal(err)
	}
}

// send sends a command of the browser's protocol.
func send[P, R any](v Visit, command cdp.Command[P, R], params P) {
	v.Helper()
	if _, err := chromedp.Call(v.Ctx, command, params); err != nil {
		v.Fatalf("%T: %v", params, err)
	}
}
