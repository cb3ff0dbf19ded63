package bench

import (
	"bytes"
	"encoding/json"
	"fmt"
	"html"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

// peer is another library, and the measurements that compare it with Lockkeeper: first the one for
// which it is taken most, then its own best. The chart of all peers shows these two.
type peer struct {
	name  string
	pairs []pair
}

// pair is two rows in a column of a table.
type pair struct {
	what          string // in words
	table, column string
	ours, theirs  string // the rows
}

// comparison is what a run has measured of a pair.
type comparison struct {
	what, unit   string
	ours, theirs string  // the medians
	better       float64 // how many times Lockkeeper is better; below 1, it is worse
}

// verdict says who is better, and how many times.
func (c comparison) verdict() string {
	switch {
	case c.even():
		return "even"
	case c.better >= 1:
		return factor(c.better) + " × better"
	default:
		return factor(1/c.better) + " × worse"
	}
}

// even reports whether there is less than 5 % between the two.
func (c comparison) even() bool { return c.better < 1.05 && c.better > 1/1.05 }

// factor formats a ratio of at least 1.
func factor(v float64) string {
	switch {
	case v < 1.2:
		return fmt.Sprintf("%.2f", v)
	case v < 10:
		return fmt.Sprintf("%.1f", v)
	default:
		return fmt.Sprintf("%.0f", v)
	}
}

// compare returns what the run has measured of a peer: nothing of pairs that it did not measure.
func (r *report) compare(p peer) (all []comparison) {
	for _, both := range p.pairs {
		if c, ok := r.pair(both); ok {
			all = append(all, c)
		}
	}
	return all
}

func (r *report) pair(p pair) (c comparison, ok bool) {
	t := r.table(p.table)
	if t == nil {
		return c, false
	}
	i := slices.IndexFunc(t.Columns, func(c columnReport) bool { return c.Name == p.column })
	ours, theirs := t.samples(p.ours, p.column), t.samples(p.theirs, p.column)
	if i < 0 || len(ours) == 0 || len(theirs) == 0 {
		return c, false
	}
	column := t.Columns[i]
	a, b := median(ours), median(theirs)
	if a <= 0 || b <= 0 || column.Better == Neither.name() {
		return c, false
	}
	c = comparison{what: p.what, unit: column.Unit, ours: column.format(a), theirs: column.format(b), better: a / b}
	if column.Better == Less.name() {
		c.better = b / a
	}
	return c, true
}

func (r *report) table(id string) *tableReport {
	for _, s := range r.Sections {
		for i := range s.Tables {
			if s.Tables[i].ID == id {
				return &s.Tables[i]
			}
		}
	}
	return nil
}

// samples returns those of a cell, sorted.
func (t *tableReport) samples(row, column string) []float64 {
	i := slices.IndexFunc(t.Rows, func(r rowReport) bool { return r.Name == row })
	if i < 0 {
		return nil
	}
	return slices.Sorted(slices.Values(t.Rows[i].Samples[column]))
}

// peersChart is the name of the chart of all peers.
const peersChart = "peers"

// besidePeers writes the comparison with all peers.
func (r *report) besidePeers(p func(string, ...any), peers []peer) {
	p("\n## Beside other libraries\n\nMedians of this run, and how many times Lockkeeper is better or worse: *even* below 5 %%. The chart has two rows "+
		"of each library: what it is taken for most, and where it does best. [Coming from another library](../../docs/coming-from.md) has the "+
		"same in words, with what you gain and lose.\n\n![Lockkeeper beside other libraries](charts/%s.svg)\n\n"+
		"| Beside | Measured | Lockkeeper | The other | Lockkeeper is |\n|---|---|---|---|---|\n", peersChart)
	for _, peer := range peers {
		for _, c := range r.compare(peer) {
			p("| %s | %s | %s | %s | %s |\n", text(peer.name), c.source(), c.ours, c.theirs, c.verdict())
		}
	}
}

// source is what was measured, and its unit.
func (c comparison) source() string { return text(strings.TrimSuffix(c.what+", "+c.unit, ", ")) }

// measured reports whether the run has measured anything of the peers.
func (r *report) measured(peers []peer) bool {
	return slices.ContainsFunc(peers, func(p peer) bool { return len(r.compare(p)) > 0 })
}

// ofPeer returns a table of what a run has measured of a peer, in Markdown.
func (r *report) ofPeer(peer peer) string {
	var w strings.Builder
	w.WriteString("| Measured | Lockkeeper | " + text(peer.name) + " | Lockkeeper is |\n|---|---|---|---|\n")
	for _, c := range r.compare(peer) {
		_, _ = fmt.Fprintf(&w, "| %s | %s | %s | %s |\n", c.source(), c.ours, c.theirs, c.verdict())
	}
	return w.String()
}

// PeerTable is what a run has measured of a library.
type PeerTable struct {
	Name     string
	Markdown string // empty if it has measured nothing
}

// PeerTables returns those of the run in a directory.
func PeerTables(dir string) (all []PeerTable, err error) {
	data, err := os.ReadFile(filepath.Join(dir, resultsFile))
	if err != nil {
		return nil, err
	}
	var r report
	if err := json.Unmarshal(data, &r); err != nil {
		return nil, err
	}
	for _, peer := range peers() {
		t := PeerTable{Name: peer.name}
		if len(r.compare(peer)) > 0 {
			t.Markdown = r.ofPeer(peer)
		}
		all = append(all, t)
	}
	return all, nil
}

// peersChart draws the first two comparisons of each peer: bars to the right are for Lockkeeper, and
// those to the left for the other. The scale is logarithmic, and the same both ways.
func (r *report) peersChart(peers []peer) []byte {
	const (
		names, middle = 440, 630
		toLeft        = middle - names - 60 // room for bars beside their values
		toRight       = chartWidth - middle - 60
	)
	var (
		rows    []comparison
		labels  []string
		perUnit = math.Inf(1)
	)
	for _, peer := range peers {
		all := r.compare(peer)
		for _, c := range all[:min(len(all), 2)] {
			rows, labels = append(rows, c), append(labels, peer.name+": "+c.what)
			switch length := math.Log(c.better); {
			case length > 0:
				perUnit = min(perUnit, toRight/length)
			case length < 0:
				perUnit = min(perUnit, toLeft/-length)
			}
		}
	}
	var w bytes.Buffer
	height := titleHeight + panelHeading + len(rows)*barDistance + margin
	const title = "Lockkeeper beside other libraries"
	_, _ = fmt.Fprintf(&w, `<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 %d %d" width="%d" height="%d" role="img" aria-label="%s">`+"\n",
		chartWidth, height, chartWidth, height, title)
	w.WriteString(chartStyle)
	_, _ = fmt.Fprintf(&w, `<rect class="ground" width="%d" height="%d" rx="6"/>`+"\n", chartWidth, height)
	_, _ = fmt.Fprintf(&w, `<text class="title" x="%d" y="26">%s</text>`+"\n", margin, title)
	_, _ = fmt.Fprintf(&w, `<text class="small" x="%d" y="%d">how many times better · logarithmic · right: Lockkeeper, left: the other library</text>`+"\n",
		margin, titleHeight+18)
	y := titleHeight + panelHeading
	for i, c := range rows {
		length := 0.0
		if c.better != 1 {
			length = perUnit * math.Abs(math.Log(c.better))
		}
		x, class, end, anchor := float64(middle), "ours", middle+length+6, "start"
		switch {
		case c.even():
			class = "reference"
		case c.better < 1:
			class = "peer"
		}
		if c.better < 1 {
			x, end, anchor = middle-length, middle-length-6, "end"
		}
		_, _ = fmt.Fprintf(&w, `<text class="row" x="%d" y="%d" text-anchor="end">%s</text>`+"\n", names-8, y+13, html.EscapeString(labels[i]))
		_, _ = fmt.Fprintf(&w, `<rect class="%s" x="%.1f" y="%d" width="%.1f" height="%d" rx="2"/>`+"\n", class, x, y, max(length, 1), barHeight)
		_, _ = fmt.Fprintf(&w, `<text class="value" x="%.1f" y="%d" text-anchor="%s">%s</text>`+"\n", end, y+13, anchor, strings.TrimSuffix(strings.TrimSuffix(c.verdict(), " better"), " worse"))
		y += barDistance
	}
	_, _ = fmt.Fprintf(&w, `<line class="spread" x1="%d" x2="%d" y1="%d" y2="%d"/>`+"\n</svg>\n", middle, middle, titleHeight+panelHeading-6, y)
	return w.Bytes()
}
