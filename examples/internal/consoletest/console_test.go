// Package consoletest tests the pages of the console in a browser.
package consoletest

import (
	"context"
	"flag"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"regexp"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/chromedp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/examples/internal/pagetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/nethttp/console"
)

// The size of the fleet.
const (
	processes  = 20
	mechanisms = 200
	locks      = 10_000
	unresolved = 1_000
)

// hostile is a key, and the label of a holder.
const hostile = "<script>alert(1)</script> \"quoted\" \u202eright to left\u202c \x00\x01 😀 "

const hostileName = `eu/orders?<b>&"'%2e~;`

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// The names and keys of what fill makes.
var (
	long   = strings.Repeat("long-name-", 12)
	id     = presence.KeyHash(hostile + strings.Repeat("k", 200))
	buried = presence.KeyHash(hostile + strings.Repeat("k", 200) + "b")
)

// fleet starts the processes of a fleet, and returns the store of one of them.
func fleet(t *testing.T) store.Store {
	t.Helper()
	slog.SetDefault(slog.New(slog.DiscardHandler))
	server := redistest.Start(t)
	var stores []store.Store
	for i := range processes {
		st, err := redisstore.New(server.Client(), redisstore.WithTimeout(5*time.Second))
		must(t, err)
		t.Cleanup(func() { _ = st.Close() })
		stores = append(stores, st)
		if i > 0 { // the console calls it for the first one
			_, err = presence.Start(st, presence.Service(fmt.Sprintf("service-%d", i%4)))
			must(t, err)
		}
	}
	ctx := t.Context()
	for i := range mechanisms {
		l, err := tokenbucket.New(stores[i%processes], fmt.Sprintf("limit-%03d", i), tokenbucket.PerMinute(5))
		must(t, err)
		t.Cleanup(func() { _ = l.Close() })
		for range i % 12 {
			_, err := l.Allow(ctx, fmt.Sprintf("%s%d", hostile, i%3))
			must(t, err)
		}
	}
	for _, name := range []string{"orders", hostileName, long} {
		fill(t, stores[0], name)
	}
	locker, err := lock.New(stores[0], "many", lock.WithTTL(10*time.Minute))
	must(t, err)
	together(locks, func(i int) {
		if _, err := locker.Lock(ctx, fmt.Sprint("key", i)); err != nil {
			t.Error(err)
		}
	})
	orders, err := guard.New(stores[0], "many")
	must(t, err)
	together(unresolved, func(i int) {
		a, _, err := orders.Begin(ctx, guard.Operation{Key: fmt.Sprint("key", i)})
		if err == nil {
			err = a.CompleteUnknown(ctx)
		}
		if err != nil {
			t.Error(err)
		}
	})
	return stores[0]
}

func together(n int, do func(i int)) {
	var wg sync.WaitGroup
	for part := range 32 {
		wg.Go(func() {
			for i := part; i < n; i += 32 {
				do(i)
			}
		})
	}
	wg.Wait()
}

// fill makes a mechanism of each kind, and something in each of them.
func fill(t *testing.T, st store.Store, name string) {
	t.Helper()
	ctx := t.Context()
	key := hostile + strings.Repeat("k", 200)
	label := hostile[:60] + strings.Repeat("h", 100)
	locker, err := lock.New(st, name, lock.WithHolder(label), lock.WithTTL(10*time.Minute))
	must(t, err)
	_, err = locker.Lock(ctx, key)
	must(t, err)
	for range 3 {
		waiting, leave := context.WithCancel(ctx)
		t.Cleanup(leave)
		go func() { _, _ = locker.Lock(waiting, key) }()
	}
	permits, err := semaphore.New(st, name, 3, semaphore.WithHolder(label), semaphore.WithTTL(10*time.Minute))
	must(t, err)
	for range 2 {
		_, err = permits.Acquire(ctx, key)
		must(t, err)
	}
	limiter, err := tokenbucket.New(st, name, tokenbucket.Limits{tokenbucket.PerSecond(5), tokenbucket.PerDay(1000).Named("daily")})
	must(t, err)
	for range 8 {
		_, err := limiter.Allow(ctx, key)
		must(t, err)
	}
	orders, err := guard.New(st, name, guard.WithHolder(label))
	must(t, err)
	a, _, err := orders.Begin(ctx, guard.Operation{Key: key})
	must(t, err)
	must(t, a.CompleteUnknown(ctx))
	timers, err := delay.New(st, name, delay.WithHolder(label))
	must(t, err)
	_, err = timers.Put(ctx, key+"b", nil, 0)
	must(t, err)
	task, err := timers.Take(ctx)
	must(t, err)
	must(t, task.Bury(ctx, "no such order: "+hostile))
	_, err = timers.Put(ctx, key, nil, time.Hour)
	must(t, err)
	t.Cleanup(func() { runtime.KeepAlive([]any{locker, permits, limiter, orders, timers}) }) // else they leave the pages
}

