package console

import (
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/base/live"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// chart is a mechanism's last ten minutes as the paths of two drawings, which are operate.Points wide
// and chartHeight high. The open slot is left out: it would fall and rise with each look.
type chart struct {
	Allowed, Denied string // areas: calls that passed, and on top of them the denied ones
	P50, P99        string // lines, on a logarithmic scale from 10 µs to 100 s
	Most            uint64 // calls in 5 s at the top of the first drawing
}

const chartHeight = 24

func draw(points []operate.Point) (c chart) {
	points = points[:len(points)-1]
	for i := range points {
		c.Most = max(c.Most, points[i].Calls())
	}
	scale := func(n uint64) float64 {
		if c.Most == 0 {
			return chartHeight
		}
		return chartHeight - chartHeight*float64(n)/float64(c.Most)
	}
	passed := make([]float64, len(points))
	all := make([]float64, len(points))
	floor := make([]float64, len(points))
	for i := range points {
		p := &points[i]
		passed[i], all[i], floor[i] = scale(p.Passed+p.Other), scale(p.Calls()), chartHeight
	}
	if c.Most > 0 {
		c.Allowed, c.Denied = area(passed, floor), area(all, passed)
	}
	c.P50 = line(points, func(p *operate.Point) time.Duration { return p.P50 })
	c.P99 = line(points, func(p *operate.Point) time.Duration { return p.P99 })
	return c
}

// area is the path round the points between two heights.
func area(top, bottom []float64) string {
	var b strings.Builder
	b.WriteByte('M')
	for i, y := range top {
		step(&b, i, y)
	}
	for i := len(bottom) - 1; i >= 0; i-- {
		step(&b, i, bottom[i])
	}
	b.WriteByte('Z')
	return b.String()
}

// step appends the two ends of a slot's edge. A path goes to the right first, and back at last.
func step(b *strings.Builder, x int, y float64) {
	b.WriteString(strconv.Itoa(x))
	b.WriteByte(' ')
	b.WriteString(strconv.FormatFloat(math.Round(y*10)/10, 'f', -1, 64))
	b.WriteByte(' ')
}

// line is the path of durations; it is broken where there are none.
func line(points []operate.Point, of func(*operate.Point) time.Duration) string {
	var b strings.Builder
	least, most := math.Log(float64(live.Bounds[0])), math.Log(float64(2*live.Bounds[len(live.Bounds)-1]))
	pen := byte('M')
	for i := range points {
		if !points[i].Measured {
			pen = 'M'
			continue
		}
		b.WriteByte(pen)
		pen = 'L'
		part := (math.Log(float64(of(&points[i]))) - least) / (most - least)
		step(&b, i, chartHeight-1-(chartHeight-2)*min(max(part, 0), 1))
		if pen == 'L' && i+1 < len(points) && !points[i+1].Measured { // a lone point would not be seen
			b.WriteByte('L')
			step(&b, i+1, chartHeight-1-(chartHeight-2)*min(max(part, 0), 1))
		}
	}
	return b.String()
}
