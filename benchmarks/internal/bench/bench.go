// Package bench is shared by the sections of the comparison: contenders that run interleaved,
// tables with samples of several rounds, and the report.
package bench

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/pgserver"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisserver"
)

// Section is one part of the comparison.
type Section struct {
	Name  string        // for -only
	Title string        // its heading in the report
	About string        // what is measured, in two or three sentences
	Full  time.Duration // about how long it takes in the full setting
	Run   func(ctx context.Context, b *B) error
	// Targets are the rows of the table of targets whose values Run gives to [B.Measured].
	Targets []Target
}

// Setting is how thoroughly a run measures.
type Setting int

const (
	// Full is for figures to publish.
	Full Setting = iota
	// Quick measures a sixteenth as long, for rough figures.
	Quick
	// Tiny only checks that everything runs. Its figures mean nothing.
	Tiny
)

// String returns "full", "quick" or "tiny".
func (s Setting) String() string {
	switch s {
	case Quick:
		return "quick"
	case Tiny:
		return "tiny"
	default:
		return "full"
	}
}

// shortest is the minimum length of a measurement.
const shortest = 3 * time.Millisecond

func (s Setting) time(full time.Duration) time.Duration {
	switch s {
	case Quick:
		full /= 16
	case Tiny:
		full /= 256
	}
	return max(full, shortest)
}

func (s Setting) count(full int) int {
	switch s {
	case Quick:
		full /= 10
	case Tiny:
		full /= 100
	}
	return max(full, 1)
}

// B is the state of a running section. Only its tables are safe for concurrent use.
type B struct {
	setting Setting
	rounds  int
	section Section
	parts   int // of a round; 0 and 1 are the same
	random  *rand.Rand
	log     io.Writer
	left    func() time.Duration // estimated time until the end of the run

	mu      sync.Mutex
	rows    []string // of the running contenders, in their order
	tables  []*Table
	values  []value // of targets
	notes   []string
	cleanup []func()
}

// Rounds is how often every contender runs.
func (b *B) Rounds() int { return b.rounds }

// Setting is how thoroughly this run measures.
func (b *B) Setting() Setting { return b.setting }

// Time scales a duration of the full setting to this one.
func (b *B) Time(full time.Duration) time.Duration {
	return b.setting.time(full) / time.Duration(max(b.parts, 1))
}

// Count scales a number of the full setting to this one: at least 1.
func (b *B) Count(full int) int { return b.setting.count(full) }

// Redis starts a server with additional arguments, which is stopped when the section ends.
func (b *B) Redis(ctx context.Context, args ...string) (*redisserver.Server, error) {
	server, err := redisserver.Start(ctx, args...)
	if err != nil {
		return nil, err
	}
	b.atEnd(server.Stop)
	return server, nil
}

// Cluster starts three masters, which are stopped when the section ends, and returns their
// addresses.
func (b *B) Cluster(ctx context.Context) (addrs []string, err error) {
	servers, err := redisserver.StartCluster(ctx)
	if err != nil {
		return nil, err
	}
	for _, server := range servers {
		b.atEnd(server.Stop)
		addrs = append(addrs, server.Addr())
	}
	return addrs, nil
}

// Postgres starts a PostgreSQL server with additional settings, which is stopped when the section
// ends.
func (b *B) Postgres(ctx context.Context, settings ...string) (*pgserver.Server, error) {
	server, err := pgserver.Start(ctx, settings...)
	if err != nil {
		return nil, err
	}
	b.atEnd(server.Stop)
	return server, nil
}

func (b *B) atEnd(f func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.cleanup = append(b.cleanup, f)
}

// end stops the servers of the section, the last first.
func (b *B) end() {
	for i := len(b.cleanup) - 1; i >= 0; i-- {
		b.cleanup[i]()
	}
	b.cleanup = nil
}

