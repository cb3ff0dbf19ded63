package bench

import (
	"bytes"
	"cmp"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
	"unicode"
)

// report is the result of a run, as in results.json.
type report struct {
	Setting  string          `json:"setting"`
	Rounds   int             `json:"rounds"`
	Command  string          `json:"command"`
	Began    time.Time       `json:"began"`
	Elapsed  float64         `json:"elapsed_seconds"`
	Machine  []fact          `json:"machine"`
	Modules  []fact          `json:"modules"`
	Sections []sectionReport `json:"sections"`
}

type sectionReport struct {
	Name    string         `json:"name"`
	Title   string         `json:"title"`
	About   string         `json:"about"`
	Elapsed float64        `json:"elapsed_seconds"`
	Tables  []tableReport  `json:"tables"`
	Targets []targetReport `json:"targets,omitempty"`
	Notes   []string       `json:"notes,omitempty"`
	Run     *runReport     `json:"run,omitempty"` // if it was measured in another one than the report says
}

type runReport struct {
	Command string    `json:"command"`
	Began   time.Time `json:"began"`
	Machine []fact    `json:"machine"`
}

type tableReport struct {
	ID      string         `json:"id"`
	Title   string         `json:"title"`
	Note    string         `json:"note,omitempty"`
	Columns []columnReport `json:"columns"`
	Rows    []rowReport    `json:"rows"`
	Chart   *chartReport   `json:"chart,omitempty"`
}

type columnReport struct {
	Name   string `json:"name"`
	Unit   string `json:"unit,omitempty"`
	Better string `json:"better,omitempty"`
	Format string `json:"format,omitempty"`
}

func (c columnReport) format(v float64) string { return Column{Format: c.Format}.format(v) }

type rowReport struct {
	Name      string               `json:"name"`
	Reference bool                 `json:"reference,omitempty"`
	Samples   map[string][]float64 `json:"samples"` // of each column, one for each round
}

type chartReport struct {
	Title   string   `json:"title"`
	Columns []string `json:"columns"`
}

type targetReport struct {
	What   string   `json:"what"`
	Value  *float64 `json:"value"` // null if it was not measured
	Unit   string   `json:"unit,omitempty"`
	Better string   `json:"better"`
	Bound  float64  `json:"bound"`
	Floor  string   `json:"floor,omitempty"`
	target Target
}

// set makes t the target of the report.
func (r *targetReport) set(t Target) {
	r.Unit, r.Better, r.Bound, r.Floor, r.target = t.Unit, t.Better.name(), t.Bound, t.Floor, t
}

func (b Better) name() string {
	switch b {
	case More:
		return "more"
	case Less:
		return "less"
	default:
		return ""
	}
}

// betterOf returns the Better with this name, Neither if there is none.
func betterOf(name string) Better {
	for _, b := range []Better{More, Less} {
		if b.name() == name {
			return b
		}
	}
	return Neither
}

// report returns the report of the section.
func (b *B) report(elapsed time.Duration) sectionReport {
	s := sectionReport{Name: b.section.Name, Title: b.section.Title, About: b.section.About, Elapsed: elapsed.Seconds(), Notes: b.notes}
	for _, t := range b.tables {
		s.Tables = append(s.Tables, t.report())
	}
	for _, v := range b.values {
		r := targetReport{What: v.what}
		r.set(*find(b.section.Targets, v.what))
		if !math.IsNaN(v.value) && !math.IsInf(v.value, 0) {
			r.Value = &v.value
		}
		s.Targets = append(s.Targets, r)
	}
	return s
}

func (t *Table) report() tableReport {
	r := tableReport{ID: t.id, Title: t.title, Note: t.note}
	for _, c := range t.columns {
		r.Columns = append(r.Columns, columnReport{Name: c.Name, Unit: c.Unit, Better: c.Better.name(), Format: c.Format})
	}
	for _, row := range t.names() {
		samples := make(map[string][]float64)
		t.mu.Lock()
		for _, c := range t.columns {
			if s := t.samples[cell{row, c.Name}]; len(s) > 0 {
				samples[c.Name] = slices.Clone(s)
			}
		}
		reference := t.reference[row]
		t.mu.Unlock()
		r.Rows = append(r.Rows, rowReport{Name: row, Reference: reference, Samples: samples})
	}
	if t.chart != "" && len(r.Rows) > 0 {
		r.Chart = &chartReport{Title: t.chart, Columns: t.charted}
	}
	return r
}

