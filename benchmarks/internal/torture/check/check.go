// Package check finds what is wrong in the history of a fleet.
//
// It knows only what workers saw, and reports what no order of events within their calls can
// explain: a hold counts from its first proof of validity to its last one, a charge somewhere
// between its call and its return. The time of a violation is when it became one.
package check

import (
	"cmp"
	"fmt"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

// Fault is a fault that was injected.
type Fault struct {
	Name     string
	Target   string // which process, or server
	From, To int64
	Hits     int64 // what the fault did, such as delayed replies, where that can be counted
	// Lost says that the server may have lost what it kept, or a part of it, between From and To. A
	// lease then ends no later than its next renewal, so for the length of a lease after To nothing
	// excludes it. What was granted after To is excluded as ever.
	Lost bool
	// Emptied says that the server may have lost its token buckets between From and To, and nothing
	// else.
	Emptied bool
	// Failover says the same of its locks and permits.
	Failover bool
	// Stale says that from From on all connections from before were of no use, while new ones
	// worked.
	Stale bool
	// Replies means that the server replied in time between From and To.
	Replies bool
	// Slowest is the longest time that the server took to reply to a new connection beside the
	// fault. If it is long, the machine was too busy to judge the fault.
	Slowest time.Duration
	// Timeout is that of the store.
	Timeout time.Duration
	// Turned is when the callers of a crowd in one process, which had scopes and keys of their own
	// between From and Turned, came to have the same until To; 0 if there was no crowd.
	Turned int64
	Step   time.Duration // of the server's clock
	Err    error         // it was not injected, or not ended
}

// Violation is a broken promise.
type Violation struct {
	At      int64
	Subject string
	Text    string
}

// Findings are what a check has found.
type Findings struct {
	Violations []Violation
	// Stale is how many writes of holders whose lease had ended a fence has refused.
	Stale int
	// Unknown is how many operations have been left with an unknown outcome.
	Unknown int
}

// Options is how a run was, and is checked.
type Options struct {
	Workers int  // processes at a time
	Untimed bool // nothing is judged by how long it took, or how many calls failed: the machine was busy
}

// checker is a check of one run.
type checker struct {
	Options
	faults   []Fault // in their order
	setbacks []setback
	Findings
}

// Check checks all records of a run.
func Check(records map[history.Place]*history.Record, subjects []workload.Subject, faults []Fault, o Options) Findings {
	c := &checker{Options: o, faults: slices.SortedFunc(slices.Values(faults), func(a, b Fault) int { return cmp.Compare(a.From, b.From) })}
	for i := range c.faults {
		if f := &c.faults[i]; o.Untimed {
			f.Stale, f.Replies, f.Turned = false, false, 0
		}
	}
	which := func(lose func(Fault) bool) []Fault {
		return slices.DeleteFunc(slices.Clone(c.faults), func(f Fault) bool { return !lose(f) })
	}
	state, leases := which(func(f Fault) bool { return f.Lost }), which(func(f Fault) bool { return f.Lost || f.Failover })
	buckets := which(func(f Fault) bool { return f.Lost || f.Emptied })
	c.setbacks = setbacks(c.faults)
	by := make(map[string]*workload.Subject)
	for i, s := range subjects {
		by[s.Name] = &subjects[i]
	}
	for _, place := range history.Places(records) {
		p := &part{checker: c, losses: state, subject: by[place.Subject], place: place, Record: records[place]}
		switch p.subject.Kind {
		case workload.Lock:
			p.losses = leases
			p.exclusion()
			p.fences()
			p.writes()
			p.order()
			p.stalls()
		case workload.Semaphore:
			p.losses = leases
			p.exclusion()
			p.reserves()
			p.stalls()
		case workload.Bucket:
			p.losses = buckets
			p.rates()
			p.holds()
		case workload.Once:
			p.once()
		case workload.Task:
			p.losses = leases
			p.exclusion()
			p.fences()
			p.losses = state
			p.tasks()
		case workload.Guard:
			p.exclusion()
			p.effects()
			p.results()
		}
	}
	c.answers(records, by)
	slices.SortFunc(c.Violations, func(a, b Violation) int { return cmp.Compare(a.At, b.At) })
	return c.Findings
}

// part is the check of one place.
type part struct {
	*checker
	losses  []Fault // those that may have lost state of this place
	subject *workload.Subject
	place   history.Place
	*history.Record
}

func (p *part) wrong(at int64, format string, args ...any) {
	text := fmt.Sprintf("%s/%s: ", p.place.Subject, p.place.Key) + fmt.Sprintf(format, args...)
	p.Violations = append(p.Violations, Violation{at, p.place.Subject, text})
}

// lost reports whether the server may have lost something between two times.
func (p *part) lost(from, to int64) bool {
	return slices.ContainsFunc(p.losses, func(f Fault) bool { return f.From < to && f.To > from })
}

// name says which call it was.
func name(c *history.Call) string {
	return fmt.Sprintf("%s (fence %d, valid from %s to %s)", c.Worker, c.Fence, ms(c.From), ms(c.To))
}

// ms is a time in the text of a violation.
func ms(at int64) string { return fmt.Sprintf("%.3f s", float64(at)/1e9) }
