package doccheck

import "strings"

// Code returns the blocks of Go code that are in no Go file.
//
// A block is an excerpt of a file: its lines are consecutive lines of that file, but for blank lines and
// the width of spaces. A line "// …" stands for any number of lines.
func (r *Repository) Code() (findings []string) {
	for _, d := range r.documents {
		for _, b := range d.blocks {
			if b.language != "go" {
				continue
			}
			if l, near := r.missing(b); l != nil {
				findings = append(findings, finding(d, *l, "the code is in no Go file from this line on (%s): %s", near, l.text))
			}
		}
	}
	return findings
}

// anyLines is a line of a block that stands for any number of lines.
const anyLines = "// …"

// source is the lines of a Go file that are not blank, as plain returns them.
type source struct {
	path, text string
	lines      []string
	numbers    []int // of lines, from 1
}

func newSource(name, text string) source {
	s := source{path: name, text: text}
	number := 0
	for text := range strings.Lines(text) {
		number++
		if text = plain(text); text != "" {
			s.lines, s.numbers = append(s.lines, text), append(s.numbers, number)
		}
	}
	return s
}

// plain returns a line without indentation, and without what gofmt aligns it by.
func plain(text string) string { return strings.Join(strings.Fields(text), " ") }

// missing returns the first line of a block that no file has after the lines before it, and the files
// that have most of them. It returns nil if a file has all.
func (r *Repository) missing(b block) (first *line, near string) {
	var lines []line
	for _, l := range b.lines[1:] {
		if l.text = plain(l.text); l.text != "" {
			lines = append(lines, l)
		}
	}
	if len(lines) == 0 {
		return &b.lines[0], "it is empty"
	}
	most := -1
	for _, s := range r.sources {
		n := s.matches(lines)
		if n == len(lines) {
			return nil, ""
		}
		if n > most {
			most, near = n, "nearest: "+s.path
		}
	}
	if most <= 0 {
		return &lines[0], "none has the first line"
	}
	return &lines[most], near
}

// matches returns how many lines of a block the file has, from the first one on.
func (s *source) matches(lines []line) (n int) {
	rest := s.lines
	for n < len(lines) {
		if lines[n].text == anyLines {
			n++
			continue
		}
		end := n
		for end < len(lines) && lines[end].text != anyLines {
			end++
		}
		at, most := 0, 0
		for ; at < len(rest) && most < end-n; at++ {
			most = max(most, common(rest[at:], lines[n:end]))
		}
		if most < end-n {
			return n + most
		}
		rest, n = rest[at-1+most:], end
	}
	return n
}

// common returns how many lines are the same, from the first ones on.
func common(a []string, b []line) (n int) {
	for n < min(len(a), len(b)) && a[n] == b[n].text {
		n++
	}
	return n
}
