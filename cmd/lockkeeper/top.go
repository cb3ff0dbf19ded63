package main

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// frameInterval is the pause between two frames.
const frameInterval = 2 * time.Second

// topView is what passes and what is denied.
type topView struct {
	Rows      []topRow `json:"mechanisms"` // the most denials first
	Processes int      `json:"processes"`

	wrong         int
	columns, rows int // of the terminal; no rows: all of them
}

type topRow struct {
	Kind      string        `json:"kind"`
	Name      string        `json:"name"`
	Processes int           `json:"processes"`
	Waiting   int64         `json:"waiting"`
	Held      int64         `json:"held"`
	Total     uint64        `json:"total"` // calls since the processes started
	Latest    operate.Point `json:"last_5_s"`
	Minute    operate.Point `json:"last_minute"`
	History   bool          `json:"history"` // of all processes

	chart []operate.Point
}

// topOf returns the view of a fleet, of those names and kinds that contain a text.
func topOf(fleet []presence.Process, text string) *topView {
	v := &topView{Rows: []topRow{}, Processes: len(fleet), wrong: operate.Wrong(troubles(fleet)), columns: 120}
	for _, r := range operate.Rows(fleet) {
		if text != "" && !strings.Contains(strings.ToLower(r.Name+" "+operate.Noun(r.Kind)), strings.ToLower(text)) {
			continue
		}
		v.Rows = append(v.Rows, topRow{
			Kind: r.Kind, Name: r.Name, Processes: len(r.Parts), Waiting: r.Waiting, Held: r.Held, Total: r.Calls(),
			Latest: r.Latest(), Minute: r.Minute(), chart: r.Chart(),
			History: !slices.ContainsFunc(r.Parts, func(p operate.Part) bool { return p.Mechanism.Slots == nil }),
		})
	}
	slices.SortStableFunc(v.Rows, func(a, b topRow) int {
		return cmp.Or(cmp.Compare(b.Minute.Denied, a.Minute.Denied), cmp.Compare(b.Minute.Calls(), a.Minute.Calls()))
	})
	return v
}

func (v *topView) text(p printer) {
	for _, line := range v.lines() {
		p.line("%s", line)
	}
}

// lines are the lines of the view, none longer than its columns.
func (v *topView) lines() []string {
	lines := []string{v.title(), v.heads()}
	for i := range v.Rows {
		if v.rows > 0 && len(lines) == v.rows-1 && i < len(v.Rows)-1 {
			lines = append(lines, fmt.Sprintf("and %d more: make the terminal higher, or say a part of their names",
				len(v.Rows)-i))
			break
		}
		lines = append(lines, v.line(&v.Rows[i]))
	}
	for i := range lines {
		lines[i] = cut(strings.TrimRight(lines[i], " "), v.columns)
	}
	return lines
}

func (v *topView) title() string {
	title := counted(v.Processes, "process", "processes") + ", " + counted(len(v.Rows), "mechanism", "mechanisms")
	if v.wrong > 0 {
		title += fmt.Sprintf("; %s wrong: see lockkeeper now", counted(v.wrong, "thing is", "things are"))
	}
	return title
}

// The widths of the columns: a name, a kind, figures, and the chart with the rest of the line.
const (
	nameWidth, kindWidth = 16, 9
	figureWidth          = 6
	figures              = 6
	mostChart            = operate.Points
)

func (v *topView) chartWidth() int {
	return max(min(v.columns-nameWidth-1-kindWidth-figures*(figureWidth+1)-2, mostChart), 0)
}

func (v *topView) heads() string {
	heads := []string{"PASS/s", "DENY/s", "FAIL/s", "WAIT", "HELD", "P99"}
	return join("NAME", "KIND", heads, cut("10 MIN", v.chartWidth()))
}

