package semaphore_test

import (
	"container/heap"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

var update = flag.Bool("update", false, "write the table into docs/overload.md")

// The service that the tests of this file simulate, in faked time.
const (
	workers  = 10
	usual    = 20 * time.Millisecond
	rate     = float64(workers) / 0.02 // requests per second that it can serve
	patience = 500 * time.Millisecond  // of clients; the work is done all the same
)

// request is a request of the simulation.
type request struct {
	at, done time.Time
	high     bool
	work     time.Duration
	parallel bool // it needs no worker, as one that waits for a dependency
	fails    bool // with status 500
	permit   *semaphore.Permit
	result   *result
}

// result counts the requests of a phase, low ones at 0 and high ones at 1.
type result struct {
	all, refused, good [2]int
	times              []time.Duration // of answers
}

func (r *result) part(n [2]int) float64 {
	return float64(n[0]+n[1]) / float64(r.all[0]+r.all[1])
}

func (r *result) partOf(n [2]int, class int) float64 {
	return float64(n[class]) / float64(r.all[class])
}

func (r *result) p99() time.Duration {
	slices.Sort(r.times)
	return r.times[len(r.times)*99/100]
}

// gate returns the Semaphores for low and for high requests, or none.
type gate func(t *testing.T) (low, high *semaphore.Semaphore)

// service is a simulation of one goroutine: what happens at one time happens in one order.
type service struct {
	*testing.T
	low, high *semaphore.Semaphore
	random    *rand.Rand
	busy      int        // workers
	queue     []*request // for a worker
	ends      byEnd
	each      func() // is called after each event; may be nil
}

func newService(t *testing.T, g gate) *service {
	t.Helper()
	if testpace.Raced {
		t.Skip("it is one goroutine, with nothing to race")
	}
	s := &service{T: t, random: rand.New(rand.NewPCG(7, 7))}
	if g != nil {
		s.low, s.high = g(t)
	}
	return s
}

// byEnd is a heap of running requests.
type byEnd []*request

func (h byEnd) Len() int           { return len(h) }
func (h byEnd) Less(i, j int) bool { return h[i].done.Before(h[j].done) }
func (h byEnd) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *byEnd) Push(r any)        { *h = append(*h, r.(*request)) }
func (h *byEnd) Pop() any {
	last := len(*h) - 1
	r := (*h)[last]
	*h = (*h)[:last]
	return r
}

// run has requests arrive for a time, at random, so many times the rate. shape changes each of
// them.
func (s *service) run(d time.Duration, load float64, shape func(*request)) *result {
	r := &result{}
	end := time.Now().Add(d)
	next := time.Now()
	for {
		next = next.Add(time.Duration(s.random.ExpFloat64() / (rate * load) * float64(time.Second)))
		if next.After(end) {
			s.until(end)
			return r
		}
		s.until(next)
		q := &request{at: next, high: s.random.IntN(2) == 0, work: usual, result: r}
		if shape != nil {
			shape(q)
		}
		s.arrive(q)
	}
}

// until serves requests until then.
func (s *service) until(then time.Time) {
	for len(s.ends) > 0 && !s.ends[0].done.After(then) {
		r := heap.Pop(&s.ends).(*request)
		time.Sleep(time.Until(r.done))
		s.finish(r)
	}
	time.Sleep(time.Until(then))
}

// drain serves all requests that have arrived.
func (s *service) drain() {
	for len(s.ends) > 0 {
		s.until(s.ends[0].done)
	}
}

func (s *service) arrive(r *request) {
	class, from := 0, s.low
	if r.high {
		class, from = 1, s.high
	}
	r.result.all[class]++
	if from != nil {
		var err error
		if r.permit, err = from.TryAcquire(s.Context(), "global"); err != nil {
			r.result.refused[class]++
			return
		}
	}
	switch {
	case r.parallel:
		s.begin(r)
	case s.busy < workers:
		s.busy++
		s.begin(r)
	default:
		s.queue = append(s.queue, r)
	}
}

