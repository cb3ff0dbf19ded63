package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"
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
	column Column
	best   map[string]bool
}

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
	What    string   `json:"what"`
	Value   *float64 `json:"value"` // null if it was not measured
	Unit    string   `json:"unit,omitempty"`
	Better  string   `json:"better"`
	AtLeast float64  `json:"at_least"`
	Reach   float64  `json:"reach"`
	Verdict string   `json:"verdict"`
	target  Target
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

// report returns the report of the section.
func (b *B) report(elapsed time.Duration) sectionReport {
	s := sectionReport{Name: b.section.Name, Title: b.section.Title, About: b.section.About, Elapsed: elapsed.Seconds(), Notes: b.notes}
	for _, t := range b.tables {
		s.Tables = append(s.Tables, t.report())
	}
	for _, t := range b.targets {
		r := targetReport{
			What: t.What, Unit: t.Unit, Better: t.Better.name(), AtLeast: t.AtLeast, Reach: t.Reach, Verdict: t.Verdict(), target: t,
		}
		if !math.IsNaN(t.Value) && !math.IsInf(t.Value, 0) {
			r.Value = &t.Value
		}
		s.Targets = append(s.Targets, r)
	}
	return s
}

func (t *Table) report() tableReport {
	r := tableReport{ID: t.id, Title: t.title, Note: t.note}
	for _, c := range t.columns {
		r.Columns = append(r.Columns, columnReport{Name: c.Name, Unit: c.Unit, Better: c.Better.name(), column: c, best: t.best(c)})
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

func (r *report) markdown() []byte {
	var w bytes.Buffer
	p := func(format string, args ...any) { _, _ = fmt.Fprintf(&w, format, args...) }

	p("# Results\n\n")
	switch r.Setting {
	case Tiny.String():
		p("**The tiny setting only checks that everything runs. These figures mean nothing.**\n\n")
	case Quick.String():
		p("**The quick setting measures for a short time. These figures are rough.**\n\n")
	}
	p("Measured on %s by `%s`, in %v. ", r.Began.Format("2 January 2006"), r.Command, time.Duration(r.Elapsed*float64(time.Second)).Round(time.Second))
	if r.Rounds == 1 {
		p("All contenders have run once, in the same process run. ")
	} else {
		p("All contenders have run in the same process run, interleaved, in %d rounds. A figure is the median of the rounds; in brackets "+
			"are the least and the greatest. ", r.Rounds)
	}
	p("The best of each column is **bold**; rows in *italics* are references and do not compete. Machines differ and drift, " +
		"so read the figures as ratios. Every sample is in [results.json](results.json).\n\n")
	p("| | |\n|---|---|\n")
	for _, f := range r.Machine {
		p("| %s | %s |\n", f.Name, text(f.Value))
	}
	for _, f := range r.Modules {
		p("| %s | %s |\n", f.Name, f.Value)
	}
	r.targets(p)
	for _, s := range r.Sections {
		s.markdown(p)
	}
	return w.Bytes()
}

func (r *report) targets(p func(string, ...any)) {
	p("\n## Targets\n\nThe targets of this suite, and the values of this run.\n\n")
	p("| | measured | at least | reach | |\n|---|---|---|---|---|\n")
	for _, s := range r.Sections {
		for _, t := range s.Targets {
			bound := "≥ "
			if t.target.Better == Less {
				bound = "≤ "
			}
			limit := func(v float64) string {
				if s := t.target.bound(v); s != "–" {
					return bound + s
				}
				return "–"
			}
			value := "–"
			if t.Value != nil {
				value = strings.TrimSpace(significant(*t.Value) + " " + t.Unit)
			}
			verdict := t.Verdict
			if verdict == "not reached" {
				verdict = "**not reached**"
			}
			p("| %s | %s | %s | %s | %s |\n", text(t.What), value, limit(t.AtLeast), limit(t.Reach), verdict)
		}
	}
}

func (s *sectionReport) markdown(p func(string, ...any)) {
	p("\n## %s\n\n%s\n", s.Title, s.About)
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
	for _, row := range t.Rows {
		name := text(row.Name)
		if row.Reference {
			name = "*" + name + "*"
		}
		p("| %s", name)
		for _, c := range t.Columns {
			p(" | %s", c.cell(row))
		}
		p(" |\n")
	}
	if t.Chart != nil {
		p("\n![%s](charts/%s.svg)\n", t.Chart.Title, t.ID)
	}
}

// cell formats a median, and the least and the greatest sample.
func (c *columnReport) cell(row rowReport) string {
	s := slices.Sorted(slices.Values(row.Samples[c.Name]))
	if len(s) == 0 {
		return "–"
	}
	middle, least, greatest := c.column.format(median(s)), c.column.format(s[0]), c.column.format(s[len(s)-1])
	spread := ""
	if least != greatest {
		spread = fmt.Sprintf(" (%s–%s)", least, greatest)
	}
	if c.best[row.Name] {
		middle = "**" + middle + "**"
	}
	return middle + spread
}

// text escapes s for a cell of a table.
func text(s string) string { return strings.ReplaceAll(s, "|", "\\|") }
