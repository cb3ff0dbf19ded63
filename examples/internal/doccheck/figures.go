package doccheck

import (
	"encoding/json"
	"fmt"
	"io/fs"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// Figures returns the figures of a section of a document that are not those of the benchmarks, and the
// numbers that have no source. results is the results.json of a run.
//
// A comment after a text says where its figures come from:
//
//	4.5 times the decisions of redis_rate with 256 goroutines, …
//	<!-- 4.5 = Redis, allowed, 256 goroutines: times redis_rate
//	     1.2 = locks-uncontended | p50 | Lockkeeper ÷ redsync -->
//
// A source is the name of a target, or a table, a column and a row, or two rows of which the first is
// divided by the second. A figure is the source's value, rounded to as many digits after the point as the
// figure has. Any other number in the text is part of a source's name.
func (r *Repository) Figures(name, section, results string) (findings []string, err error) {
	run, err := readRun(r.root, results)
	if err != nil {
		return nil, err
	}
	i := slices.IndexFunc(r.documents, func(d *document) bool { return d.path == name })
	if i < 0 {
		return nil, fmt.Errorf("no document %s", name)
	}
	d := r.documents[i]
	lines := d.section(section)
	if lines == nil {
		return nil, fmt.Errorf("%s has no section %q", name, section)
	}
	for _, p := range passages(lines) {
		findings = append(findings, run.check(d, p)...)
	}
	return findings, nil
}

// passage is a text, and the comments after it.
type passage struct{ text, comments []line }

func passages(lines []line) (all []passage) {
	var p passage
	inside := false // a comment
	for _, l := range lines {
		for rest, more := l.text, true; more; inside = inside != more {
			mark := "<!--"
			if inside {
				mark = "-->"
			}
			l.text, rest, more = strings.Cut(rest, mark)
			switch {
			case strings.TrimSpace(l.text) == "":
			case inside:
				p.comments = append(p.comments, l)
			case len(p.comments) > 0:
				all = append(all, p)
				p = passage{text: []line{l}}
			default:
				p.text = append(p.text, l)
			}
		}
	}
	return append(all, p)
}

// section returns the lines below a heading, with those below its subheadings, or nil.
func (d *document) section(title string) (lines []line) {
	level := 0 // of the heading
	for _, l := range d.prose {
		heading := headings.FindStringSubmatch(l.text)
		switch {
		case heading != nil && (level == 0 || len(heading[1]) <= level):
			if level = 0; heading[2] == title {
				level = len(heading[1])
			}
		case heading == nil && level > 0:
			lines = append(lines, l)
		}
	}
	return lines
}

var (
	figure = regexp.MustCompile(`^([\d.,]*\d) = (.+)$`)
	number = regexp.MustCompile(`(?:^|[^\pL\d_.,])(\d+(?:,\d{3})*(?:\.\d+)?)`)
	images = regexp.MustCompile(`!\[[^\]]*\]\([^)]*\)`)
	goals  = regexp.MustCompile(`\]\([^)]*\)`)
)

// numbers returns the numbers in a text, but for those in code, links and words such as p99.
func numbers(text string) (all []string) {
	for _, pattern := range []*regexp.Regexp{images, goals, codeSpan} {
		text = pattern.ReplaceAllString(text, " ")
	}
	for _, match := range number.FindAllStringSubmatch(text, -1) {
		all = append(all, match[1])
	}
	return all
}

// check returns what is wrong with the figures of a passage.
func (r *run) check(d *document, p passage) (findings []string) {
	var texts, names []string // numbers
	for _, l := range p.text {
		texts = append(texts, numbers(l.text)...)
	}
	var figures []string
	for _, l := range p.comments {
		match := figure.FindStringSubmatch(strings.TrimSpace(l.text))
		if match == nil {
			findings = append(findings, finding(d, l, "this is no figure with its source: %s", strings.TrimSpace(l.text)))
			continue
		}
		figures, names = append(figures, match[1]), append(names, numbers(match[2])...)
		value, err := r.value(match[2])
		switch rounded := roundAs(value, match[1]); {
		case err != nil:
			findings = append(findings, finding(d, l, "%v", err))
		case rounded != match[1]:
			findings = append(findings, finding(d, l, "%s is %s in the results: %s", match[1], rounded, match[2]))
		case !slices.Contains(texts, match[1]):
			findings = append(findings, finding(d, l, "%s is not in the text before the comment", match[1]))
		}
	}
	for _, l := range p.text {
		for _, n := range numbers(l.text) {
			if !slices.Contains(figures, n) && !slices.Contains(names, n) {
				findings = append(findings, finding(d, l, "%s has no source in a comment after it", n))
			}
		}
	}
	return findings
}

// roundAs returns a value with as many digits after the point as a figure, and commas if it has any.
func roundAs(value float64, figure string) string {
	_, part, _ := strings.Cut(figure, ".")
	text := strconv.FormatFloat(value, 'f', len(part), 64)
	if strings.Contains(figure, ",") {
		whole, _, _ := strings.Cut(text, ".")
		for i := len(whole) - 3; i > 0; i -= 3 {
			text = text[:i] + "," + text[i:]
		}
	}
	return text
}

// run is a run of the benchmarks, as in results.json.
type run struct {
	Sections []struct {
		Tables []struct {
			ID   string `json:"id"`
			Rows []struct {
				Name    string               `json:"name"`
				Samples map[string][]float64 `json:"samples"`
			} `json:"rows"`
		} `json:"tables"`
		Targets []struct {
			What  string   `json:"what"`
			Value *float64 `json:"value"`
		} `json:"targets"`
	} `json:"sections"`
}

func readRun(root fs.FS, name string) (*run, error) {
	text, err := fs.ReadFile(root, name)
	if err != nil {
		return nil, err
	}
	r := &run{}
	return r, json.Unmarshal(text, r)
}

// value returns that of a source.
func (r *run) value(source string) (float64, error) {
	for _, section := range r.Sections {
		for _, target := range section.Targets {
			if target.What == source && target.Value != nil {
				return *target.Value, nil
			}
		}
	}
	parts := strings.Split(source, " | ")
	if len(parts) != 3 {
		return 0, fmt.Errorf("the results have no target %q", source)
	}
	dividend, divisor, divided := strings.Cut(parts[2], " ÷ ")
	value, err := r.median(parts[0], parts[1], dividend)
	if err != nil || !divided {
		return value, err
	}
	by, err := r.median(parts[0], parts[1], divisor)
	return value / by, err
}

// median returns that of a cell's samples.
func (r *run) median(table, column, row string) (float64, error) {
	for _, section := range r.Sections {
		for _, t := range section.Tables {
			for _, its := range t.Rows {
				if s := slices.Sorted(slices.Values(its.Samples[column])); t.ID == table && its.Name == row && len(s) > 0 {
					return (s[(len(s)-1)/2] + s[len(s)/2]) / 2, nil
				}
			}
		}
	}
	return 0, fmt.Errorf("the results have no table %q with the column %q and the row %q", table, column, row)
}
