// Package middleware measures what middleware adds to a handler, without a network.
package middleware

import (
	"context"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
)

// Sections are the comparison of middleware.
func Sections() []bench.Section {
	return []bench.Section{{
		Name:  "middleware",
		Title: "Middleware",
		About: "The time that middleware adds to a handler with an answer of two bytes, without a network; the bare handler is measured in " +
			"turns with it, and subtracted. State is in memory, telemetry is off, and all requests are from one client.",
		Full:    35 * time.Second,
		Run:     run,
		Targets: targets(),
	}}
}

// lasts is how long one contender is measured in each round in the full setting, and turns is how often it alternates
// with the bare handler in that time.
const (
	lasts = 400 * time.Millisecond
	turns = 5
)

// The columns.
const (
	added       = "added time"
	allocations = "added allocations"
	fields      = "header fields"
)

// site is a handler, bare or behind middleware.
type site struct {
	call    func(i int) // sends request i
	runs    func() int  // how often the handler has run
	headers func() int  // how many header fields the last response had
	end     func()
}

// requests are which requests have the same key, and so how often a handler has to run.
type requests int

const (
	limited  requests = iota // all have a client, and no key
	ordinary                 // the same, at an ordinary rate
	fresh                    // each has its own key
	same                     // all have one key
)

func (r requests) keyed() bool { return r == fresh || r == same }

// contender is a middleware of a framework.
type contender struct {
	row  string
	bare func(r requests) (site, error)
	with func(r requests) (site, error)
	r    requests
}

// group is the contenders of one framework and one policy.
type group struct {
	id, title, note string
	contenders      []contender
	headers         bool // report their number
	judge           judge
}

// judge is the peer whose added time that of Lockkeeper is compared with, if there is one, and the
// bounds.
type judge struct {
	row         string
	time        float64 // of that of the peer
	floor       string
	allocations float64
}

const (
	lockkeeper         = "Lockkeeper"
	lockkeeperOrdinary = "Lockkeeper, 300 a second"
)

func groups() []group {
	return []group{
		{"http", "Rate limits: net/http", "", []contender{
			{lockkeeper, bareHTTP, lockkeeperHTTP, limited},
			{lockkeeperOrdinary, bareHTTP, lockkeeperHTTP, ordinary},
			{"httprate", bareHTTP, httprateHTTP, limited},
			{"ulule/limiter", bareHTTP, ululeHTTP, limited},
		}, true, judge{"httprate", 0.4, httprateFloor, 2}},
		{"gin", "Rate limits: gin", "", []contender{
			{lockkeeper, bareGin, lockkeeperGin, limited},
			{lockkeeperOrdinary, bareGin, lockkeeperGin, ordinary},
			{"ulule/limiter", bareGin, ululeGin, limited},
		}, true, judge{"ulule/limiter", 0.4, "", 2}},
		{"echov4", "Rate limits: echo v4", "echo's own middleware sends no header fields in version 4.", []contender{
			{lockkeeper, bareEcho4, lockkeeperEcho4, limited},
			{lockkeeperOrdinary, bareEcho4, lockkeeperEcho4, ordinary},
			{"echo's own", bareEcho4, ownEcho4, limited},
		}, true, judge{allocations: 3}},
		{"echov5", "Rate limits: echo v5", "", []contender{
			{lockkeeper, bareEcho5, lockkeeperEcho5, limited},
			{lockkeeperOrdinary, bareEcho5, lockkeeperEcho5, ordinary},
			{"echo's own", bareEcho5, ownEcho5, limited},
		}, true, judge{"echo's own", 0.6, "", 2}},
		{"grpc", "Rate limits: gRPC", "A unary interceptor, called without a connection, compared with one that does nothing.", []contender{
			{lockkeeper, bareGRPC, lockkeeperGRPC, limited},
			{lockkeeperOrdinary, bareGRPC, lockkeeperGRPC, ordinary},
		}, false, judge{allocations: 2}},
		{"fresh", "Idempotency: a fresh request", idempotencyNote, idempotent(fresh), false, judge{}},
		{"replay", "Idempotency: a replay", "The handler does not run; it is subtracted nevertheless.", idempotent(same), false, judge{}},
	}
}

const idempotencyNote = "Every request has a new key, and its answer is kept. fiber's middleware keeps answers by key alone; " +
	"Lockkeeper's also reads the body for a fingerprint of the request, and keeps records by a hash of scope and key."

func idempotent(r requests) []contender {
	return []contender{
		{lockkeeper + ", net/http", bareHTTP, onceHTTP, r},
		{lockkeeper + ", gin", bareGin, onceGin, r},
		{lockkeeper + ", echo v4", bareEcho4, onceEcho4, r},
		{lockkeeper + ", echo v5", bareEcho5, onceEcho5, r},
		{"fiber's own, fiber v3", bareFiber, onceFiber, r},
	}
}

