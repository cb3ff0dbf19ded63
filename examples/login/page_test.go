package main

import (
	"context"
	"fmt"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/lockkeeper/lockkeeper/examples/internal/demo/demotest"
	"github.com/lockkeeper/lockkeeper/examples/internal/pagetest"
)

func TestPage(t *testing.T) {
	t.Parallel()
	for _, look := range []struct {
		width  int64
		scheme string
	}{{360, "dark"}, {1280, "light"}} {
		t.Run(fmt.Sprintf("%d-%s", look.width, look.scheme), func(t *testing.T) {
			t.Parallel()
			testPage(pagetest.Browser(t), t, look.width, look.scheme)
		})
	}
}

func testPage(ctx context.Context, t *testing.T, width int64, scheme string) {
	run := demotest.Start(t, program())
	v, complaints := pagetest.Open(ctx, t, run.URL, width, scheme)
	picture := func(what string) { v.Picture(fmt.Sprintf("login-%s-%d-%s", what, width, scheme)) }
	click := func(id string) { v.Do("press "+id, chromedp.Click(chromedp.CSS("#"+id))) }
	says := func(text string) { // a regular expression
		t.Helper()
		script := fmt.Sprintf(`RegExp(%q).test(document.querySelector("#summary").textContent)`, text)
		v.Do("wait for "+text, chromedp.Poll[chromedp.Void](script))
	}
	logIn := func(password string) {
		t.Helper()
		v.Do("log in", chromedp.SetValue(chromedp.CSS("#password"), password), chromedp.Click(chromedp.CSS("#form button")))
	}

	logIn("guess")
	says("That counts.")
	click("reset")
	says("are forgotten")
	click("one")
	says("100 wrong passwords at once: 10 were tried, and 90 refused")
	v.Do("it is held", chromedp.Poll[chromedp.Void](`document.querySelector("[data-limit=pair]").textContent.includes("held for")`))
	picture("guess")
	logIn("open sesame")
	says("Refused, and the password was not looked at")

	v.Do("at home", chromedp.SetValue(chromedp.CSS("#address"), "198.51.100.7"))
	logIn("open sesame")
	says("You are in.")
	click("many")
	says("100 wrong passwords at once: 4. were tried") // 10 of the account's 50 were used before; one is back after 72 s
	logIn("open sesame")
	says("You are in.")
	v.Do("it is known", chromedp.WaitVisible(chromedp.CSS("[data-limit=device]")))
	picture("known")
	click("forget")
	says("not known any more")
	logIn("open sesame")
	says("Refused, and the password was not looked at")
	v.Do("it is not known", chromedp.WaitVisible(chromedp.CSS("[data-limit=account]")))
	picture("locked-out")
	v.Fits()
	v.Named()
	v.Readable()
	if list := complaints(); len(list) > 0 {
		t.Errorf("the page %v", list)
	}
}