func (r *report) json() ([]byte, error) {
	data, err := json.MarshalIndent(r, "", "\t")
	return append(data, '\n'), err
}

// markdown returns RESULTS.md: first the comparison with peers, then each section, at the end what it
// was made with, and the targets.
func (r *report) markdown(machines []published) []byte {
	var w bytes.Buffer
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(&w, format, args...) }

	p("# Results\n\n")
	switch r.Setting {
	case Tiny.String():
		p("**The tiny setting only checks that everything runs. These figures mean nothing.**\n\n")
	case Quick.String():
		p("**The quick setting measures for a short time. These figures are rough.**\n\n")
	}
	p("Measured on %s by `%s`, in %v. ", r.Began.Format(day), r.Command, time.Duration(r.Elapsed*float64(time.Second)).Round(time.Second))
	if r.Rounds == 1 {
		p("All contenders have run once, in the same process run. ")
	} else {
		p("All contenders have run in the same process run, interleaved, in %d rounds. A figure is the median of the rounds; in brackets "+
			"are the least and the greatest. ", r.Rounds)
	}
	p("Machines differ and drift, so read the figures as ratios. Every sample is in [results.json](results.json).\n")
	if all := peers(); r.measured(all) {
		r.besidePeers(p, all)
	}
	const machine, versions, targets = "How it was measured", "Versions", "Targets"
	p("\n## %s\n\nIn the tables below, the best of each column is **bold**; rows in *italics* are references and do not compete.\n\n", machine)
	p("| | |\n|---|---|\n")
	for _, f := range r.Machine {
		p("| %s | %s |\n", f.Name, text(f.Value))
	}
	p("\nContents:\n\n")
	for _, s := range r.Sections {
		p("- [%s](#%s)\n", s.Title, anchor(s.Title))
	}
	p("- [%s](#%s)\n- [%s](#%s)\n", versions, anchor(versions), targets, anchor(targets))
	for _, s := range r.Sections {
		s.markdown(p)
	}
	p("\n## %s\n\n| | |\n|---|---|\n", versions)
	for _, f := range r.Modules {
		p("| %s | %s |\n", f.Name, f.Value)
	}
	p("\n## %s\n\n", targets)
	r.targets(p, machines)
	return w.Bytes()
}

// day formats the date of a run.
const day = "2 January 2006"

// anchor returns the name by which GitHub links to a heading.
func anchor(title string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r == ' ':
			return '-'
		case r == '-' || unicode.IsLetter(r) || unicode.IsDigit(r):
			return unicode.ToLower(r)
		default:
			return -1
		}
	}, title)
}

// targets writes the table of targets. If the run is the published one of its machine, or if none is
// published, the table has the machines and judges their median; else it has the run as well, and
// judges that.
func (r *report) targets(p func(string, ...any), machines []published) {
	alone := !slices.ContainsFunc(machines, func(m published) bool { return m.Began.Equal(r.Began) })
	p("What this suite asks of Lockkeeper: one bound for each row, a ratio to what ran interleaved with it where that is possible. A bound is " +
		"what was asked for at first; where that cannot be reached, it is a measured floor times a factor, and the last column has both.\n\n")
	if len(machines) > 0 {
		p("Machines decide ratios: one reaches what another one does not. So rows are judged by the median of the published runs, the last one of "+
			"each machine. A value in *italics* misses the bound. One in (brackets) is not judged: a later change of the library moved it by "+
			"more than a tenth; [machines.json](%s) says which.\n\n| | processor | system call | measured on |\n|---|---|---|---|\n", machinesFile)
		for _, m := range machines {
			p("| %s | %s | %s | %s |\n", m.Name, text(m.Processor), cmp.Or(m.SystemCall, "not measured"), m.Began.Format(day))
		}
		p("\n")
	}
	heads, rule := "| | bound", "|---|---"
	head := func(name string) { heads, rule = heads+" | "+name, rule+"|---" }
	if alone {
		if len(machines) > 0 {
			p("This run is not among them, and is judged alone.\n\n")
		}
		head("this run")
	}
	for _, m := range machines {
		head(m.Name)
	}
	if !alone {
		head("median")
	}
	p("%s | | floor, and factor |\n%s|---|---|\n", heads, rule)
	for _, s := range r.Sections {
		for _, t := range s.Targets {
			p("%s", t.row(alone, machines))
		}
	}
}

