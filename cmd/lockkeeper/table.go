package main

import (
	"strings"
	"unicode/utf8"
)

// table is rows of cells, of which the columns are aligned.
type table struct{ rows [][]string }

func (t *table) add(cells ...string) {
	for i, cell := range cells {
		indent := len(cell) - len(strings.TrimLeft(cell, " "))
		cells[i] = cell[:indent] + printable(cell[indent:])
	}
	t.rows = append(t.rows, cells)
}

// print prints the rows, with two spaces between columns.
func (t *table) print(p printer) {
	widths := t.widths()
	for _, row := range t.rows {
		var b strings.Builder
		for i, cell := range row {
			b.WriteString(pad(cell, widths[i]+2))
		}
		p.line("%s", strings.TrimRight(b.String(), " "))
	}
}

func (t *table) widths() []int {
	var widths []int
	for _, row := range t.rows {
		for i, cell := range row {
			if i == len(widths) {
				widths = append(widths, 0)
			}
			widths[i] = max(widths[i], utf8.RuneCountInString(cell))
		}
	}
	return widths
}

// pad appends spaces to a text.
func pad(text string, columns int) string {
	return text + strings.Repeat(" ", max(columns-utf8.RuneCountInString(text), 0))
}

// cut shortens a text that is too long.
func cut(text string, columns int) string {
	if utf8.RuneCountInString(text) <= columns {
		return text
	}
	return string([]rune(text)[:max(columns-1, 0)]) + "…"
}
