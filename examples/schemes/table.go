package main

import (
	"fmt"
	"io"
	"strings"
	"unicode/utf8"
)

// row is a trial and its outcome on both sides.
type row struct {
	trial           trial
	classic, keeper finding
}

func (f finding) String() string { return string(f.verdict) + ": " + f.text }

var (
	headings = []string{"scheme", "trial", "what happened", "what Lockkeeper did"}
	widths   = []int{24, 22, 36, 42}
)

// writeTable writes the rows as a table whose cells are wrapped.
func writeTable(w io.Writer, rows []row) error {
	var b strings.Builder
	rule := func() {
		for i, width := range widths {
			b.WriteString([]string{"+-", "-+-"}[min(i, 1)] + strings.Repeat("-", width))
		}
		b.WriteString("-+\n")
	}
	line := func(cells ...string) {
		wrapped, height := make([][]string, len(cells)), 0
		for i, cell := range cells {
			wrapped[i] = wrap(cell, widths[i])
			height = max(height, len(wrapped[i]))
		}
		for n := range height {
			for i, lines := range wrapped {
				text := ""
				if n < len(lines) {
					text = lines[n]
				}
				b.WriteString([]string{"| ", " | "}[min(i, 1)] + text + strings.Repeat(" ", max(widths[i]-utf8.RuneCountInString(text), 0)))
			}
			b.WriteString(" |\n")
		}
	}
	rule()
	line(headings...)
	rule()
	for _, r := range rows {
		line(r.trial.scheme, r.trial.name, r.classic.String(), r.keeper.String())
		rule()
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// wrap breaks a text at spaces into lines of at most a number of characters.
func wrap(text string, width int) []string {
	var lines []string
	for _, word := range strings.Fields(text) {
		last := len(lines) - 1
		if last >= 0 && utf8.RuneCountInString(lines[last])+1+utf8.RuneCountInString(word) <= width {
			lines[last] += " " + word
		} else {
			lines = append(lines, word)
		}
	}
	return lines
}

// summary counts the verdicts, and reports whether Lockkeeper passed.
func summary(rows []row) (text string, ok bool) {
	classic, keeper := make(map[verdict]int), make(map[verdict]int)
	for _, r := range rows {
		classic[r.classic.verdict]++
		keeper[r.keeper.verdict]++
	}
	return fmt.Sprintf("%d trials: %d broken and %d costly; with Lockkeeper %d and %d, and %d left to the fence",
		len(rows), classic[broken], classic[costly], keeper[broken], keeper[costly], keeper[fenced]), keeper[sound]+keeper[fenced]+keeper[absent] == len(rows)
}