// row returns a line of the table of targets.
func (r targetReport) row(alone bool, machines []published) string {
	t := r.target
	judged := func(v float64) string {
		if t.meets(v) {
			return significant(v)
		}
		return "*" + significant(v) + "*"
	}
	cells, v := []string{text(t.What), t.bound()}, math.NaN()
	if alone {
		cell := "–"
		if r.Value != nil {
			v, cell = *r.Value, judged(*r.Value)
		}
		cells = append(cells, cell)
	}
	for _, m := range machines {
		cell := "–"
		if value, ok := m.Values[t.What]; ok {
			if _, ok := m.judged(t.What); ok {
				cell = judged(value)
			} else {
				cell = "(" + significant(value) + ")"
			}
		}
		cells = append(cells, cell)
	}
	if !alone {
		v = medianOf(machines, t.What)
		cell := "–"
		if !math.IsNaN(v) {
			cell = significant(v)
		}
		cells = append(cells, cell)
	}
	verdict := t.verdict(v)
	if verdict == "not reached" {
		verdict = "**not reached**"
	}
	return "| " + strings.Join(append(cells, verdict, text(t.Floor)), " | ") + " |\n"
}

func (s *sectionReport) markdown(p func(string, ...any)) {
	p("\n## %s\n\n%s\n", s.Title, s.About)
	if s.Run != nil {
		p("\nMeasured on %s by `%s`, on a machine with the processor %s and a system call of %s.\n", s.Run.Began.Format(day), s.Run.Command,
			named(s.Run.Machine, "processor"), named(s.Run.Machine, "system call"))
	}
	for _, t := range s.Tables {
		t.markdown(p)
	}
	if len(s.Notes) > 0 {
		p("\n")
	}
	for _, n := range s.Notes {
		p("- %s\n", strings.Join(strings.Fields(n), " "))
	}
}

func (t *tableReport) markdown(p func(string, ...any)) {
	p("\n### %s\n\n", t.Title)
	if len(t.Rows) == 0 {
		p("Not measured.\n")
		return
	}
	if t.Note != "" {
		p("%s\n\n", t.Note)
	}
	p("|")
	for _, c := range t.Columns {
		p(" | %s", text(strings.TrimSuffix(c.Name+", "+c.Unit, ", ")))
	}
	p(" |\n|---%s|\n", strings.Repeat("|---", len(t.Columns)))
	best := make(map[string]map[string]bool)
	for _, c := range t.Columns {
		best[c.Name] = t.best(c)
	}
	for _, row := range t.Rows {
		name := text(row.Name)
		if row.Reference {
			name = "*" + name + "*"
		}
		p("| %s", name)
		for _, c := range t.Columns {
			p(" | %s", c.cell(row, best[c.Name]))
		}
		p(" |\n")
	}
	if t.Chart != nil {
		p("\n![%s](charts/%s.svg)\n", t.Chart.Title, t.ID)
	}
}

// cell formats a median, and the least and the greatest sample.
func (c columnReport) cell(row rowReport, best map[string]bool) string {
	s := slices.Sorted(slices.Values(row.Samples[c.Name]))
	if len(s) == 0 {
		return "–"
	}
	middle, least, greatest := c.format(median(s)), c.format(s[0]), c.format(s[len(s)-1])
	spread := ""
	if least != greatest {
		spread = fmt.Sprintf(" (%s–%s)", least, greatest)
	}
	if best[row.Name] {
		middle = "**" + middle + "**"
	}
	return middle + spread
}

// text escapes s for a cell of a table.
func text(s string) string { return strings.ReplaceAll(s, "|", "\\|") }

// best returns the rows whose median in a column is the best, as it is written: none if neither is
// better, or if all are the same.
func (t *tableReport) best(c columnReport) map[string]bool {
	var (
		best     = make(map[string]bool)
		value    float64
		compared int
	)
	if c.Better == Neither.name() {
		return best
	}
	for _, row := range t.Rows {
		s := slices.Sorted(slices.Values(row.Samples[c.Name]))
		if len(s) == 0 || row.Reference {
			continue
		}
		v := median(s)
		compared++
		switch {
		case len(best) > 0 && c.format(v) == c.format(value):
			best[row.Name] = true
		case len(best) == 0, c.Better == More.name() && v > value, c.Better == Less.name() && v < value:
			clear(best)
			best[row.Name], value = true, v
		}
	}
	if len(best) == compared {
		clear(best)
	}
	return best
}
