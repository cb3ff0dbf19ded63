package defaults_test

import (
	"flag"
	"fmt"
	"go/constant"
	"maps"
	"os"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/fstest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

var update = flag.Bool("update", false, "write the page of the defaults anew")

const (
	root = "../.."
	page = "docs/defaults.md"
)

// row is a line of the page: a default, and what happens at its edge.
type row struct {
	// of is the declaration that the row is about: a name in the package of the section, a reference
	// with a directory, or the end of several references after a star. Empty for a bound that no
	// option sets.
	of string
	// also are further references whose documentation has the same default.
	also []string
	// name is what the page calls it: the package and the name if it is empty.
	name string
	// from is the reference of the default, if it is not what the option of the row sets.
	from string
	// is and says are the text of a default that is no constant, in the code and on the page.
	is, says string
	unit     string
	edge     string
	shows    string
	instead  string
	// bites is the row's place among the ones that bite most, or 0.
	bites int
}

type section struct {
	title string
	dir   string // of the package
	about string
	rows  []row
}

// usual are what common values of options that are no constants mean.
var usual = map[string]string{
	"0": "none", "nil": "none", "false": "off", "true": "on",
	"slog.Default()": "`slog.Default()`", "naming.Process()": "host name and process ID",
}

// placeholder is a constant in a text: {core/guard.closeTimeout}, or with a unit {…|bytes}.
var placeholder = regexp.MustCompile(`\{([^{}|]+)(?:\|([^{}]*))?\}`)

// figureless matches what a cell may have figures in: code, constants and statuses.
var figureless = regexp.MustCompile("`[^`]*`|\\{[^}]*\\}|\\b[245]\\d\\d\\b")

// wants matches a documentation that has a default.
var wants = regexp.MustCompile(`(?i)\bdefaults?\b|\bif\s+(it\s+is\s+)?(not\s+set|0)\b|\b0\s+stands\s+for\b`)

// link is the line that leads from a constructor to the page.
var link = regexp.MustCompile(`docs/defaults\.md has [^.]*\.`)

// hasDefault reports whether a documentation has a default.
func hasDefault(d *declared) bool { return wants.MatchString(link.ReplaceAllString(d.doc, "")) }

// printer makes the page, and notes what is wrong with it.
type printer struct {
	code     *code
	known    string // a page whose names of telemetry are tested: docs/observability.md
	problems []string
	covered  map[string]bool
}

func (p *printer) wrong(format string, args ...any) {
	p.problems = append(p.problems, fmt.Sprintf(format, args...))
}

// matches returns the references that a row is about.
func (p *printer) matches(s *section, r *row) []string {
	if end, ok := strings.CutPrefix(r.of, "*"); ok {
		return p.code.refs(func(q *pkg, name string, d *declared) bool {
			return isOption(d) && strings.HasSuffix("/"+q.dir+"."+name, end)
		})
	}
	ref := r.of
	if !strings.Contains(ref, "/") {
		ref = s.dir + "." + ref
	}
	if _, _, d := p.code.find(ref); d == nil || !d.exported {
		return nil
	}
	return []string{ref}
}

// text returns a cell with its constants.
func (p *printer) text(cell string) string {
	if strings.ContainsAny(figureless.ReplaceAllString(cell, ""), "0123456789") {
		p.wrong("%q: a figure that is not from the code", cell)
	}
	return placeholder.ReplaceAllStringFunc(cell, func(text string) string {
		m := placeholder.FindStringSubmatch(text)
		v, err := p.code.at(m[1])
		if err != nil {
			p.wrong("%q: %v", cell, err)
		}
		return p.show(v, m[2])
	})
}

// show returns a value as the page has it.
func (p *printer) show(v value, unit string) string {
	switch {
	case v.constant == nil:
		if text, ok := usual[v.text]; ok {
			return text
		}
		p.wrong("%q is no constant: say what it is", v.text)
		return "?"
	case v.constant.Kind() == constant.Bool:
		return usual[v.text]
	case v.constant.Kind() == constant.String:
		return "`" + constant.StringVal(v.constant) + "`"
	}
	return spellings(v, unit)[0]
}

// spellings returns how a number may be written in a text: first as the page has it.
func spellings(v value, unit string) []string {
	if v.constant.Kind() == constant.Float {
		f, _ := constant.Float64Val(v.constant)
		return []string{strconv.FormatFloat(100*f, 'f', -1, 64) + " %"}
	}
	n, _ := constant.Int64Val(v.constant)
	switch {
	case v.duration:
		return durations(time.Duration(n))
	case unit == "bytes":
		return []string{size(n)}
	case unit != "":
		return []string{commas(n) + " " + unit, commas(n)}
	}
	return []string{commas(n)}
}

func durations(d time.Duration) []string {
	for _, u := range []struct {
		of    time.Duration
		least time.Duration
		names []string
	}{
		{24 * time.Hour, 48 * time.Hour, []string{"days"}},
		{time.Hour, time.Hour, []string{"h", "hours", "hour"}},
		{time.Minute, time.Minute, []string{"min", "minutes", "minute"}},
		{time.Second, time.Second, []string{"s", "seconds", "second"}},
		{time.Millisecond, time.Millisecond, []string{"ms"}},
	} {
		if d >= u.least && d%u.of == 0 {
			var all []string
			for _, name := range u.names {
				all = append(all, fmt.Sprintf("%d %s", d/u.of, name))
			}
			return all
		}
	}
	return []string{d.String()}
}

func size(n int64) string {
	for _, u := range []struct {
		shift int
		name  string
	}{{30, "GiB"}, {20, "MiB"}, {10, "KiB"}} {
		if n >= 1<<u.shift && n%(1<<u.shift) == 0 {
			return commas(n>>u.shift) + " " + u.name
		}
	}
	return commas(n) + " bytes"
}

func commas(n int64) string {
	s := strconv.FormatInt(n, 10)
	for i := len(s) - 3; i > 0 && s[i-1] != '-'; i -= 3 {
		s = s[:i] + "," + s[i:]
	}
	return s
}

// line returns a row as the page has it.
func (p *printer) line(s *section, r *row) string {
	name, refs := r.name, []string(nil)
	if r.of != "" {
		refs = p.matches(s, r)
		if len(refs) == 0 {
			p.wrong("%s: %s: the code has no such thing", s.title, r.of)
			return ""
		}
		if name == "" {
			name = "`" + path.Base(refs[0]) + "`"
		}
	}
	for _, ref := range slices.Concat(refs, r.also) {
		if _, _, d := p.code.find(ref); d == nil {
			p.wrong("%s: %s: the code has no such thing", s.title, ref)
			return ""
		}
		p.covered[ref] = true
	}
	set := p.byDefault(s, r, refs)
	return fmt.Sprintf("| %s | %s | %s | %s | %s |\n", name, set, p.claims(r.edge), p.claims(r.shows), p.claims(r.instead))
}

// byDefault returns the default of a row.
func (p *printer) byDefault(s *section, r *row, refs []string) string {
	var values []value
	if r.from != "" {
		v, err := p.code.at(r.from)
		if err != nil {
			p.wrong("%s: %s%s: %v", s.title, r.of, r.name, err)
			return "?"
		}
		p.covered[r.from] = true
		values = append(values, v)
	} else {
		for _, ref := range refs {
			_, _, d := p.code.find(ref)
			switch {
			case d.constant:
				v, err := p.code.at(ref)
				if err != nil {
					p.wrong("%s: %v", s.title, err)
				}
				values = append(values, v)
			case isOption(d):
				if v, ok := p.code.unset(ref); ok {
					values = append(values, v)
				}
			}
		}
	}
	for _, v := range values {
		if v.text != values[0].text {
			p.wrong("%s: %s: the defaults %s and %s differ", s.title, r.of, values[0].text, v.text)
		}
	}
	if len(values) == 0 {
		if r.says == "" {
			p.wrong("%s: %s%s: no default is found", s.title, r.of, r.name)
		}
		return p.text(r.says)
	}
	v := values[0]
	switch {
	case r.says != "" && r.is != v.text:
		p.wrong("%s: %s%s: the default is %s, and not %q", s.title, r.of, r.name, v.text, r.is)
	case r.says != "":
		return p.text(r.says)
	}
	for _, ref := range slices.Concat(refs, r.also) {
		p.agrees(ref, v, r.unit)
	}
	return p.show(v, r.unit)
}

// agrees notes a documentation with a default that is not a constant of the code.
func (p *printer) agrees(ref string, v value, unit string) {
	_, _, d := p.code.find(ref)
	var all []string
	switch {
	case !hasDefault(d):
		return
	case v.text == "0": // unless another place gives zero a meaning
		all = []string{"0", "zero"}
	case v.constant == nil || v.constant.Kind() == constant.Bool:
		return
	case v.constant.Kind() == constant.String:
		all = []string{v.text} // quoted
	default:
		all = spellings(v, unit)
	}
	doc := strings.Join(strings.Fields(d.doc), " ")
	for _, text := range all {
		text = regexp.QuoteMeta(text)
		if regexp.MustCompile(`(^|[^\d,.])` + text + `(\W[^.;]{0,14})?( by default| if not set| if it is 0|, the default)|` +
			`\bdefault\b[^.;,]{0,20} ` + text + `(\W|$)`).MatchString(doc) {
			return
		}
	}
	p.wrong("%s: the default is %s, and its documentation says otherwise: %s", ref, all[0], doc)
}

var (
	span   = regexp.MustCompile("`([^`]+)`")
	answer = regexp.MustCompile("(\\d\\d\\d) `([a-z-]+)`")
)

// claims returns a cell whose code spans are names and texts of the code.
func (p *printer) claims(cell string) string {
	for _, m := range span.FindAllStringSubmatch(cell, -1) {
		if !p.has(m[1]) {
			p.wrong("%q: %q is neither declared, nor logged, nor sent", cell, m[1])
		}
	}
	for _, m := range answer.FindAllStringSubmatch(cell, -1) {
		if status := (policy.Denial{Reason: policy.Reason(m[2])}).Status(); strconv.Itoa(status) != m[1] {
			p.wrong("%q: the status of %s is %d", cell, m[2], status)
		}
	}
	return p.text(cell)
}

// has reports whether a text in code style is of this repository: telemetry that is tested, a
// declaration, or a text that is part of a literal.
func (p *printer) has(text string) bool {
	if strings.Contains(p.known, "`"+text+"`") {
		return true
	}
	name, _, _ := strings.Cut(text, "(")
	if len(p.code.refs(func(q *pkg, declared string, _ *declared) bool {
		return path.Base(q.dir)+"."+declared == strings.TrimPrefix(name, "…/")
	})) > 0 {
		return true
	}
	return slices.ContainsFunc(p.code.texts, func(of string) bool { return strings.Contains(of, text) })
}

// print returns the page.
func (p *printer) print(sections []section) string {
	var b strings.Builder
	b.WriteString(head)
	b.WriteString(columns)
	most := make(map[int]string)
	var rest strings.Builder
	for i := range sections {
		s := &sections[i]
		fmt.Fprintf(&rest, "\n## %s\n\n", s.title)
		if s.about != "" {
			rest.WriteString(p.text(s.about) + "\n\n")
		}
		rest.WriteString(columns)
		for j := range s.rows {
			line := p.line(s, &s.rows[j])
			rest.WriteString(line)
			if at := s.rows[j].bites; at > 0 {
				if most[at] != "" {
					p.wrong("two rows bite as number %d", at)
				}
				most[at] = line
			}
		}
	}
	if len(most) != 10 {
		p.wrong("%d rows bite most, want 10", len(most))
	}
	for _, at := range slices.Sorted(maps.Keys(most)) {
		b.WriteString(most[at])
	}
	b.WriteString(rest.String())
	p.complete()
	return b.String()
}

// complete notes what has a default, or is a bound, and is in no row.
func (p *printer) complete() {
	for _, ref := range p.code.refs(func(_ *pkg, _ string, d *declared) bool {
		return isOption(d) || hasDefault(d)
	}) {
		if _, no := elsewhere[ref]; !p.covered[ref] && !no {
			p.wrong("%s: it has a default, and is in no row", ref)
		}
	}
	for _, ref := range p.code.refs(func(_ *pkg, _ string, d *declared) bool { return d.constant }) {
		v, err := p.code.at(ref)
		_, no := elsewhere[ref]
		if err != nil || no || p.covered[ref] || v.constant.Kind() == constant.String || p.code.isNamed(ref) {
			continue
		}
		p.wrong("%s: it is a bound, and is in no row", ref)
	}
	for _, q := range p.code.public {
		if of := q.declared["Option"]; of == nil || !of.function {
			continue
		}
		leads := func(d *declared) bool { return d.fn != nil && link.MatchString(d.doc) }
		if !slices.ContainsFunc(slices.Collect(maps.Values(q.declared)), leads) {
			p.wrong("%s: no constructor says where the defaults are", q.dir)
		}
	}
	for ref := range elsewhere {
		if _, _, d := p.code.find(ref); d == nil || p.covered[ref] {
			p.wrong("%s: it is in no row because %q, and the code has no such thing or it is in one", ref, elsewhere[ref])
		}
	}
}

// The page has every default of the code, and no other.
func TestDefaults(t *testing.T) {
	if _, err := os.Stat(path.Join(root, "go.work")); err != nil {
		t.Skip("the other modules of the repository are not here")
	}
	c, err := read(os.DirFS(root))
	if err != nil {
		t.Fatal(err)
	}
	known, err := os.ReadFile(path.Join(root, "docs/observability.md"))
	if err != nil {
		t.Fatal(err)
	}
	p := printer{code: c, known: string(known), covered: make(map[string]bool)}
	text := p.print(sections)
	for _, problem := range p.problems {
		t.Error(problem)
	}
	if *update && !t.Failed() {
		if err := os.WriteFile(path.Join(root, page), []byte(text), 0o644); err != nil { //nolint:gosec // a page
			t.Fatal(err)
		}
	}
	if written, err := os.ReadFile(path.Join(root, page)); err != nil || string(written) != text {
		t.Errorf("%s is not what the code says: run this test with -update (%v)", page, err)
	}
}

// planted is a package with an option, a bound and a field.
const planted = `package wait
import "time"
// MaxHold is the longest hold.
const MaxHold = time.Hour
// Option is an option.
type Option func(*config)
type config struct { timeout time.Duration; size int }
// WithTimeout sets the timeout: 2 s by default.
// It is 20 s at most.
func WithTimeout(d time.Duration) Option { return func(c *config) { c.timeout = d } }
// WithSize sets the size in bytes.
func WithSize(n int) Option { return func(c *config) { c.size = n } }
// Wait is a wait.
type Wait struct {
	// For is how long: 1 s if not set.
	For time.Duration
}
const usualFor = time.Second
// New waits. docs/defaults.md has the default of every option.
func New(opts ...Option) config { return config{timeout: 2*time.Second, size: 3 << 10} }
func late() string { return "wait: too late, temporary-reduced-capacity" }
`

// The test finds each way in which the page could lie.
func TestLies(t *testing.T) {
	t.Parallel()
	good := func() []row {
		return []row{
			{of: "WithTimeout", edge: "at most {core/wait.MaxHold}", shows: "`too late`, or 503 `temporary-reduced-capacity`"},
			{of: "WithSize", unit: "bytes", instead: "`wait.WithTimeout`"},
			{of: "MaxHold"},
			{of: "Wait.For", from: "core/wait.usualFor"},
		}
	}
	for _, test := range []struct {
		name   string
		source string
		change func([]row) []row
		want   string // in a problem; none if empty
	}{
		{name: "nothing"},
		{"an option that is in no row", planted, func(r []row) []row { return r[1:] }, "WithTimeout: it has a default"},
		{"a bound that is in no row", planted, func(r []row) []row { return slices.Delete(r, 2, 3) }, "MaxHold: it is a bound"},
		{"a field that is in no row", planted, func(r []row) []row { return r[:3] }, "Wait.For: it has a default"},
		{"an option that there is not", planted, func(r []row) []row { return append(r, row{of: "WithPatience"}) }, "no such thing"},
		{"a constant that there is not", planted, func(r []row) []row {
			return append(r, row{name: "patience", from: "core/wait.patience"})
		}, "no such constant"},
		{"a figure that was typed", planted, func(r []row) []row { r[1].edge = "after 3 s"; return r }, "a figure"},
		{"a log line that there is not", planted, func(r []row) []row { r[1].shows = "`too soon`"; return r }, "neither declared"},
		{"a wrong status", planted, func(r []row) []row { r[1].shows = "429 `in-flight`"; return r }, "status of in-flight is 409"},
		{
			"another default than that of the documentation",
			strings.Replace(planted, "{timeout: 2*", "{timeout: 20*", 1), nil, "says otherwise",
		},
		{
			"a constructor that does not lead to the page",
			strings.Replace(planted, "docs/defaults.md has", "There is", 1), nil, "no constructor says",
		},
		{
			"a default that zero stands for",
			strings.Replace(planted, "timeout: 2*time.Second, ", "", 1), nil, "WithTimeout: the default is 0",
		},
		{"another default than was described", planted, func(r []row) []row {
			r[0].is, r[0].says = "usual()", "the usual one"
			return r
		}, "the default is 2000000000"},
	} {
		source, rows := test.source, good()
		if source == "" {
			source = planted
		}
		if test.change != nil {
			rows = test.change(rows)
		}
		c, err := read(fstest.MapFS{"core/wait/wait.go": {Data: []byte(source)}})
		if err != nil {
			t.Fatal(err)
		}
		p := printer{code: c, covered: make(map[string]bool)}
		text := ""
		for i := range rows {
			text += p.line(&section{title: "Wait", dir: "core/wait"}, &rows[i])
		}
		p.complete()
		ofRepository := func(problem string) bool { return strings.Contains(problem, "in no row because") }
		found := strings.Join(slices.DeleteFunc(p.problems, ofRepository), "\n")
		if test.want == "" && found != "" || !strings.Contains(found, test.want) {
			t.Errorf("%s: found %q, want %q", test.name, found, test.want)
		}
		if test.want == "" && !strings.Contains(text, "| `wait.WithTimeout` | 2 s | at most 1 h |") ||
			!strings.Contains(text, "| `wait.WithSize` | 3 KiB |") {
			t.Errorf("%s: the page is\n%s", test.name, text)
		}
	}
}
