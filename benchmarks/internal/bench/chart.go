package bench

import (
	"bytes"
	"fmt"
	"html"
	"math"
	"slices"
	"strings"
)

// The measures of a chart, in pixels.
const (
	chartWidth   = 820
	labelWidth   = 310
	valueWidth   = 120
	barHeight    = 16
	barDistance  = 22
	panelHeading = 34
	titleHeight  = 40
	margin       = 14
)

// logarithmic is the ratio of the greatest to the least contender from which on the scale is
// logarithmic.
const logarithmic = 40

// ours is the prefix of the rows of this suite.
const ours = "Lockkeeper"

// The style has its own background, so that it is readable on every page.
const chartStyle = `<style>
	.ground { fill: #ffffff } text { fill: #1f2328; font: 13px system-ui, sans-serif }
	.title { font-weight: 600; font-size: 15px } .panel { font-weight: 600 } .small { fill: #59636e; font-size: 12px }
	.peer { fill: #8c9bab } .ours { fill: #0969da } .reference { fill: #d0d7de } .spread { stroke: #1f2328; stroke-width: 1.5 }
	@media (prefers-color-scheme: dark) {
		.ground { fill: #0d1117 } text { fill: #e6edf3 } .small { fill: #9198a1 }
		.peer { fill: #6e7b8a } .ours { fill: #4493f8 } .reference { fill: #3d444d } .spread { stroke: #e6edf3 }
	}
</style>
`

type bar struct {
	row                     string
	reference               bool
	median, least, greatest float64
}

// svg draws one panel for each column of the chart, with a bar for each row: its length is the median,
// and a line shows the least and the greatest sample.
func (t *tableReport) svg() []byte {
	var panels bytes.Buffer
	y := titleHeight
	for _, name := range t.Chart.Columns {
		i := slices.IndexFunc(t.Columns, func(c columnReport) bool { return c.Name == name })
		if i < 0 {
			panic(fmt.Sprintf("bench: table %s has no column %q to draw", t.ID, name))
		}
		if bars := t.bars(name); len(bars) > 0 {
			y = t.Columns[i].draw(&panels, y, bars)
		}
	}
	var w bytes.Buffer
	height := y + margin
	_, _ = fmt.Fprintf(&w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n",
		chartWidth, height, chartWidth, height, html.EscapeString(t.Chart.Title))
	w.WriteString(chartStyle)
	_, _ = fmt.Fprintf(&w, `<rect class="ground" width="%d" height="%d" rx="6"/>`+"\n", chartWidth, height)
	_, _ = fmt.Fprintf(&w, `<text class="title" x="%d" y="26">%s</text>`+"\n", margin, html.EscapeString(t.Chart.Title))
	w.Write(panels.Bytes())
	w.WriteString("</svg>\n")
	return w.Bytes()
}

func (t *tableReport) bars(column string) []bar {
	var bars []bar
	for _, row := range t.Rows {
		if s := slices.Sorted(slices.Values(row.Samples[column])); len(s) > 0 {
			bars = append(bars, bar{row.Name, row.Reference, median(s), s[0], s[len(s)-1]})
		}
	}
	return bars
}

// draw draws a panel that begins at y, and returns where it ends.
func (c *columnReport) draw(w *bytes.Buffer, y int, bars []bar) int {
	length, remark := scale(bars)
	about := []string{c.Unit}
	switch c.Better {
	case More.name():
		about = append(about, "more is better")
	case Less.name():
		about = append(about, "less is better")
	}
	about = append(about, remark)
	about = slices.DeleteFunc(about, func(s string) bool { return s == "" })
	_, _ = fmt.Fprintf(w, `<text class="panel" x="%d" y="%d">%s <tspan class="small" font-weight="400">%s</tspan></text>`+"\n",
		margin, y+20, html.EscapeString(c.Name), html.EscapeString(strings.Join(about, " · ")))
	y += panelHeading
	for _, b := range bars {
		class := "peer"
		switch {
		case b.reference:
			class = "reference"
		case strings.HasPrefix(b.row, ours):
			class = "ours"
		}
		end := labelWidth + length(b.median)
		_, _ = fmt.Fprintf(w, `<text class="row" x="%d" y="%d" text-anchor="end">%s</text>`+"\n", labelWidth-8, y+13, html.EscapeString(shorten(b.row)))
		_, _ = fmt.Fprintf(w, `<rect class="%s" x="%d" y="%d" width="%.1f" height="%d" rx="2"/>`+"\n", class, labelWidth, y, length(b.median), barHeight)
		if from, to := labelWidth+length(b.least), labelWidth+length(b.greatest); to-from > 1 {
			_, _ = fmt.Fprintf(w, `<line class="spread" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>`+"\n", from, to, y+barHeight/2, y+barHeight/2)
			end = max(end, to)
		}
		_, _ = fmt.Fprintf(w, `<text class="value" x="%.1f" y="%d">%s</text>`+"\n", end+6, y+13, html.EscapeString(c.format(b.median)))
		y += barDistance
	}
	return y + 4
}

// scale returns the length of a value's bar, and a remark on the scale. Bars of a logarithmic scale
// begin at half of the least median. An outlier may exceed the scale, so that it does not flatten
// the others.
func scale(bars []bar) (length func(float64) float64, remark string) {
	const room = chartWidth - labelWidth - valueWidth
	var (
		least, greatest = math.Inf(1), 0.0 // of the medians
		most            = 0.0
		contenders      = []float64{}
	)
	for _, b := range bars {
		most, greatest = max(most, b.greatest), max(greatest, b.median)
		if b.median > 0 {
			least = min(least, b.median)
			if !b.reference {
				contenders = append(contenders, b.median)
			}
		}
	}
	most = min(most, 1.5*greatest)
	clip := func(length float64) float64 { return min(max(length, 0), room) }
	switch {
	case greatest <= 0:
		return func(float64) float64 { return 0 }, ""
	case len(contenders) > 0 && slices.Max(contenders) > logarithmic*slices.Min(contenders):
		span := math.Log(2 * most / least)
		return func(v float64) float64 {
			if v <= 0 {
				return 0
			}
			return clip(room * math.Log(2*v/least) / span)
		}, "logarithmic"
	default:
		return func(v float64) float64 { return clip(room * v / most) }, ""
	}
}

// shorten cuts a row's name to the available width.
func shorten(row string) string {
	const most = 44
	if r := []rune(row); len(r) > most {
		return string(r[:most-1]) + "…"
	}
	return row
}
