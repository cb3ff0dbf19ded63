// Package live counts what mechanisms do now, for people who look at it: results, durations, and
// the numbers of waiters and holds, in slots of five seconds for ten minutes; and the keys that were
// denied most.
//
// A counter counts nothing until it is started. Then a result costs one atomic addition, and
// nothing is allocated: slots are differences of totals, which the readers take
// ([Counter.Step]). Of a mechanism that denies often, the keys are a sample, so that a denial costs
// little more; only a key that is new among them is allocated.
package live

import (
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// Result is the result of a call, in the terms that all mechanisms have in common; or, from Lost on,
// an event beside calls.
type Result int

const (
	// Passed is a request that was allowed, a lease that was acquired, and an operation or a task
	// that was done.
	Passed Result = iota
	// Denied is a request that a limit, a holder or an earlier operation refused.
	Denied
	// Failed is a call without a decision of the store, and an operation or a task that failed.
	Failed
	// Other is a wait that its caller left, a replay, and a task that runs again.
	Other
	// Lost is a lease that ended while its holder believed in it.
	Lost
	// Unrenewed is a renewal of a lease that failed.
	Unrenewed
	// Candidate is a request that a plan on trial would have denied: a candidate, or a limit in
	// shadow.
	Candidate

	results = iota
)

const (
	// SlotLength is the time of a slot.
	SlotLength = 5 * time.Second
	// Slots is the number of slots that are kept.
	Slots = 120
	// Buckets is the number of buckets for durations.
	Buckets = 16
)

// Bounds are the upper bounds of the buckets for durations; the last bucket has none.
var Bounds = [Buckets - 1]time.Duration{
	10 * time.Microsecond, 30 * time.Microsecond, 100 * time.Microsecond, 300 * time.Microsecond,
	time.Millisecond, 3 * time.Millisecond, 10 * time.Millisecond, 30 * time.Millisecond,
	100 * time.Millisecond, 300 * time.Millisecond,
	time.Second, 3 * time.Second, 10 * time.Second, 30 * time.Second, 100 * time.Second,
}

// sure is the number of durations that are measured in each slot. Of later ones it is one in
// sampled, since reading the clock can take longer than a decision in memory.
const (
	sure    = 64
	sampled = 64
)

// Slot is what happened in one slot.
type Slot struct {
	Counts        [results]uint32
	Waiting, Held uint32          // the most at a time
	Took          [Buckets]uint16 // durations; all are halved until the largest one fits
}

// Counter counts for the mechanisms of one kind and name of a process. The zero value has not been
// started. A nil Counter counts nothing.
type Counter struct {
	series atomic.Pointer[series]

	mu      sync.Mutex
	started int
}

// Start starts the counter. Each call is followed by one of Stop, and the last Stop forgets what
// was counted.
func (c *Counter) Start() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started++; c.started == 1 {
		c.series.Store(&series{began: time.Now()})
	}
}

// Stop ends what Start has begun.
func (c *Counter) Stop() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.started--; c.started == 0 {
		c.series.Store(nil)
	}
}

func (c *Counter) running() *series {
	if c == nil {
		return nil
	}
	return c.series.Load()
}

// Started reports whether the counter counts.
func (c *Counter) Started() bool { return c.running() != nil }

// Measures reports whether the duration of the call that begins now should be measured.
func (c *Counter) Measures() bool {
	s := c.running()
	return s != nil && (s.measured.Load() < sure || rand.Uint32()%sampled == 0) //nolint:gosec // no secret
}

// Count counts a result.
func (c *Counter) Count(r Result) { c.Add(r, 1) }

// Add counts a result n times.
func (c *Counter) Add(r Result, n int) {
	if s := c.running(); s != nil {
		s.counts[r].Add(uint64(n)) //nolint:gosec // not negative
	}
}

// Took counts a duration.
func (c *Counter) Took(d time.Duration) {
	if s := c.running(); s != nil {
		s.measured.Add(1)
		s.took[bucketOf(d)].Add(1)
	}
}

func bucketOf(d time.Duration) int {
	for i, bound := range Bounds {
		if d <= bound {
			return i
		}
	}
	return Buckets - 1
}

// Waits counts a waiter until End.
func (c *Counter) Waits() Mark {
	if s := c.running(); s != nil {
		return s.waiting.mark(1)
	}
	return Mark{}
}

// Holds counts n holds until End.
func (c *Counter) Holds(n int) Mark {
	if s := c.running(); s != nil {
		return s.held.mark(int64(n))
	}
	return Mark{}
}

// Mark is what was counted by Waits or Holds. The zero value is nothing.
type Mark struct {
	level *level
	n     int64
}

