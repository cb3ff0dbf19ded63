package pagetest

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"

	"github.com/chromedp/cdproto/accessibility"
	"github.com/chromedp/chromedp"
)

// Texts returns what a script is, a list of texts.
func (v Visit) Texts(script string) []string {
	v.Helper()
	texts, err := chromedp.Run(v.Ctx, chromedp.Evaluate[[]string](script))
	if err != nil {
		v.Fatalf("%s: %v", script, err)
	}
	return texts
}

// Size gives the page a window of this size.
func (v Visit) Size(width, height int64) {
	v.Helper()
	v.Do("resize", chromedp.EmulateViewport(width, height))
}

// covered reports, of an element, what keeps it from being seen as a whole.
const covered = `((e) => {
	const r = e.getBoundingClientRect();
	if (r.top < 0 || r.left < 0 || r.bottom > innerHeight || r.right > document.documentElement.clientWidth) {
		return "is outside of the window: " + [r.left, r.top, r.right, r.bottom].map(Math.round);
	}
	return ` + hidden + `(e);
})`

// hidden reports, of an element, what hides it. A part above or below the window does not, since browsers leave the
// focus there. A link of two lines leaves the middle of its box free, so that its first line is looked at.
const hidden = `((e) => {
	if (!e.checkVisibility()) { return "is not shown"; }
	const line = e.getClientRects()[0];
	if (line.left < 0 || line.right > document.documentElement.clientWidth) { return "is beside the window"; }
	const at = document.elementFromPoint((line.left + line.right) / 2, (Math.max(line.top, 0) + Math.min(line.bottom, innerHeight)) / 2);
	return e.contains(at) ? "" : "is covered by " + (at?.id || at?.tagName);
})`

// InView checks that elements are in the window as a whole, and that nothing covers them.
func (v Visit) InView(selectors ...string) {
	v.Helper()
	for _, selector := range selectors {
		if says := v.Texts(fmt.Sprintf(`[%s(document.querySelector(%q))]`, covered, selector))[0]; says != "" {
			v.Errorf("%s %s", selector, says)
		}
	}
}

// Lines returns the number of lines that the text of an element takes.
func (v Visit) Lines(selector string) int {
	v.Helper()
	return v.Number(fmt.Sprintf(`(() => {
		const text = document.createRange();
		text.selectNodeContents(document.querySelector(%q));
		return new Set([...text.getClientRects()].map((r) => Math.round(r.top))).size;
	})()`, selector))
}

// controls are what can be operated.
const controls = `[...document.querySelectorAll("a[href], button, input, select, textarea")].filter((e) => e.checkVisibility())`

// stops are the controls that Tab reaches: all of them, but for radio buttons, of which it reaches the chosen one, or the
// first one where none is.
const stops = controls + `.filter((e, i, all) => {
	const group = all.filter((other) => e.type === "radio" && other.form === e.form && other.name === e.name);
	return e.type !== "radio" || e === (group.find((other) => other.checked) ?? group[0]);
})`

// Tabs presses Tab for each control of a page that was just opened. It checks that they get the
// focus in the order of the page, that it can be seen, and that nothing covers the control then.
func (v Visit) Tabs() {
	v.Helper()
	for n := range v.Number(stops + `.length`) {
		v.Do("press Tab", chromedp.KeyEvent("\t"))
		says := v.Texts(fmt.Sprintf(`((e) => [
			e !== %s[%d] ? "gets the focus out of its turn" : "",
			%s(e),
			getComputedStyle(e).outlineStyle === "none" ? "does not show that it has the focus" : "",
		].filter(Boolean).map((says) => (e.id || e.tagName) + " " + says))(document.activeElement)`, stops, n, hidden))
		if len(says) > 0 {
			v.Errorf("after %d times Tab: %s", n+1, strings.Join(says, ", "))
		}
	}
}

// Readable checks the contrast of all text with what is behind it, and that of the borders of
// controls, or of their ground if they have no border, which WCAG 2.2 wants to be 4.5 and 3 (1.4.3 and
// 1.4.11). Controls that are disabled do not count, nor do radio buttons, which the browser draws.
func (v Visit) Readable() {
	v.Helper()
	low := v.Texts(`(() => {
		const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
		const rgba = (color) => {
			canvas.clearRect(0, 0, 1, 1);
			canvas.fillStyle = color;
			canvas.fillRect(0, 0, 1, 1);
			return canvas.getImageData(0, 0, 1, 1).data;
		};
		const luminance = (color) => [...color].slice(0, 3).map((c) => c / 255)
			.map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
			.reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
		const behind = (e) => {
			for (; e; e = e.parentElement) {
				const color = rgba(getComputedStyle(e).backgroundColor);
				if (color[3] > 0) { return color; }
			}
			return [255, 255, 255];
		};
		const edge = (style) => parseFloat(style.borderTopWidth) > 0 ? style.borderTopColor : style.backgroundColor;
		const contrast = (a, b) => (Math.max(luminance(a), luminance(b)) + 0.05) / (Math.min(luminance(a), luminance(b)) + 0.05);
		const hasText = (e) => [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.textContent.trim());
		const shown = [...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() && !e.closest(":disabled"));
		const low = (what, e, color, ground, least) => {
			const has = contrast(rgba(color), ground);
			return has < least ? [what + " of " + e.tagName + " " + (e.id || e.className) + " has " + has.toFixed(2)] : [];
		};
		return [
			...shown.filter(hasText).flatMap((e) => low("the text", e, getComputedStyle(e).color, behind(e), 4.5)),
			...shown.filter((e) => e.matches("button:not(.primary), input:not([type=radio]), select"))
				.flatMap((e) => low("the border", e, edge(getComputedStyle(e)), behind(e.parentElement), 3)),
		];
	})()`)
	if len(low) > 0 {
		v.Errorf("too little contrast: %s", strings.Join(low, "; "))
	}
}

// Node is a part of the tree that a screen reader gets.
type Node struct{ Role, Name, Live string }

// Tree returns what a screen reader gets of the page.
func (v Visit) Tree() (nodes []Node) {
	v.Helper()
	tree, err := chromedp.Call(v.Ctx, accessibility.GetFullAXTree, accessibility.GetFullAXTreeParams{})
	if err != nil {
		v.Fatal(err)
	}
	text := func(value *accessibility.Value) (s string) {
		if value != nil {
			_ = json.Unmarshal(value.Value, &s) // numbers and the like are no texts
		}
		return s
	}
	for _, n := range tree.Nodes {
		if n.Ignored {
			continue
		}
		node := Node{Role: text(n.Role), Name: text(n.Name)}
		for _, p := range n.Properties {
			if p.Name == accessibility.PropertyNameLive {
				node.Live = text(p.Value)
			}
		}
		nodes = append(nodes, node)
	}
	return nodes
}

// Named checks that a screen reader gets every control, and a name of its own for each.
func (v Visit) Named() {
	v.Helper()
	roles := []string{"button", "link", "textbox", "combobox", "checkbox", "radio"}
	var names []string
	for _, n := range v.Tree() {
		if slices.Contains(roles, n.Role) {
			names = append(names, n.Role+" "+strings.TrimSpace(n.Name))
		}
	}
	if shown := v.Number(controls + `.length`); len(names) != shown {
		v.Errorf("a screen reader gets %d of %d controls: %q", len(names), shown, names)
	}
	slices.Sort(names)
	for i, name := range names {
		if slices.Contains(roles, strings.TrimSpace(name)) || i > 0 && name == names[i-1] {
			v.Errorf("a screen reader gets a control without a name of its own: %q", name)
		}
	}
}