func (s *service) begin(r *request) {
	r.done = time.Now().Add(r.work)
	heap.Push(&s.ends, r)
}

func (s *service) finish(r *request) {
	took := time.Since(r.at)
	r.result.times = append(r.result.times, took)
	if took <= patience && !r.fails {
		class := 0
		if r.high {
			class = 1
		}
		r.result.good[class]++
	}
	if r.permit != nil {
		if took > patience || r.fails { // as the middleware does
			r.permit.Failed()
		}
		ok(s, r.permit.Release(s.Context()))
	}
	switch {
	case r.parallel:
	case len(s.queue) > 0:
		s.begin(s.queue[0])
		s.queue = s.queue[1:]
	default:
		s.busy--
	}
	if s.each != nil {
		s.each()
	}
}

func percent(part float64) string { return fmt.Sprintf("%.0f %%", math.Abs(part)*100) }

// fixed returns a gate of this capacity, in which low requests leave a part of it.
func fixed(leave float64, capacity int, opts ...semaphore.Option) gate {
	return func(t *testing.T) (low, high *semaphore.Semaphore) {
		st := memstore.New()
		t.Cleanup(func() { _ = st.Close() })
		high = newSemaphore(t, st, capacity, opts...)
		low = high
		if leave > 0 {
			ok(t, high.SetTierShares(semaphore.TierShares{Normal: 1 - leave, Low: 1 - leave, Background: 1 - leave}))
			low, high = high.Tier(semaphore.Low), high.Tier(semaphore.Critical)
		}
		return low, high
	}
}

const target = 200 * time.Millisecond

func adapting(leave float64, floor, ceiling int) gate {
	return fixed(leave, floor, semaphore.WithAdaptiveCapacity(target, floor, ceiling))
}

// outcome is a row of the table.
type outcome struct {
	name                                    string
	half, three, after, mixed, slow, slower *result
}

// simulate runs all phases with a gate.
func simulate(t *testing.T, name string, g gate) outcome {
	t.Helper()
	o := outcome{name: name}
	in := func(test func(*service)) {
		synctest.Test(t, func(t *testing.T) {
			s := newService(t, g)
			test(s)
			s.drain()
		})
	}
	in(func(s *service) {
		o.half = s.run(20*time.Second, 1.5, nil)
		o.three = s.run(30*time.Second, 3, nil)
		s.run(time.Second, 0.5, nil)
		o.after = s.run(20*time.Second, 0.5, nil)
	})
	in(func(s *service) { // one in ten takes 31 times as long as the others
		o.mixed = s.run(20*time.Second, 0.3, func(r *request) {
			if r.work = usual / 4; s.random.IntN(10) == 0 {
				r.work = usual * 31 / 4
			}
		})
	})
	in(func(s *service) { // nothing is saturated
		slow := func(r *request) { r.work, r.parallel = 10*usual, true }
		o.slow = s.run(5*time.Second, 0.5, slow) // in which a capacity may grow
		o.slower = s.run(55*time.Second, 0.5, slow)
	})
	return o
}

// refusedBySlow returns which part of the requests is refused while the dependency is slow.
func (o outcome) refusedBySlow() float64 {
	refused, all := 0, 0
	for _, r := range []*result{o.slow, o.slower} {
		refused, all = refused+r.refused[0]+r.refused[1], all+r.all[0]+r.all[1]
	}
	return float64(refused) / float64(all)
}

func (o outcome) String() string {
	return fmt.Sprintf("| %s | %s | %s | %.2f s | %s / %s | %s | %s | %s |", o.name, percent(o.half.part(o.half.good)),
		percent(o.three.part(o.three.good)), o.three.p99().Seconds(),
		percent(o.three.partOf(o.three.good, 1)), percent(o.three.partOf(o.three.good, 0)), percent(o.after.part(o.after.good)),
		percent(o.mixed.part(o.mixed.refused)), percent(o.refusedBySlow()))
}