// followed is rules that are stale, with texts of an attacker.
type followed struct{}

func (followed) Inspect() inspect.Rules {
	wide := hostile + strings.Repeat("w", 300)
	r := inspect.Rules{
		Source: "store", Name: long + hostileName, State: "stale", Since: time.Now(), Version: strings.Repeat("v", 64), Revision: math.MaxInt64,
		Hash: "0123456789abcdef", At: time.Now(), Document: []byte("limits:\n  " + wide + "\n\tx\n"), Refused: []byte(wide),
	}
	for i := range 120 {
		r.Errors = append(r.Errors, inspect.RulesError{Line: i + 1, Column: 1_000_000, Path: "limits." + wide, Text: wide})
	}
	return r
}

func (followed) InspectHistory(context.Context) (all []inspect.RulesVersion, err error) {
	for i := range 20 {
		all = append(all, inspect.RulesVersion{
			Number: math.MaxInt64 - int64(i), Hash: "0123456789abcdef", Bytes: 1 << 20, By: hostile + strings.Repeat("b", 150),
			Why: hostile + strings.Repeat("y", 400), At: time.Now(),
		})
	}
	return all, nil
}

// look is a size of a window, and a scheme of colours.
type look struct {
	width  int64
	scheme string
}

func (l look) String() string { return fmt.Sprintf("%d-%s", l.width, l.scheme) }

// Every page and every action fits, can be read, and is named for screen readers, at two widths, in the
// light and in the dark, whatever the texts are that it shows.
func TestPages(t *testing.T) {
	ctx := pagetest.Browser(t)
	c := console.New(fleet(t), console.AllowAnyone(), console.ShowKeys(), console.Service("shop"), console.Link("Grafana", "https://grafana.example/d/lockkeeper"),
		console.Rules(followed{}))
	t.Cleanup(func() { _ = c.Close() })
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	quick(t, server.URL)
	for _, l := range []look{{1280, "light"}, {390, "dark"}} {
		opened, complaints := pagetest.Open(ctx, t, server.URL+"/", l.width, l.scheme)
		v := visit{opened, server.URL + "/"}
		operation, release := v.link("operations/orders", "/resolve"), v.link("locks/orders", "/release")
		for name, path := range map[string]string{
			"now": "", "monitor": "monitor", "monitor-search": "monitor?q=orders", "mechanism": "monitor/rate_limit/orders",
			"locks": "locks", "locks-many": "locks/many", "locks-orders": "locks/orders", "lock": "locks/orders/" + id,
			"release": release, "permits": "permits/orders", "limits": "limits", "limit": "limits/orders",
			"operations-many": "operations/many", "operations": "operations/orders", "resolve": operation, "tasks": "tasks/orders", "task": "tasks/orders/" + buried,
			"revive": "tasks/orders/" + buried + "/revive", "rules": "rules", "processes": "processes", "log": "log", "error": "nothing",
			"hostile": "locks/eu~2forders~3f~3cb~3e~26~22~27~252e~7e~3b",
		} {
			v.open(path)
			v.fits(l, name)
		}
		if l.width == 1280 {
			v.releaseByKeyboard()
		} else {
			v.actWithoutScripts(long)
		}
		for _, says := range complaints() {
			if !strings.HasPrefix(says, "fetched "+server.URL) {
				t.Errorf("%s: %s", l, says)
			}
		}
	}
}

// The actions are those of every store; those of memory and Redis are tested elsewhere, too.
func TestActionsOnPostgreSQL(t *testing.T) {
	ctx := pagetest.Browser(t)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	pool, err := pgxpool.New(t.Context(), postgrestest.Start(t).DSN())
	must(t, err)
	t.Cleanup(pool.Close)
	must(t, pgstore.Migrate(t.Context(), pool))
	st, err := pgstore.NewFromPool(pool, pgstore.WithTimeout(5*time.Second))
	must(t, err)
	t.Cleanup(func() { _ = st.Close() })
	fill(t, st, long)
	c := console.New(st, console.AllowAnyone(), console.ShowKeys())
	t.Cleanup(func() { _ = c.Close() })
	server := httptest.NewServer(c)
	t.Cleanup(server.Close)
	opened, complaints := pagetest.Open(ctx, t, server.URL+"/", 1280, "dark")
	visit{opened, server.URL + "/"}.actWithoutScripts(long)
	for _, says := range complaints() {
		t.Error(says)
	}
}

