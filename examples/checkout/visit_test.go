package main_test

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"testing"

	"github.com/chromedp/chromedp"

	"github.com/lockkeeper/lockkeeper/examples/internal/pagetest"
)

// look is how a visitor sees the page.
type look struct {
	width, height int64
	scheme        string
}

func (l look) String() string { return fmt.Sprintf("%dx%d-%s", l.width, l.height, l.scheme) }

var looks = []look{{1280, 800, "light"}, {1280, 800, "dark"}, {390, 844, "light"}, {390, 844, "dark"}}

// visit is the page of an instance in the browser.
type visit struct {
	pagetest.Visit
	look look
}

func open(ctx context.Context, t *testing.T, i *instance, l look) (v visit, complaints func() []string) {
	t.Helper()
	v.look = l
	v.Visit, complaints = pagetest.Open(ctx, t, i.url, l.width, l.scheme)
	v.Size(l.width, l.height)
	return v, complaints
}

func (v visit) counter(id string) int {
	v.Helper()
	return v.Number(fmt.Sprintf(`Number(document.querySelector("#%s").textContent)`, id))
}

// press presses a button, waits until the page shows its answers, and checks that the outcome can
// be seen and read where the visitor is.
func (v visit) press(id string) {
	v.Helper()
	v.click(id)
	v.answered()
	v.InView("#"+id, "#summary", "#tiles", ".counters")
	most := 1
	if v.look.width < 640 {
		most = 2
	}
	if n := v.Lines("#summary"); n > most {
		v.Errorf("what happened takes %d lines: %s", n, v.text("#summary"))
	}
	if panel := v.Number(`Math.ceil(document.querySelector(".outcome").getBoundingClientRect().height)`); v.look.width < 640 && panel > int(v.look.height)/4 {
		v.Errorf("after %s, what happened takes %d pixels of %d", id, panel, v.look.height)
	}
	v.Readable()
}

// click presses a button: by mouse in the light, by keyboard in the dark.
func (v visit) click(id string) {
	v.Helper()
	v.Number(fmt.Sprintf(`(document.querySelector("#%s").scrollIntoView({ block: "center" }), 0)`, id))
	if v.look.scheme == "light" {
		v.Do("press "+id, chromedp.Click(chromedp.CSS("#"+id)))
		return
	}
	v.Do("press "+id, chromedp.Focus(chromedp.CSS("#"+id)), chromedp.KeyEvent("\r"))
}

func (v visit) answered() {
	v.Helper()
	v.Do("wait for the answers", chromedp.Poll[chromedp.Void](
		`!document.querySelector("[aria-disabled=true]") && !document.querySelector("#summary").textContent.startsWith("Sending")`))
}

func (v visit) tiles(outcome string) int {
	v.Helper()
	return v.Number(fmt.Sprintf(`document.querySelectorAll("#tiles li.%s").length`, outcome))
}

func (v visit) text(selector string) string {
	v.Helper()
	return v.Texts(fmt.Sprintf(`[document.querySelector(%q).textContent]`, selector))[0]
}

// summary checks the text of the summary.
func (v visit) summary(want string) {
	v.Helper()
	if got := v.text("#summary"); got != want {
		v.Errorf("the page says %q; want %q", got, want)
	}
}

// refusal checks that an answer matches a pattern as a whole.
func (v visit) refusal(pattern string) {
	v.Helper()
	answers := v.Texts(`[...document.querySelectorAll("#answers code")].map((e) => e.textContent)`)
	if !slices.ContainsFunc(answers, regexp.MustCompile("^"+pattern+"$").MatchString) {
		v.Errorf("no answer is %s: %q", pattern, answers)
	}
}
