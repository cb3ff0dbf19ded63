package doccheck

import (
	"strings"
	"testing"
)

// english is a page, and version the name that "git hash-object" gives to it.
const (
	english = "# Pay\n\nEnglish · [简体中文](zh/pay.md)\n\nCall `Pay` of the [shop](shop.md#pay),\nonce: [below](#limits).\n\n" +
		"```go\npay() // once\n```\n\n## Limits\n\n- **All** of `A`\n- more\n\n| Name | For |\n|---|---|\n| Redis | `a\\|b` |\n<!-- 1 = a\n2 = b\n3 = c -->\n"
	version = "269306f55f82"
	chinese = "# 支付\n\n> [English](../pay.md) · 译自 `" + version + "`。\n\n调用一次[商店](../shop.md#pay)的 `Pay`：[见下文](#限额)。\n\n" +
		"```go\npay() // once\n```\n\n## 限额\n\n- `A` 的**全部**\n- 其他\n\n| 名称 | 用途 |\n|---|---|\n| Redis | `a\\|b` |\n<!-- 1 = a\n2 = b\n3 = c -->\n"
)

// translations returns the findings in a Chinese page.
func translations(t *testing.T, page string) []string {
	t.Helper()
	return check(t, func(r *Repository) []string {
		return append(r.Translations([]string{"Redis", "Lua", "PostgreSQL"}, "docs/zh/README.md"), r.Links()...)
	}, "docs/pay.md", english, "docs/shop.md", "# Pay\n", "docs/zh/pay.md", page, "docs/zh/README.md", "A word of English, [支付](pay.md).")
}

func TestTranslations(t *testing.T) {
	for what, test := range map[string]struct {
		from, to string // what is planted in the page
		finding  []string
	}{
		"a good page":         {"", "", nil},
		"another order":       {"调用一次[商店](../shop.md#pay)的 `Pay`", "`Pay` 在[商店](../shop.md#pay)中", nil},
		"names alone":         {"- 其他", "- Redis: Lua, PostgreSQL", nil},
		"names in a sentence": {"- 其他", "- 见 Redis, Lua, PostgreSQL scripts", nil},
		"no note":             {"> [English]", "> [Englisch]", []string{"docs/zh/pay.md:1: no note"}},
		"a late note":         {"# 支付\n", "# 支付\n\n\n\n", []string{"docs/zh/pay.md:1: no note"}},
		"a note of no page":   {"(../pay.md)", "(../none.md)", []string{"docs/zh/pay.md:3: there is no English page docs/none.md", "docs/zh/pay.md:3: the link ../none.md leads to no file"}},
		"an old version": {version, "0123456789ab", []string{"docs/zh/pay.md:3: docs/pay.md has changed: make the changes of " +
			`"git diff 0123456789ab docs/pay.md" in this page, too; then run "go test ./examples/guides -run Translations -translated docs/zh/pay.md"`}},
		"a level":           {"## 限额", "### 限额", []string{"docs/zh/pay.md:11: this heading ### is the heading ## in docs/pay.md:12"}},
		"a heading less":    {"## 限额\n\n", "", []string{"docs/zh/pay.md:11: this item is the heading ## in docs/pay.md:12", "docs/zh/pay.md:5: the link #限额"}},
		"a heading more":    {"- 其他", "- 其他\n\n## 其他", []string{"docs/zh/pay.md:16: this heading ## is the row in docs/pay.md:17"}},
		"a comment in code": {"// once", "// 一次", []string{"docs/zh/pay.md:7: the block is not that of docs/pay.md:8"}},
		"a space in code":   {"pay() //", "pay()  //", []string{"docs/zh/pay.md:7: the block is not that of docs/pay.md:8"}},
		"another language":  {"```go", "```c", []string{"docs/zh/pay.md:7: the block is not that of docs/pay.md:8"}},
		"a block less":      {"```go\npay() // once\n```\n", "", []string{"docs/zh/pay.md:8: this heading ## is the block in docs/pay.md:8"}},
		"an item less":      {"- 其他\n", "", []string{"docs/zh/pay.md:15: this row is the item in docs/pay.md:15"}},
		"a cell less":       {"| 名称 | 用途 |", "| 名称 |", []string{"docs/zh/pay.md:18: this row is the cell in docs/pay.md:17"}},
		"the end less":      {"| Redis | `a\\|b` |\n", "", []string{"docs/zh/pay.md:16: the page ends before the row of docs/pay.md:19"}},
		"more at the end":   {"3 = c -->\n", "3 = c -->\n\n结束", []string{"docs/zh/pay.md:23: docs/pay.md ends before this paragraph"}},
		"code of a cell":    {"`a\\|b`", "`a\\|c`", []string{"docs/zh/pay.md:18: code and links of docs/pay.md:19 are missing: [\"`a|b`\"], or are not there: [\"`a|c`\"]"}},
		"code of a text":    {"`Pay`", "`Paid`", []string{"docs/zh/pay.md:5: code and links"}},
		"a link less":       {"[商店](../shop.md#pay)", "商店", []string{"docs/zh/pay.md:5: code and links of docs/pay.md:5 are missing: [\"docs/shop.md#pay\"]"}},
		"a link to nothing": {"shop.md#pay", "shop.md#paid", []string{"docs/zh/pay.md:5: code and links", "docs/zh/pay.md:5: the link ../shop.md#paid leads to no heading"}},
		"a link to English": {"(#限额)", "(../pay.md#limits)", []string{"docs/zh/pay.md:5: the link ../pay.md#limits leads to the English page of docs/zh/pay.md"}},
		"an English item":   {"- 其他", "- more", []string{"docs/zh/pay.md:14: this is not in Chinese: - more"}},
		"an English cell":   {"| 用途", "| For", []string{"docs/zh/pay.md:16: this is not in Chinese: For"}},
		"an English title":  {"## 限额", "## Limits", []string{"docs/zh/pay.md:11: this is not in Chinese: Limits", "docs/zh/pay.md:5: the link #限额"}},
		"an English half":   {"调用一次", "Call it once; 调用", []string{"docs/zh/pay.md:5: this is not in Chinese: Call it once"}},
		"an English image":  {"- 其他", "- <img alt=\"the rest\">", []string{"docs/zh/pay.md:14: this is not in Chinese: - the rest"}},
	} {
		if !strings.Contains(chinese, test.from) {
			t.Errorf("%s: the page has no %q", what, test.from)
		}
		want(t, what, translations(t, strings.Replace(chinese, test.from, test.to, 1)), test.finding...)
	}
}

func TestStamp(t *testing.T) {
	check(t, func(r *Repository) []string {
		if text, err := r.Stamp("docs/zh/pay.md"); err != nil || text != chinese {
			t.Errorf("the page is %q (%v)", text, err)
		}
		for _, page := range []string{"docs/zh/none.md", "docs/pay.md", "docs/zh/lost.md"} {
			if text, err := r.Stamp(page); err == nil {
				t.Errorf("%s: no error, but %q", page, text)
			}
		}
		return nil
	}, "docs/pay.md", english, "docs/zh/pay.md", strings.Replace(chinese, version, "000000000000", 1), "docs/zh/lost.md", "> [English](../none.md) `000000000000`")
}
