package semaphore

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// A window ends after both of these, with the release of a permit.
const (
	windowTime    = 250 * time.Millisecond
	windowSamples = 20
)

// WithAdaptiveCapacity has the capacity follow the time for which permits are held: it falls when
// more than a tenth of them are held for longer than target, and rises when not, while the permits
// are in use. So under overload answers take about target, whatever the number of requests; see
// docs/overload.md. target is the slowest answer that is still of use, not the usual one. floor is
// the number of requests that the service may safely run at the same time, about twice its rate
// times its usual duration: the capacity begins there, and [New] requires it as its capacity.
//
//	gate, err := semaphore.New(memory, "gate", 50, semaphore.WithAdaptiveCapacity(200*time.Millisecond, 50, 1000))
//
// Every permit is a sample, from its grant to its release; a wait for it does not count. A window
// ends with a release, after 250 ms and 20 samples. If, at some time in it, at least nine tenths of
// the capacity were in use, the capacity becomes nine tenths, not below floor, if more than a tenth
// of the samples took longer than target; otherwise it grows by a twentieth, at least 1, not above
// ceiling. If it never was that full, the capacity stays, since it is not the reason why answers
// are slow. [Permit.Failed] and [Permit.Void] tell which permits are no samples.
//
// One controller decides by the permits of all keys, and all keys have its capacity: give such a
// semaphore one key, such as that of Global. Several such Semaphores of one name on one store are
// not a sum: use one, and variants of it. Tiers follow the capacity ([Semaphore.Tier]). A request
// whose weight exceeds the present capacity returns [ErrInvalidWeight], so use weights up to floor.
//
// It is an option of [New], which returns an error unless the store is one of this process alone
// (store.OneProcess), such as a memory store: processes that share permits would compare their
// capacities, and the largest would win. It returns one, too, if target is not positive, if floor
// is less than 1 or not the capacity of New, if ceiling is less than floor or more than the largest
// capacity, and with [WithCapacityFunc].
func WithAdaptiveCapacity(target time.Duration, floor, ceiling int) Option {
	return func(c *lease.Config) {
		c.Adaptive = &lease.Adaptive{Target: target, Floor: floor, Ceiling: ceiling}
	}
}

func checkAdaptive(a *lease.Adaptive) error {
	switch {
	case a.Target <= 0:
		return fmt.Errorf("%w: a target of %v is not positive", ErrInvalidCapacity, a.Target)
	case checkCapacity(a.Floor) != nil || checkCapacity(a.Ceiling) != nil || a.Ceiling < a.Floor:
		return fmt.Errorf("%w: a floor of %d and a ceiling of %d are not between 1 and %d in this order",
			ErrInvalidCapacity, a.Floor, a.Ceiling, store.MaxCapacity)
	}
	return nil
}

// adaptive decides about the capacity. It does not refer to its Semaphore: an observed instrument
// refers to it.
type adaptive struct {
	epoch    time.Time
	capacity atomic.Int64

	mu            sync.Mutex
	set           lease.Adaptive
	off           bool          // no sample counts
	began         time.Duration // the window, since epoch
	samples, slow int           // in the window
}

// newAdaptive returns the controller for a new Semaphore's configuration, or nil if it has none.
func newAdaptive(st store.Leases, config *lease.Config, capacity int) (*adaptive, error) {
	set := config.Adaptive
	if set == nil {
		return nil, nil
	}
	if err := checkAdaptive(set); err != nil {
		return nil, fmt.Errorf("semaphore: New: WithAdaptiveCapacity: %w", err)
	}
	_, alone := st.(store.OneProcess)
	switch {
	case !alone:
		return nil, fmt.Errorf("semaphore: New: WithAdaptiveCapacity: %T is shared with other processes; use a memory store", st)
	case config.CapacityOf != nil:
		return nil, errors.New("semaphore: New: WithAdaptiveCapacity and WithCapacityFunc exclude each other")
	case capacity != set.Floor:
		return nil, fmt.Errorf("semaphore: New: %w: %d is not the floor of WithAdaptiveCapacity, %d, at which it begins",
			ErrInvalidCapacity, capacity, set.Floor)
	}
	a := &adaptive{epoch: time.Now(), set: *set}
	a.capacity.Store(int64(set.Floor))
	return a, nil
}