// join makes a line of cells.
func join(name, kind string, figures []string, chart string) string {
	var b strings.Builder
	b.WriteString(pad(cut(name, nameWidth), nameWidth) + " " + pad(kind, kindWidth))
	for _, figure := range figures {
		fmt.Fprintf(&b, " %*s", figureWidth, figure)
	}
	return b.String() + "  " + chart
}

func (v *topView) line(r *topRow) string {
	p99 := "-"
	if r.Latest.Measured {
		p99 = operate.Short(r.Latest.P99)
	}
	cells := []string{
		rate(r.Latest.Passed), rate(r.Latest.Denied), rate(r.Latest.Failed),
		strconv.FormatInt(r.Waiting, 10), strconv.FormatInt(r.Held, 10), p99,
	}
	chart := sparkline(r.chart, v.chartWidth())
	if !r.History {
		chart = cut("history follows", v.chartWidth())
	}
	return join(quoted(r.Name), printable(operate.Noun(r.Kind)), cells, chart)
}

// rate returns a number of events in 5 s as one a second, in at most six characters.
func rate(n uint64) string {
	switch perSecond := float64(n) / presence.SlotLength.Seconds(); {
	case n == 0:
		return "0"
	case perSecond < 10:
		return strconv.FormatFloat(perSecond, 'f', 1, 64)
	case perSecond < 1e6:
		return strconv.FormatFloat(perSecond, 'f', 0, 64)
	default:
		return strconv.FormatFloat(perSecond/1e6, 'f', 1, 64) + "M"
	}
}

// blocks are the bars of a sparkline. No calls are a space.
var blocks = []rune(" ▁▂▃▄▅▆▇█")

// sparkline draws the calls of points in so many columns, the latest at the right.
func sparkline(points []operate.Point, columns int) string {
	if columns <= 0 {
		return ""
	}
	sums := make([]uint64, columns)
	for i := range points {
		sums[i*columns/len(points)] += points[i].Calls()
	}
	most := max(slices.Max(sums), 1)
	bars := make([]rune, columns)
	for i, n := range sums {
		bars[i] = blocks[(n*uint64(len(blocks)-1)+most-1)/most]
	}
	return string(bars)
}

// top shows frames on a terminal until q is pressed, and otherwise one.
func top(ctx context.Context, c *call) error {
	text := strings.Join(c.args, "")
	if !c.json && isTerminal(c.stdin) && isTerminal(c.stdout) {
		return c.frames(ctx, text)
	}
	fleet, err := watchFleet(ctx, c.store)
	if err != nil {
		return err
	}
	return c.print(topOf(fleet, text))
}

func (c *call) frames(ctx context.Context, text string) error {
	fleet, err := presence.Watch(ctx, c.store)
	if err != nil {
		return err
	}
	s, err := takeScreen(c.stdin, c.stdout)
	if err != nil {
		return err
	}
	defer s.restore()
	ctx, cancel := s.untilQuit(ctx)
	defer cancel()
	ticker := time.NewTicker(frameInterval)
	defer ticker.Stop()
	for ctx.Err() == nil {
		s.show(frame(fleet, err, text, c))
		select {
		case <-ticker.C:
			fleet, err = refreshed(ctx, c, fleet)
		case <-ctx.Done():
		}
	}
	return nil
}

// refreshed returns the fleet, or the last one if the store does not reply.
func refreshed(ctx context.Context, c *call, last []presence.Process) ([]presence.Process, error) {
	fleet, err := presence.Watch(ctx, c.store)
	if err != nil {
		return last, err
	}
	return fleet, nil
}

// frame returns the lines of a frame that fits on the terminal.
func frame(fleet []presence.Process, failed error, text string, c *call) []string {
	v := topOf(fleet, text)
	v.columns, v.rows = sizeOf(c.stdout)
	lines := v.lines()
	lines[0] = cut(lines[0]+"; q ends it", v.columns)
	if failed != nil {
		lines[0] = cut("old figures: "+printable(failed.Error()), v.columns)
	}
	return lines[:min(len(lines), v.rows)]
}
