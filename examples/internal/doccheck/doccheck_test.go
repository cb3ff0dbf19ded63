package doccheck

import (
	"slices"
	"strings"
	"testing"
	"testing/fstest"
)

const goFile = `package shop

func buy() {
	lock()
	defer unlock()

	charge()
	send()
}
`

// check reads files, whose paths are at odd places of files, and returns what find returns.
func check(t *testing.T, find func(*Repository) []string, files ...string) []string {
	t.Helper()
	root := fstest.MapFS{}
	for i := 0; i < len(files); i += 2 {
		root[files[i]] = &fstest.MapFile{Data: []byte(files[i+1])}
	}
	r, err := Read(root, "skipped")
	if err != nil {
		t.Fatal(err)
	}
	return find(r)
}

// want compares findings with their beginnings.
func want(t *testing.T, what string, got []string, beginnings ...string) {
	t.Helper()
	if !slices.EqualFunc(got, beginnings, strings.HasPrefix) {
		t.Errorf("%s: the findings are\n%s\nwant\n%s", what, strings.Join(got, "\n"), strings.Join(beginnings, "\n"))
	}
}

func TestCode(t *testing.T) {
	for what, test := range map[string]struct {
		code    string
		finding []string
	}{
		"lines of the file":         {"lock()\ndefer  unlock()\n\n  charge()", nil},
		"with a gap":                {"func buy() {\n\t// …\n\tcharge()\n}", []string{"docs/a.md:7: the code is in no Go file from this line on (nearest: shop.go): }"}},
		"with a gap, and its end":   {"func buy() {\n\t// …\n\tsend()\n}\n// …", nil},
		"out of order":              {"charge()\n// …\nlock()", []string{"docs/a.md:6: the code is in no Go file from this line on (nearest: shop.go): lock()"}},
		"with a line left out":      {"lock()\ncharge()", []string{"docs/a.md:5: the code is in no Go file from this line on (nearest: shop.go): charge()"}},
		"with a line of its own":    {"unlock()", []string{"docs/a.md:4: the code is in no Go file from this line on (none has the first line): unlock()"}},
		"that begins in two places": {"// …\ndefer unlock()\ncharge()\nlock()", []string{"docs/a.md:7: "}},
		"empty":                     {"", []string{"docs/a.md:3: the code is in no Go file from this line on (it is empty)"}},
	} {
		got := check(t, (*Repository).Code, "shop.go", goFile, "docs/a.md", "# A\n\n```go\n"+test.code+"\n```\n", "skipped/b.md", "```go\nx\n```\n")
		want(t, what, got, test.finding...)
	}
	want(t, "other languages", check(t, (*Repository).Code, "a.md", "```sh\nunlock\n```\n\n````md\n```go\nx\n```\n````\n"))
}

func TestComplete(t *testing.T) {
	const file = "package shop\n\nimport (\n\t\"context\"\n\t\"fmt\"\n\n\t\"example.com/go-redis/v9\"\n)\n\n" +
		"func buy(ctx context.Context, client *redis.Client) {\n\tfmt := price(1)\n\tclient.Pay(fmt)\n}\n"
	const other = "package shop\n\nfunc price(n int) int { return n }\n"
	const code = "func buy(ctx context.Context, client *redis.Client) {\n\tfmt := price(1)\n"
	const imports = "import (\n\t\"context\"\n\t// …\n\t\"example.com/go-redis/v9\"\n)\n"
	block := func(code string) string { return "```go\n" + code + "```\n" }
	none := []string{`docs/a.md:1: code uses "context" of s/shop.go`, `docs/a.md:1: code uses "example.com/go-redis/v9" of s/shop.go`, "docs/a.md:1: code uses price of s/shop.go"}
	for what, test := range map[string]struct {
		text    string
		finding []string
	}{
		"nothing else":         {block(code), none},
		"the imports":          {block(code) + block(imports), none[2:]},
		"all":                  {block(imports) + block(code) + block("func price(n int) int { return n }\n"), nil},
		"a name":               {block(imports) + block(code) + "`price` is yours.", nil},
		"a name of a part":     {block(imports) + block(code) + "`price(1)` is yours.", none[2:]},
		"another part of it":   {block("client.Pay(fmt)\n"), nil},
		"the end after a gap":  {block("import (\n// …\nfmt := price(1)\n"), none[2:]},
		"code of another kind": {"```sh\nfmt := price(1)\n```\n", nil},
	} {
		complete := func(r *Repository) []string { return r.Complete("docs") }
		want(t, what, check(t, complete, "s/shop.go", file, "s/price.go", other, "docs/a.md", test.text, "b.md", block(code)), test.finding...)
	}
}

