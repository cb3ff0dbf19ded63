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
	run := demotest.Start(t, program(), "-pace", "10ms", "-tokens", "6000")
	v, complaints := pagetest.Open(ctx, t, run.URL, width, scheme)
	picture := func(what string) { v.Picture(fmt.Sprintf("llmgateway-%s-%d-%s", what, width, scheme)) }
	click := func(id string) { v.Do("press "+id, chromedp.Click(chromedp.CSS("#"+id))) }
	says := func(text string) {
		t.Helper()
		script := fmt.Sprintf(`document.querySelector("#summary").textContent.includes(%q)`, text)
		v.Do("wait for "+text, chromedp.Poll[chromedp.Void](script))
	}
	ready := func() {
		t.Helper()
		v.Do("wait for the buttons", chromedp.Poll[chromedp.Void](`!document.querySelector("button.act:disabled")`))
	}

	click("short")
	says("The answer is complete: 110 tokens were reserved")
	ready()
	picture("short")

	for hungUp := false; !hungUp; { // a busy machine may press the button after the answer
		click("long")
		v.Do("an answer begins", chromedp.Poll[chromedp.Void](`document.querySelector("#answer").textContent.length > 20`))
		v.Do("it is reserved", chromedp.Poll[chromedp.Void](`document.querySelectorAll("#key-of-search .bar .reserved")[1].offsetWidth > 0`))
		click("hangup")
		says("2,000 tokens were reserved")
		ready()
		hungUp = v.Number(`Number(document.querySelector("#summary").textContent.includes("The client hung up: "))`) == 1
	}

	click("reset")
	says("The buckets are full")
	click("rush")
	says("100 questions at once: ")
	picture("rush")
	ready()
	// On a machine that is busy, tokens come back before the last one arrives.
	if n := v.Number(`document.querySelectorAll("#tiles li.passed").length`); n < 3 || n > 6 {
		t.Errorf("of 100 questions, %d passed", n)
	} else {
		says(fmt.Sprintf("%d passed, and %d were refused before the model was asked", n, 100-n))
	}

	click("reset")
	says("The buckets are full")
	v.Do("another model", chromedp.SetValue(chromedp.CSS("#model"), "deep"))
	for range 2 {
		click("long")
		says("The model answers")
		ready()
		says("more were taken")
	}
	click("long")
	says("Refused: there are not enough tokens left.")
	v.Do("it is overdrawn", chromedp.Poll[chromedp.Void](`document.querySelector("#key-of-search .overdrawn")`))
	picture("overdrawn")
	v.Fits()
	v.Named()
	v.Readable()
	if list := complaints(); len(list) > 0 {
		t.Errorf("the page %v", list)
	}
}