// quick checks that the first byte of a page is there in 50 ms, of the quickest of a few tries: the
// machine may be busy.
func quick(t *testing.T, root string) {
	t.Helper()
	const bound, tries = 50 * time.Millisecond, 10
	for _, path := range []string{
		"", "monitor", "monitor/rate_limit/orders", "locks", "locks/many", "locks/orders", "permits/orders", "limits", "limits/orders",
		"operations/many", "tasks/orders", "rules", "processes", "log",
	} {
		best := time.Hour
		for range tries {
			began := time.Now()
			resp, err := http.Get(root + "/" + path)
			must(t, err)
			best = min(best, time.Since(began)) // the header comes with the first byte
			_ = resp.Body.Close()
		}
		t.Logf("%s: %v", path, best)
		if best > bound && !testpace.Raced {
			t.Errorf("%s: the first byte is there in %v at best, at most %v is allowed", path, best, bound)
		}
	}
}

var update = flag.Bool("update", false, "take the pictures of the page Monitor in docs/images anew, which takes two minutes")

// The pictures are of a load that varies. They are taken with -update only.
func TestPictures(t *testing.T) {
	if !*update {
		t.Skip("takes pictures, and tests nothing")
	}
	ctx := pagetest.Browser(t)
	slog.SetDefault(slog.New(slog.DiscardHandler))
	st := memstore.New()
	defer st.Close()
	c := console.New(st, console.AllowAnyone(), console.Service("checkout"), console.Link("Grafana", "https://grafana.example"))
	defer c.Close()
	api, err := tokenbucket.New(st, "api", tokenbucket.PerSecond(40).Burst(60))
	must(t, err)
	stock, err := lock.New(st, "stock")
	must(t, err)
	reports, err := semaphore.New(st, "reports", 4)
	must(t, err)
	orders, err := guard.New(st, "checkout")
	must(t, err)
	began := time.Now()
	var callers sync.WaitGroup
	for range 12 {
		callers.Go(func() {
			for i := 0; time.Since(began) < 2*time.Minute; i++ {
				pause := 150 + 140*math.Sin(time.Since(began).Seconds()/9)
				<-time.After(time.Duration(pause*rand.Float64()) * time.Millisecond)
				key := fmt.Sprint("customer-", rand.IntN(3))
				if d, err := api.Allow(t.Context(), key); err != nil || !d.Allowed {
					continue
				}
				_ = stock.Do(t.Context(), "tea", func(context.Context) error {
					<-time.After(time.Duration(rand.IntN(8)) * time.Millisecond)
					return nil
				})
				_ = reports.Do(t.Context(), "all", func(context.Context) error {
					<-time.After(time.Duration(rand.IntN(60)) * time.Millisecond)
					return nil
				})
				a, _, err := orders.Begin(t.Context(), guard.Operation{Scope: key, Key: fmt.Sprint(began, rand.IntN(5000))})
				if err == nil && a != nil {
					_ = a.Complete(t.Context(), guard.Result{Status: 201})
				}
			}
		})
	}
	server := httptest.NewServer(c)
	defer server.Close()
	<-time.After(100 * time.Second)
	t.Setenv(pagetest.Screenshots, "../../../docs/images")
	for _, l := range []look{{1280, "light"}, {390, "dark"}} {
		opened, _ := pagetest.Open(ctx, t, server.URL+"/monitor", l.width, l.scheme)
		opened.View(fmt.Sprintf("console-monitor-%d", l.width))
	}
	callers.Wait()
}

// visit is a page of the console.
type visit struct {
	pagetest.Visit
	root string
}

func (v visit) open(path string) {
	v.Helper()
	v.Do("open "+path, chromedp.Navigate(v.root+path), chromedp.WaitVisible(chromedp.CSS("main")))
}

// link returns the first link of a page that has a text in its address.
func (v visit) link(path, text string) string {
	v.Helper()
	v.open(path)
	links := v.Texts(fmt.Sprintf(`[...document.querySelectorAll("main a")].map((a) => a.href).filter((to) => to.includes(%q))`, text))
	if len(links) == 0 {
		v.Fatalf("%s has no link to %s", path, text)
	}
	return strings.TrimPrefix(links[0], v.root)
}

// releaseByKeyboard ends a hold with keys alone, from the first page on.
func (v visit) releaseByKeyboard() {
	v.Helper()
	v.open("")
	for _, link := range []string{`/locks$`, `/locks/orders$`, `/locks/orders/[^/]*$`, `/release[?]`} {
		v.tabTo(fmt.Sprintf(`e.matches("a") && e.href.match(%q)`, link))
		v.Do("press Enter", chromedp.KeyEvent("\r"))
		testpace.Eventually(v.T, 10*time.Second, "the link is followed: "+link, func() bool {
			to, err := chromedp.Run(v.Ctx, chromedp.Evaluate[string](`document.querySelector("main") && location.href`))
			return err == nil && regexp.MustCompile(link).MatchString(to) // an error while the page changes
		})
	}
	v.tabTo(`e.name === "why"`)
	v.Do("type", chromedp.KeyEvent("it hangs"))
	v.tabTo(`e.matches("main button")`)
	v.Do("press Enter", chromedp.KeyEvent("\r"))
	v.done()
}