// End ends it. It is called once.
func (m Mark) End() {
	if m.level != nil {
		m.level.now.Add(-m.n)
	}
}

// level is a number that rises and falls, and the most that it was in a slot.
type level struct{ now, most atomic.Int64 }

func (l *level) mark(n int64) Mark {
	now := l.now.Add(n)
	for most := l.most.Load(); now > most && !l.most.CompareAndSwap(most, now); most = l.most.Load() {
	}
	return Mark{l, n}
}

// next returns the most since the last next.
func (l *level) next() uint32 {
	now := l.now.Load()
	return uint32(max(l.most.Swap(now), now, 0)) //nolint:gosec // of goroutines and permits of a process
}

// series is what a counter counts.
type series struct {
	counts        [results]atomic.Uint64
	took          [Buckets]atomic.Uint64
	measured      atomic.Uint32 // durations in this slot
	waiting, held level
	denied        deniedKeys
	began         time.Time

	mu     sync.Mutex
	slots  []Slot // closed ones, the oldest first
	closed int    // how many there have been
	last   totals // when the last slot was closed
}

type totals struct {
	counts [results]uint64
	took   [Buckets]uint64
}

// Step closes the slots that have ended. The reader of the counter calls it every [SlotLength]:
// calls that were counted since the last one belong to the first slot that has ended since.
func (c *Counter) Step() {
	if s := c.running(); s != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.step(time.Now())
	}
}

func (s *series) step(now time.Time) {
	due := int(now.Sub(s.began) / SlotLength)
	if due <= s.closed {
		return
	}
	slot, totals := s.open()
	slot.Waiting, slot.Held = s.waiting.next(), s.held.next()
	s.last = totals
	s.measured.Store(0)
	s.slots = append(s.slots, slot)
	for s.closed++; s.closed < due; s.closed++ {
		s.slots = append(s.slots, Slot{})
	}
	s.slots = s.slots[max(len(s.slots)-Slots, 0):]
	s.denied.step(s.closed)
}

// open returns what was counted since the last slot was closed, without levels, and all that was
// counted.
func (s *series) open() (slot Slot, now totals) {
	for i := range s.counts {
		now.counts[i] = s.counts[i].Load()
		slot.Counts[i] = uint32(now.counts[i] - s.last.counts[i]) //nolint:gosec // 800 million a second are out of reach
	}
	var took [Buckets]uint64
	largest := uint64(0)
	for i := range s.took {
		now.took[i] = s.took[i].Load()
		took[i] = now.took[i] - s.last.took[i]
		largest = max(largest, took[i])
	}
	for ; largest > 1<<16-1; largest /= 2 {
		for i := range took {
			took[i] /= 2
		}
	}
	for i := range took {
		slot.Took[i] = uint16(took[i]) //nolint:gosec // at most largest
	}
	return slot, now
}

// Reading is what a counter has counted.
type Reading struct {
	Totals        [results]uint64 // since it was started
	Waiting, Held int64           // now
	// Slots are the last ones, the oldest first. The last one is open: its time has not ended.
	Slots []Slot
	// Open is how long ago the open slot began.
	Open time.Duration
}

// Read returns what was counted. It reports false if the counter has not been started.
func (c *Counter) Read() (Reading, bool) {
	s := c.running()
	if s == nil {
		return Reading{}, false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	now := time.Now()
	s.step(now)
	slot, totals := s.open()
	r := Reading{
		Totals: totals.counts, Waiting: s.waiting.now.Load(), Held: s.held.now.Load(),
		Open: now.Sub(s.began) - time.Duration(s.closed)*SlotLength,
	}
	slot.Waiting, slot.Held = uint32(s.waiting.most.Load()), uint32(s.held.most.Load()) //nolint:gosec // as in next
	r.Slots = append(append(make([]Slot, 0, len(s.slots)+1), s.slots...), slot)
	return r, true
}

// Percentile returns an upper bound of the p-th part of the durations of slots: the bound of its
// bucket, or twice the last bound above that. It reports false if none were measured.
func Percentile(p float64, slots ...Slot) (time.Duration, bool) {
	var took [Buckets]uint64
	sum := uint64(0)
	for i := range slots {
		for j, n := range slots[i].Took {
			took[j] += uint64(n)
			sum += uint64(n)
		}
	}
	if sum == 0 {
		return 0, false
	}
	rank, seen := p*float64(sum), uint64(0)
	for i, n := range took {
		if seen += n; float64(seen) >= rank && i < len(Bounds) {
			return Bounds[i], true
		}
	}
	return 2 * Bounds[len(Bounds)-1], true
}
