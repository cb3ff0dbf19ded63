package bench

import (
	"fmt"
	"math"
	"slices"
	"sync"
)

// Better defines which of two values of a column is the better one.
type Better int

const (
	// Neither is: the column is for information.
	Neither Better = iota
	// More is better.
	More
	// Less is better.
	Less
)

// Column is one measured value of every row.
type Column struct {
	Name, Unit string
	Better     Better
	Format     string // as for fmt, of a float64; three significant digits if empty
}

func (c Column) format(v float64) string {
	if c.Format != "" {
		return fmt.Sprintf(c.Format, v)
	}
	return significant(v)
}

// significant formats three significant digits, and all of those before the point.
func significant(v float64) string {
	digits := 0
	if v != 0 && !math.IsInf(v, 0) && !math.IsNaN(v) {
		digits = min(max(2-int(math.Floor(math.Log10(math.Abs(v)))), 0), 4)
	}
	return fmt.Sprintf("%.*f", digits, v)
}

type cell struct{ row, column string }

// Table has the samples of contenders in rows and of measured values in columns.
type Table struct {
	id, title, note string
	columns         []Column
	contenders      func() []string // the running ones, in their order
	chart           string          // its title, if there is one
	charted         []string

	mu        sync.Mutex
	rows      []string
	samples   map[cell][]float64
	rounds    map[cell]int // how many of the samples are of ended rounds
	reference map[string]bool
	given     []string // the contenders that ran when samples came in, in their order
	order     []string
}

// Add adds a sample: one for each round, or for each part of it. It ignores a value that is no number or infinite: it could not be measured. It
// panics if the table has no such column.
func (t *Table) Add(row, column string, value float64) {
	if !slices.ContainsFunc(t.columns, func(c Column) bool { return c.Name == column }) {
		panic(fmt.Sprintf("bench: table %s has no column %q", t.id, column))
	}
	if math.IsNaN(value) || math.IsInf(value, 0) {
		return
	}
	running := t.contenders()
	t.mu.Lock()
	defer t.mu.Unlock()
	if !slices.Contains(t.rows, row) {
		t.rows = append(t.rows, row)
		for _, r := range running {
			if !slices.Contains(t.given, r) {
				t.given = append(t.given, r)
			}
		}
	}
	at := cell{row, column}
	t.samples[at] = append(t.samples[at], value)
}

// beginRound begins a round whose samples are of parts.
func (t *Table) beginRound() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for at, all := range t.samples {
		t.rounds[at] = len(all)
	}
}

// endRound replaces the samples since beginRound by their mean.
func (t *Table) endRound() {
	t.mu.Lock()
	defer t.mu.Unlock()
	for at, all := range t.samples {
		earlier, parts := all[:t.rounds[at]], all[t.rounds[at]:]
		if len(parts) == 0 {
			continue
		}
		sum := 0.0
		for _, v := range parts {
			sum += v
		}
		t.samples[at] = append(earlier, sum/float64(len(parts)))
	}
}

// Median is the median of a cell's samples: false if there are none.
func (t *Table) Median(row, column string) (float64, bool) {
	s := t.sorted(row, column)
	if len(s) == 0 {
		return 0, false
	}
	return median(s), true
}

// Value is the median of a cell's samples: NaN if there are none.
func (t *Table) Value(row, column string) float64 {
	v, ok := t.Median(row, column)
	if !ok {
		return math.NaN()
	}
	return v
}

// Ratio is the median of a column in one row divided by that in another: NaN if one is not positive
// or was not measured.
func (t *Table) Ratio(column, row, to string) float64 {
	base, ok := t.Median(to, column)
	if !ok || base <= 0 {
		return math.NaN()
	}
	return t.Value(row, column) / base
}

// PairedRatio is the median over the rounds of a column in one row divided by that in another: NaN
// if a round has not both. Unlike [Table.Ratio] it is fair where a machine is slower in some rounds.
func (t *Table) PairedRatio(column, row, to string) float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	dividends, divisors := t.samples[cell{row, column}], t.samples[cell{to, column}]
	if len(dividends) == 0 || len(dividends) != len(divisors) {
		return math.NaN()
	}
	ratios := make([]float64, len(dividends))
	for i, v := range dividends {
		ratios[i] = v / divisors[i]
	}
	slices.Sort(ratios)
	return median(ratios)
}

// sorted is the samples of a cell, the least first.
func (t *Table) sorted(row, column string) []float64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return slices.Sorted(slices.Values(t.samples[cell{row, column}]))
}

// Percentile sorts the values and returns the one that the share p of them does not exceed, NaN if
// there are none.
func Percentile[T ~int64](values []T, p float64) float64 {
	if len(values) == 0 {
		return math.NaN()
	}
	slices.Sort(values)
	return float64(values[max(int(math.Ceil(p*float64(len(values))))-1, 0)])
}

func median(sorted []float64) float64 {
	n := len(sorted)
	if n%2 == 1 {
		return sorted[n/2]
	}
	return (sorted[n/2-1] + sorted[n/2]) / 2
}

// Order is the order of the rows in the report, if it is not that of the contenders that were given
// to [B.Interleave]. Rows that it does not name come after it.
func (t *Table) Order(rows ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.order = rows
}

// Reference marks rows that only show what is possible: they are no contenders, and not among the
// best of a column.
func (t *Table) Reference(rows ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, row := range rows {
		t.reference[row] = true
	}
}

// Chart has these columns drawn as bars, in charts/ID.svg.
func (t *Table) Chart(title string, columns ...string) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.chart, t.charted = title, columns
}

// names is the rows in the order of the report.
func (t *Table) names() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	order := append(slices.Clone(t.order), t.given...)
	rank := func(row string) int {
		if i := slices.Index(order, row); i >= 0 {
			return i
		}
		return len(order)
	}
	rows := slices.Sorted(slices.Values(t.rows))
	slices.SortStableFunc(rows, func(a, b string) int { return rank(a) - rank(b) })
	return rows
}