func run(ctx context.Context, b *bench.B) error {
	for _, g := range groups() {
		columns := []bench.Column{
			{Name: added, Unit: "ns", Better: bench.Less},
			{Name: allocations, Unit: "per request", Better: bench.Less, Format: "%.1f"},
		}
		if g.headers {
			columns = append(columns, bench.Column{Name: fields, Unit: "added", Format: "%.0f"})
		}
		t := b.Table("middleware-"+g.id, g.title, g.note, columns...)
		if len(g.contenders) > 1 {
			t.Chart(g.title, added, allocations)
		}
		var all []bench.Contender
		for _, c := range g.contenders {
			all = append(all, bench.Contender{Row: c.row, Run: func(ctx context.Context) error {
				r, err := c.measure(ctx, b.Time(lasts))
				if err != nil {
					return err
				}
				t.Add(c.row, added, r.ns)
				t.Add(c.row, allocations, r.allocations)
				if g.headers {
					t.Add(c.row, fields, float64(r.headers))
				}
				return nil
			}})
		}
		if err := b.Interleave(ctx, g.title, all); err != nil {
			return err
		}
		if !g.contenders[0].r.keyed() {
			measured(b, t, g)
		}
	}
	b.Note("ulule/limiter, httprate and echo's store are the memory stores of those libraries; each middleware takes the client from the same header.")
	b.Note("fiber is its own HTTP server and not on net/http: the handler that is subtracted is faster.")
	return nil
}

// result is the cost of a middleware for a request.
type result struct {
	ns, allocations float64
	headers         int
}

// measure measures the handler with and without the middleware in turns, for the time d in total.
func (c contender) measure(ctx context.Context, d time.Duration) (result, error) {
	bare, err := c.bare(c.r)
	if err != nil {
		return result{}, err
	}
	defer bare.end()
	with, err := c.with(c.r)
	if err != nil {
		return result{}, err
	}
	defer with.end()
	var ns, allocations []float64
	sent := map[bool]int{}
	for turn := range turns + 1 {
		var spins [2]bench.SpinResult
		for i, s := range []site{bare, with} {
			before := sent[i == 1]
			spins[i] = bench.Spin(ctx, 1, d/(2*turns+2), func(_, call int) error {
				s.call(before + call)
				return nil
			})
			sent[i == 1] += int(spins[i].Calls)
		}
		if turn > 0 { // the first warms up
			ns = append(ns, spins[1].NsPerCall-spins[0].NsPerCall)
			allocations = append(allocations, spins[1].AllocsPerOp-spins[0].AllocsPerOp)
		}
	}
	want := sent[true]
	if c.r == same {
		want = 1
	}
	if got := with.runs(); got != want {
		return result{}, fmt.Errorf("the handler has run %d times for %d requests, instead of %d", got, sent[true], want)
	}
	slices.Sort(ns)
	slices.Sort(allocations)
	return result{ns[len(ns)/2], max(allocations[len(allocations)/2], 0), with.headers() - bare.headers()}, ctx.Err()
}

// httprateFloor is why Lockkeeper may add 0.4 of httprate's time.
const httprateFloor = "a prototype that only decides and sets three fields adds 487 ns of httprate's 1067: 0.46; × 0.87, which is the bound of gin's row: " +
	"ulule/limiter adds as much as httprate (671 and 680 ns on A)"

func (g group) timeTarget() string {
	return fmt.Sprintf("%s: %s, of that of %s", g.title, added, g.judge.row)
}

func (g group) allocationsTarget() string { return g.title + ": " + allocations }

func targets() (all []bench.Target) {
	for _, g := range groups() {
		if g.contenders[0].r.keyed() {
			continue
		}
		if g.judge.row != "" {
			all = append(all, bench.Target{What: g.timeTarget(), Bound: g.judge.time, Better: bench.Less, Unit: "×", Floor: g.judge.floor})
		}
		all = append(all, bench.Target{What: g.allocationsTarget(), Bound: g.judge.allocations, Better: bench.Less, Unit: "per request"})
	}
	return all
}

// measured gives the targets of a group their values.
func measured(b *bench.B, t *bench.Table, g group) {
	// The worse of the two rates; NaN if one was not measured.
	worse := func(column string) float64 {
		return max(t.Value(lockkeeper, column), t.Value(lockkeeperOrdinary, column))
	}
	if g.judge.row != "" {
		b.Measured(g.timeTarget(), worse(added)/t.Value(g.judge.row, added))
	}
	// Rounded, since other goroutines of the process may allocate, too.
	b.Measured(g.allocationsTarget(), math.Round(10*worse(allocations))/10)
}