// Note adds a remark under the section, unless it has been added already.
func (b *B) Note(text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, n := range b.notes {
		if n == text {
			return
		}
	}
	b.notes = append(b.notes, text)
}

// Remarks are those on rows, such as their last errors.
type Remarks map[string]string

// Note adds the remarks under the section, in the order of the rows.
func (r Remarks) Note(b *B, where string, rows []Contender) {
	for _, c := range rows {
		if r[c.Row] != "" {
			b.Note(fmt.Sprintf("%s, %s: %s", c.Row, where, r[c.Row]))
		}
	}
}

// Table adds a table to the section. Its id is unique in the run, and names its chart's file.
func (b *B) Table(id, title, note string, columns ...Column) *Table {
	t := &Table{
		id: id, title: title, note: note, columns: columns, contenders: b.contenders,
		samples: make(map[cell][]float64), rounds: make(map[cell]int), reference: make(map[string]bool),
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.tables = append(b.tables, t)
	return t
}

// value is what a run has measured of a target.
type value struct {
	what  string
	value float64
}

// Measured gives a target of the section its value, which comes from the medians of this run; NaN
// is no value. It panics if the section has no such target.
func (b *B) Measured(what string, v float64) {
	if find(b.section.Targets, what) == nil {
		panic(fmt.Sprintf("bench: section %s has no target %q", b.section.Name, what))
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	b.values = append(b.values, value{what, v})
}

// Contender is one side of a comparison.
type Contender struct {
	Row string
	// Run measures, and adds its samples to tables.
	Run func(ctx context.Context) error
}

// Interleave runs every contender once per round, in a new random order in each, and reports
// progress. The first error ends it.
func (b *B) Interleave(ctx context.Context, what string, contenders []Contender) error {
	rows := make([]string, len(contenders))
	for i, c := range contenders {
		rows[i] = c.Row
	}
	b.mu.Lock()
	b.rows = rows
	b.mu.Unlock()
	for round := range b.rounds {
		b.progress("%s, round %d of %d", what, round+1, b.rounds)
		b.eachTable((*Table).beginRound)
		for range max(b.parts, 1) {
			for _, i := range b.random.Perm(len(contenders)) {
				if err := context.Cause(ctx); err != nil {
					return err
				}
				if err := contenders[i].Run(ctx); err != nil {
					return fmt.Errorf("%s: %s: %w", what, contenders[i].Row, err)
				}
			}
		}
		if b.parts > 1 {
			b.eachTable((*Table).endRound)
		}
	}
	return nil
}

func (b *B) eachTable(f func(*Table)) {
	b.mu.Lock()
	tables := slices.Clone(b.tables)
	b.mu.Unlock()
	for _, t := range tables {
		f(t)
	}
}

// The parts of a round.
const (
	// PartsOfCalls are short for calls that take less than a few milliseconds.
	PartsOfCalls = 30
	// PartsOfWaits leave time for waiters that poll ten times a second.
	PartsOfWaits = 6
)

// InterleaveFinely is Interleave for latencies: it divides every round and its [B.Time] into parts,
// each of which runs every contender in a new random order. A sample of the round is the mean of its
// parts. The latency of a machine whose cores rest and wake changes several times a second, and by
// more than contenders differ: for a ratio, all of them have to meet the same mixture.
func (b *B) InterleaveFinely(ctx context.Context, what string, parts int, contenders []Contender) error {
	switch b.setting {
	case Full:
		b.parts = parts
	case Quick:
		b.parts = max(parts/5, 1)
	case Tiny:
		b.parts = 1
	}
	defer func() { b.parts = 0 }()
	return b.Interleave(ctx, what, contenders)
}

func (b *B) contenders() []string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.rows
}

func (b *B) progress(format string, args ...any) {
	_, _ = fmt.Fprintf(b.log, "%-8s about %v left: %s\n", b.section.Name, b.left().Round(time.Second), fmt.Sprintf(format, args...))
}