const tableHead = `| Gate | 1.5 × good | 3 × good | 3 × p99 | high / low at 3 × | after it | mixed latencies: refused | slow dependency: refused |
|---|---|---|---|---|---|---|---|`

// The table of docs/overload.md. What is possible at 3 × is a third, or two thirds of the high
// requests.
func TestOverload(t *testing.T) {
	if testpace.Raced {
		t.Skip("it is one goroutine, with nothing to race")
	}
	const possible = 1.0 / 3
	rows := []outcome{
		simulate(t, "none", nil),
		simulate(t, "static 20", fixed(0, 20)),
		simulate(t, "static 100", fixed(0, 100)),
		simulate(t, "static 100, low leaves 20 %", fixed(0.2, 100)),
		simulate(t, "target 200 ms, 50 to 1000", adapting(0, 50, 1000)),
		simulate(t, "target 200 ms, 10 to 1000", adapting(0, 10, 1000)),
		simulate(t, "target 200 ms, 50 to 1000, low leaves 20 %", adapting(0.2, 50, 1000)),
	}
	lines := []string{tableHead}
	for _, o := range rows {
		lines = append(lines, o.String())
		tiers, adaptive := strings.Contains(o.name, "low"), strings.Contains(o.name, "target")
		wrong := func(is bool, format string, args ...any) {
			t.Helper()
			if is {
				t.Errorf("%s: "+format, append([]any{o.name}, args...)...)
			}
		}
		if o.name == "none" {
			wrong(o.three.part(o.three.good) > 0.05 || o.after.part(o.after.good) > 0.05, "it is no overload")
			continue
		}
		good, high := o.three.part(o.three.good), o.three.partOf(o.three.good, 1)
		wrong(good < 0.95*possible, "%v of the requests are good at 3 ×", good)
		wrong(o.half.part(o.half.good) < 0.95*2*possible, "%v at 1.5 ×", o.half.part(o.half.good))
		wrong(tiers && high < 0.95*2*possible, "%v of the high ones", high)
		wrong(adaptive && o.three.p99() > target*12/10, "the 99th percentile is %v", o.three.p99())
		wrong(o.after.part(o.after.good) < 1, "%v are good 1 s after the overload", o.after.part(o.after.good))
		if strings.Contains(o.name, "50 to") {
			wrong(o.mixed.part(o.mixed.refused) > 0, "with mixed latencies %v are refused", o.mixed.refused)
			wrong(o.slower.p99() > target, "with a slow dependency the 99th percentile is %v", o.slower.p99())
			wrong(!tiers && o.refusedBySlow() > 0.005, "with a slow dependency %v are refused", o.refusedBySlow())
			wrong(!tiers && o.slower.part(o.slower.refused) > 0, "with a slow dependency %v are refused for ever", o.slower.refused)
			wrong(tiers && o.slower.partOf(o.slower.refused, 1) > 0, "with a slow dependency %v are refused", o.slower.refused)
		}
		t.Logf("%s: refused with mixed latencies %v of %v, with a slow dependency %v of %v and then %v of %v",
			o.name, o.mixed.refused, o.mixed.all, o.slow.refused, o.slow.all, o.slower.refused, o.slower.all)
	}
	inPage(t, strings.Join(lines, "\n"))
}

// inPage checks that the page has the table, or writes it there.
func inPage(t *testing.T, table string) {
	t.Helper()
	const path, begin, end = "../../docs/overload.md", "<!-- table: go test ./core/semaphore -run TestOverload -update -->\n", "\n<!-- end -->"
	page := string(must(os.ReadFile(path)))
	before, rest, found := strings.Cut(page, begin)
	old, after, closed := strings.Cut(rest, end)
	if !found || !closed {
		t.Fatalf("%s has no place for the table", path)
	}
	if old == table {
		return
	}
	if !*update {
		t.Fatalf("%s has another table; run with -update:\n%s", path, table)
	}
	ok(t, os.WriteFile(path, []byte(before+begin+table+end+after), 0o600))
}
