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
	}{{390, "dark"}, {1280, "light"}} {
		t.Run(fmt.Sprintf("%d-%s", look.width, look.scheme), func(t *testing.T) {
			t.Parallel()
			testPage(pagetest.Browser(t), t, look.width, look.scheme)
		})
	}
}

func testPage(ctx context.Context, t *testing.T, width int64, scheme string) {
	run := demotest.Start(t, patient(), "-phase", "2s")
	v, complaints := pagetest.Open(ctx, t, run.URL, width, scheme)
	click := func(id string) { v.Do("press "+id, chromedp.Click(chromedp.CSS("#"+id))) }
	until := func(what, script string) {
		t.Helper()
		v.Do("wait until "+what, chromedp.Poll[chromedp.Void](script))
	}
	v.Tabs()

	click("none")
	until("it plays", `document.querySelector("#summary").textContent.startsWith("Phase 1, no gate")`)
	until("a second is shown", `document.querySelectorAll("#chart .bar").length === 1`)
	click("rules") // in place of it
	until("the file is shown", `document.querySelector("#text").checkVisibility() && document.querySelector("#text").textContent.includes("version: 1")`)
	until("it is edited", `document.querySelector("#text").textContent.includes("version: 2")`)
	until("both phases have ended", `document.querySelectorAll("#phases tr").length === 2`)
	until("it says so", `document.querySelector("#summary").textContent.startsWith("The load has ended. With rules, edited, ")`)
	if bars := v.Number(`document.querySelectorAll("#chart .bar").length`); bars != 4 {
		t.Errorf("%d seconds are drawn", bars)
	}
	if high := v.Number(`[...document.querySelectorAll("#chart .bar .orders")].filter((e) => e.getBoundingClientRect().height > 10).length`); high == 0 {
		t.Error("no bar can be seen")
	}
	label := v.Texts(`[document.querySelector("#chart").getAttribute("aria-label")]`)[0]
	var second, orders int
	if n, _ := fmt.Sscanf(label, "rules, edited, second %d: %d orders and", &second, &orders); n != 2 || second != 2 {
		t.Errorf("a screen reader gets %q of the chart", label)
	}
	v.Picture(fmt.Sprintf("overload-%d-%s", width, scheme))
	v.Fits()
	v.Named()
	v.Readable()
	if list := complaints(); len(list) > 0 {
		t.Errorf("the page %v", list)
	}
}