// tabTo presses Tab until an element e has the focus.
func (v visit) tabTo(condition string) {
	v.Helper()
	for range 200 {
		v.Do("press Tab", chromedp.KeyEvent("\t"))
		if v.Number(`((e) => +!!(`+condition+`))(document.activeElement)`) == 1 {
			return
		}
	}
	v.Fatalf("no Tab reaches %s", condition)
}

// actWithoutScripts takes every action on the mechanisms of a name in a browser that runs no script.
func (v visit) actWithoutScripts(name string) {
	v.Helper()
	v.WithoutScripts()
	v.open("monitor") // which shows itself without a script, too
	confirm := func(actions ...chromedp.Action[chromedp.Void]) {
		v.Helper()
		actions = append(actions, chromedp.SendKeys(chromedp.CSS(`[name=why]`), "it hangs"), chromedp.Click(chromedp.CSS("button.act")))
		v.Do("fill in and send", actions...)
		v.done()
	}
	for _, kind := range []string{"locks", "permits"} {
		v.open(v.link(kind+"/"+name, "/release"))
		confirm()
	}
	for _, action := range []string{"reset", "hold"} {
		v.open("limits/" + name)
		v.Do("show a key", chromedp.SendKeys(chromedp.CSS(`main [name=key]`), "k"), chromedp.Submit(chromedp.CSS(`main [name=key]`)),
			chromedp.WaitVisible(chromedp.CSS(".deeds")))
		v.Do(action, chromedp.Click(chromedp.CSS(`form[action$="/`+action+`"] button`)), chromedp.WaitVisible(chromedp.CSS(`[name=why]`)))
		confirm()
	}
	v.open(v.link("operations/"+name, "/resolve"))
	confirm(chromedp.Click(chromedp.CSS(`[value="never happened"]`)))
	for _, action := range []string{"revive", "cancel"} { // of the task that is buried, and then waits
		v.open("tasks/" + name + "/" + buried + "/" + action)
		confirm()
	}
}

func (v visit) done() {
	v.Helper()
	v.Do("see the outcome", chromedp.WaitVisible(chromedp.CSS(".answer")))
	if says := v.Texts(`[document.querySelector(".answer").textContent]`)[0]; !strings.HasPrefix(says, "Done, and in the log.") {
		v.Errorf("it says %q", says)
	}
}

// other is the other scheme of colours.
var other = map[string]string{"light": "dark", "dark": "light"}

// fits checks that a page fits its window, and can be read and operated, also in the other scheme.
func (v visit) fits(l look, name string) {
	v.Helper()
	v.Run(l.String()+"-"+name, func(t *testing.T) {
		v := visit{pagetest.Visit{T: t, Ctx: v.Ctx}, v.root}
		if over := v.Number(`document.documentElement.scrollWidth - document.documentElement.clientWidth`); over > 0 {
			v.Errorf("the page is %d pixels too wide: %q", over, v.Texts(`[...document.querySelectorAll("body *")]
				.filter((e) => e.getBoundingClientRect().right > document.documentElement.clientWidth)
				.map((e) => e.id || e.className || e.tagName).slice(0, 10)`))
		}
		clipped := v.Texts(`[...document.querySelectorAll("main *")]
			.filter((e) => e.checkVisibility() && !e.closest("svg, .hidden, thead") && e.scrollWidth > e.clientWidth + 1 && e.clientWidth > 1
				&& getComputedStyle(e).overflowX !== "visible" && !e.matches("input, select, textarea"))
			.map((e) => e.tagName + " " + e.className + " " + e.textContent.slice(0, 40))`)
		if len(clipped) > 0 {
			v.Errorf("clipped: %q", clipped)
		}
		if dangerous := v.Number(`document.querySelectorAll("main script").length`); dangerous > 0 {
			v.Errorf("a script of a text")
		}
		if headings := v.Number(`document.querySelectorAll("h1").length`); headings != 1 {
			v.Errorf("%d headings of the page", headings)
		}
		if !strings.HasSuffix(name, "-many") { // its 500 rows are alike
			if name != "monitor" { // likewise
				v.Tabs()
			}
			v.Named()
			v.Readable()
			v.Scheme(other[l.scheme])
			v.Readable()
			v.Scheme(l.scheme)
		}
		v.Picture(l.String() + "-" + name)
	})
}