// SetAdaptiveCapacity changes the settings of [WithAdaptiveCapacity] for the Semaphore and its
// variants. The present capacity stays, unless it is out of the new bounds: then it becomes the
// nearer one. A new window begins.
//
// It returns an error, and changes nothing, if the capacity is not adaptive, or if the settings are
// out of the ranges that WithAdaptiveCapacity has.
func (s *Semaphore) SetAdaptiveCapacity(target time.Duration, floor, ceiling int) error {
	a := s.adaptive
	if a == nil {
		return errors.New("semaphore: SetAdaptiveCapacity: the semaphore is not built with WithAdaptiveCapacity")
	}
	set := lease.Adaptive{Target: target, Floor: floor, Ceiling: ceiling}
	if err := checkAdaptive(&set); err != nil {
		return fmt.Errorf("semaphore: SetAdaptiveCapacity: %w", err)
	}
	s.changeRule(func(r *compiledRule) { a.change(s.pool, set, r.Off) })
	return nil
}

// change replaces the settings, and begins a window. The capacity stays, within the bounds.
func (a *adaptive) change(pool *lease.Pool, set lease.Adaptive, off bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.set, a.off = set, off
	a.capacity.Store(min(max(a.capacity.Load(), int64(set.Floor)), int64(set.Ceiling)))
	a.begin(time.Since(a.epoch))
	pool.Peak()
}

// begin begins a window. The caller holds mu.
func (a *adaptive) begin(now time.Duration) { a.began, a.samples, a.slow = now, 0, 0 }

// sample counts a permit that was granted at a time, and decides if that ends a window.
func (c *core) sample(granted time.Duration, failed bool) {
	a := c.adaptive
	now := time.Since(a.epoch)
	a.mu.Lock()
	slow := now-granted > a.set.Target
	if a.off || failed && !slow {
		a.mu.Unlock()
		return
	}
	a.samples++
	if slow {
		a.slow++
	}
	over := a.samples >= windowSamples && now-a.began >= windowTime
	changed := over && a.decide(c.pool.Peak())
	if over {
		a.begin(now)
	}
	a.mu.Unlock()
	if changed {
		c.pool.Resize()
	}
}

// decide sets the capacity at the end of a window in which at most peak was in use, and reports
// whether it has changed. The caller holds mu.
func (a *adaptive) decide(peak int) (changed bool) {
	n := int(a.capacity.Load())
	next := n
	switch {
	case peak*10 < n*9:
	case a.slow*10 > a.samples:
		next = max(n*9/10, a.set.Floor)
	default:
		next = min(n+max(n/20, 1), a.set.Ceiling)
	}
	a.capacity.Store(int64(next))
	return next != n
}

// outcome is what a permit is as a sample.
type outcome int64

const (
	counts outcome = iota
	countsIfSlow
	never
	ended // it was released

	outcomeBits = 2
)

func outcomeOf(sample int64) outcome { return outcome(sample & (1<<outcomeBits - 1)) }

// Failed reports, before the release, that the work under the permit has failed, or that its caller
// has left. With [WithAdaptiveCapacity] the permit is then a sample only if it was held for longer
// than the target: a fast failure must not raise the capacity, and work that is given up must lower
// it. Otherwise, and after the release or [Permit.Void], it does nothing.
func (p *Permit) Failed() {
	if old := p.sample.Load(); outcomeOf(old) == counts {
		p.sample.CompareAndSwap(old, old|int64(countsIfSlow))
	}
}

// Void reports, before the release, that the time of the permit says nothing about the load, as of
// a stream or a connection that was taken over. With [WithAdaptiveCapacity] the permit is then no
// sample. Otherwise, and after the release, it does nothing.
func (p *Permit) Void() {
	for {
		old := p.sample.Load()
		if outcomeOf(old) == ended || p.sample.CompareAndSwap(old, old&^int64(ended)|int64(never)) {
			return
		}
	}
}

// end takes the permit's sample, once.
func (p *Permit) end() {
	if p.core == nil {
		return
	}
	old := p.sample.Or(int64(ended))
	if how := outcomeOf(old); how < never {
		p.core.sample(time.Duration(old>>outcomeBits), how == countsIfSlow)
	}
}