func TestLinks(t *testing.T) {
	const page = "# The `first` page: 1, 2\n\n## Same\n\n## Same\n\n<a id=\"here\"></a>\n"
	for what, test := range map[string]struct {
		text    string
		finding []string
	}{
		"a file, a directory, other sites": {"[a](b.md), [b](../docs) [c](https://a.b/c) ![d](../d.svg \"D\") [e](mailto:a@b.c)", nil},
		"anchors":                          {"[a](b.md#the-first-page-1-2) [b](b.md#same-1) [c](#top) [d](/docs/b.md#here)\n# Top", nil},
		"code":                             {"`[a](none.md)`\n\n```\n[a](none.md)\n```", nil},
		"a missing file":                   {"x\n[a](none.md)", []string{"docs/a.md:2: the link none.md leads to no file: docs/none.md"}},
		"a missing image":                  {"<img src=\"none.png\">", []string{"docs/a.md:1: the link none.png leads to no file"}},
		"a missing reference":              {"[a]: none.md", []string{"docs/a.md:1: the link none.md leads to no file"}},
		"outside":                          {"[a](../../b.md)", []string{"docs/a.md:1: the link ../../b.md leads to no file"}},
		"a missing anchor":                 {"[a](b.md#same-2) [b](#none)", []string{"docs/a.md:1: the link b.md#same-2 leads to no heading", "docs/a.md:1: the link #none "}},
		"an anchor of no page":             {"[a](../d.svg#x)", []string{"docs/a.md:1: the link ../d.svg#x has an anchor"}},
	} {
		got := check(t, (*Repository).Links, "docs/a.md", test.text, "docs/b.md", page, "d.svg", "")
		want(t, what, got, test.finding...)
	}
}

func TestFigures(t *testing.T) {
	const results = `{"sections": [{
		"tables": [{"id": "locks", "rows": [
			{"name": "ours, fair", "samples": {"p50": [30, 10, 20]}},
			{"name": "theirs", "samples": {"p50": [8, 10, 7, 9]}}]}],
		"targets": [
			{"what": "256 goroutines: times theirs", "value": 4.4508},
			{"what": "rate", "value": 1234567.8},
			{"what": "not measured", "value": null}]}]}`
	for what, test := range map[string]struct {
		text    string
		finding []string
	}{
		"right":            {"4.5 times with 256 goroutines: p99 of `7`.\n<!-- 4.5 = 256 goroutines: times theirs -->", nil},
		"a cell":           {"20 µs.\n<!-- 20 = locks | p50 | ours, fair -->", nil},
		"a quotient":       {"2.35 times.\n<!--\n2.35 = locks | p50 | ours, fair ÷ theirs\n-->", nil},
		"several":          {"2.4 times, and 4\n<!-- 2.4 = locks | p50 | ours, fair ÷ theirs\n     4 = 256 goroutines: times theirs -->", nil},
		"thousands":        {"1,234,568 a second, or 1234567.8 <!-- 1,234,568 = rate\n1234567.8 = rate -->", nil},
		"wrong":            {"\n4.4 times.\n<!-- 4.4 = 256 goroutines: times theirs -->", []string{"a.md:4: 4.4 is 4.5 in the results: 256 goroutines"}},
		"without a source": {"4.5 times.", []string{"a.md:2: 4.5 has no source"}},
		"after a comment":  {"20 µs <!-- 20 = locks | p50 | ours, fair --> and 30 µs", []string{"a.md:2: 30 has no source"}},
		"another number":   {"4.5 times with 64\n<!-- 4.5 = 256 goroutines: times theirs -->", []string{"a.md:2: 64 has no source"}},
		"unknown":          {"4 <!-- 4 = x -->", []string{`a.md:2: the results have no target "x"`}},
		"an unknown row":   {"4 <!-- 4 = locks | p50 | ours -->", []string{`a.md:2: the results have no table "locks" with the column "p50" and the row "ours"`}},
		"not measured":     {"4 <!-- 4 = not measured -->", []string{`a.md:2: the results have no target`}},
		"not in the text":  {"4 <!-- 4 = 256 goroutines: times theirs\n4.5 = 256 goroutines: times theirs -->", []string{"a.md:3: 4.5 is not in the text"}},
		"in a subsection":  {"### Slow\n20 µs", []string{"a.md:3: 20 has no source"}},
		"no figure":        {"Fast. <!-- fast -->", []string{"a.md:2: this is no figure"}},
	} {
		got := check(t, func(r *Repository) []string {
			findings, err := r.Figures("a.md", "Speed", "results.json")
			if err != nil {
				t.Errorf("%s: %v", what, err)
			}
			return findings
		}, "a.md", "## Speed\n"+test.text+"\n## Other\n77 of 78", "results.json", results)
		want(t, what, got, test.finding...)
	}
	for _, missing := range [][3]string{{"b.md", "Speed", "results.json"}, {"a.md", "Slow", "results.json"}, {"a.md", "Speed", "none"}} {
		check(t, func(r *Repository) []string {
			if _, err := r.Figures(missing[0], missing[1], missing[2]); err == nil {
				t.Errorf("%q: no error", missing)
			}
			return nil
		}, "a.md", "## Speed\n1", "results.json", results)
	}
}
