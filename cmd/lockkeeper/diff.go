package main

import (
	"bytes"
	"slices"
	"strconv"
	"strings"
)

// diffLine is a line of a comparison: of both texts (" "), of the first alone ("-"), or of the second
// ("+").
type diffLine struct {
	Op   string `json:"op"`
	Text string `json:"text"`
}

// maxCompared bounds the work of a comparison: the product of both texts' numbers of lines between
// the first and the last difference. Above it, all of these lines count as different.
const maxCompared = 16 << 20

// diff compares two texts line by line.
func diff(before, after []byte) []diffLine {
	a, b := linesOf(before), linesOf(after)
	var head, tail []diffLine
	for len(a) > 0 && len(b) > 0 && a[0] == b[0] {
		head = append(head, diffLine{" ", a[0]})
		a, b = a[1:], b[1:]
	}
	for len(a) > 0 && len(b) > 0 && a[len(a)-1] == b[len(b)-1] {
		tail = append(tail, diffLine{" ", a[len(a)-1]})
		a, b = a[:len(a)-1], b[:len(b)-1]
	}
	slices.Reverse(tail)
	return slices.Concat(head, diffMiddle(a, b), tail)
}

// diffMiddle compares two texts by their longest common subsequence of lines.
func diffMiddle(a, b []string) (lines []diffLine) {
	// common[i][j] is the length of the longest common subsequence of a[i:] and b[j:].
	common := [][]int32{}
	if len(a)*len(b) <= maxCompared {
		common = make([][]int32, len(a)+1)
		for i := range common {
			common[i] = make([]int32, len(b)+1)
		}
		for i := len(a) - 1; i >= 0; i-- {
			for j := len(b) - 1; j >= 0; j-- {
				if a[i] == b[j] {
					common[i][j] = common[i+1][j+1] + 1
				} else {
					common[i][j] = max(common[i+1][j], common[i][j+1])
				}
			}
		}
	}
	i, j := 0, 0
	for len(common) > 0 && i < len(a) && j < len(b) {
		switch {
		case a[i] == b[j]:
			lines = append(lines, diffLine{" ", a[i]})
			i, j = i+1, j+1
		case common[i+1][j] >= common[i][j+1]:
			lines = append(lines, diffLine{"-", a[i]})
			i++
		default:
			lines = append(lines, diffLine{"+", b[j]})
			j++
		}
	}
	for ; i < len(a); i++ {
		lines = append(lines, diffLine{"-", a[i]})
	}
	for ; j < len(b); j++ {
		lines = append(lines, diffLine{"+", b[j]})
	}
	return lines
}

// linesOf returns the lines of a text. A line break at its end is left out, as most texts have one.
func linesOf(text []byte) []string {
	if len(text) == 0 {
		return nil
	}
	return strings.Split(string(bytes.TrimSuffix(text, []byte{'\n'})), "\n")
}

// diffContext is the number of equal lines that are printed before and after a difference.
const diffContext = 2

// printDiff prints the lines that differ, and diffContext lines around them; nothing if none
// differ.
func printDiff(p printer, lines []diffLine) {
	last := -1 // the last line that was printed
	for i, line := range lines {
		if line.Op == " " && !near(lines, i) {
			continue
		}
		if i != last+1 {
			p.line("...")
		}
		p.line("%s", strings.TrimRight(line.Op+" "+visible(line.Text), " "))
		last = i
	}
	if last >= 0 && last != len(lines)-1 {
		p.line("...")
	}
}

// near reports whether a line, or one at most diffContext lines away, differs.
func near(lines []diffLine, i int) bool {
	around := lines[max(i-diffContext, 0):min(i+diffContext+1, len(lines))]
	return slices.ContainsFunc(around, func(l diffLine) bool { return l.Op != " " })
}

// visible returns a line as it is, or in quotes with escapes if it has characters that cannot be
// seen.
func visible(line string) string {
	if line != printable(line) || strings.HasSuffix(line, " ") {
		return strconv.Quote(line)
	}
	return line
}
