package check

import (
	"fmt"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

const (
	// mostFailed is how many steady calls of a process may fail when its connections are stale:
	// three of each caller, of which there are two.
	mostFailed = 6
	// recovery is for how many timeouts of the store they may.
	recovery = 4
	// slower bounds the ratio of the durations of steady calls beside a crowd in one scope, and
	// beside a crowd in many. A duration below brisk is never too long.
	slower = 3
	brisk  = 30 * time.Millisecond
)

// judged reports whether the server has replied to a new connection beside the fault, all along. Stale
// connections are made anew all at once: a server that takes half of a timeout for one of them may not have been able
// to make all of them in time.
func (f Fault) judged() bool {
	most := f.Timeout * 4 / 5
	if f.Stale {
		most = f.Timeout / 2
	}
	return f.Slowest <= most && f.Err == nil
}

// answers reports whether the server went on to reply.
func (f Fault) answers() bool { return f.Replies && f.judged() }

// answers checks calls beside faults that leave the server able to reply.
func (c *checker) answers(records map[history.Place]*history.Record, subjects map[string]*workload.Subject) {
	for _, f := range c.faults {
		if !f.judged() {
			continue
		}
		if f.Stale {
			c.recovered(f, calls(records, workload.SteadyName))
		}
		if f.Replies {
			for name := range subjects {
				c.outages(f, name, calls(records, name))
			}
		}
		if f.Turned != 0 {
			c.crowd(f, calls(records, workload.SteadyName))
			for name, s := range subjects {
				if s.Renewed() && f.Slowest <= s.TTL/8 { // else the machine may be too busy to renew it
					c.leases(f, name, calls(records, name))
				}
			}
		}
	}
}

// calls returns all calls of a subject.
func calls(records map[history.Place]*history.Record, subject string) (all []*history.Call) {
	for place, r := range records {
		if place.Subject == subject {
			all = append(all, r.Calls...)
		}
	}
	return all
}

func (c *checker) wrong(at int64, subject, format string, args ...any) {
	c.Violations = append(c.Violations, Violation{at, subject, subject + ": " + fmt.Sprintf(format, args...)})
}

// recovered checks what it has cost each process that its connections were stale.
func (c *checker) recovered(f Fault, steady []*history.Call) {
	failed, last := make(map[string]int), make(map[string]int64)
	for _, call := range steady {
		if call.Returned < f.From || call.Returned > f.To {
			continue
		}
		if call.Unanswered() {
			if !refusedAtFirst(f, call) {
				failed[call.Worker]++
			}
			last[call.Worker] = max(last[call.Worker], call.Returned)
		} else if call.Returned-max(call.Called, f.From) > int64(recovery*f.Timeout) {
			last[call.Worker] = max(last[call.Worker], call.Returned)
		}
	}
	for worker, at := range last {
		if took := time.Duration(at - f.From); failed[worker] > mostFailed || took > recovery*f.Timeout {
			c.wrong(at, workload.SteadyName, "after its connections were stale, %d calls of %s failed, the last after %.3f s",
				failed[worker], worker, took.Seconds())
		}
	}
}

// refusedAtFirst reports whether a call was refused at once because a probe from before had found
// the server to be what it was then: the next one follows after a timeout.
func refusedAtFirst(f Fault, call *history.Call) bool {
	return time.Duration(call.Returned-call.Called) < f.Timeout/10 && time.Duration(call.Returned-f.From) < 3*f.Timeout/2
}

// replied reports whether the server has replied in time between two times, as far as is known:
// what a fault before has done may last for a while.
func (c *checker) replied(from, to int64) bool {
	return !c.unanswered(from, to) && slices.ContainsFunc(c.faults, func(f Fault) bool { return f.answers() && f.From <= from && to <= f.To })
}

// outages checks that no call ends as if the server were down.
func (c *checker) outages(f Fault, subject string, all []*history.Call) {
	n, first := 0, int64(0)
	for _, call := range all {
		if call.Outage() && c.replied(call.Called, call.Returned) && f.From <= call.Called && call.Called <= f.To {
			if n++; first == 0 || call.Returned < first {
				first = call.Returned
			}
		}
	}
	if n > 0 {
		c.wrong(first, subject, "%d calls ended as in an outage, while the server replied", n)
	}
}

// crowd checks that steady calls of a process do not take longer because others of it have the same
// scope and keys.
func (c *checker) crowd(f Fault, steady []*history.Call) {
	before, beside := slowest(steady, f.Target, f.From, f.Turned), slowest(steady, f.Target, f.Turned, f.To)
	if beside > slower*max(before, brisk) {
		c.wrong(f.To, workload.SteadyName, "calls of %s took %v at p99 beside callers of one scope, and %v beside those of many", f.Target, beside, before)
	}
}

// slowest returns the p99 of the durations of a process's calls between two times. A call that
// failed counts as an hour.
func slowest(all []*history.Call, worker string, from, to int64) time.Duration {
	var took []time.Duration
	for _, call := range all {
		switch {
		case call.Worker != worker || call.Called < from || call.Called > to:
		case call.Returned == 0 || call.Unanswered():
			took = append(took, time.Hour)
		default:
			took = append(took, time.Duration(call.Returned-call.Called))
		}
	}
	if len(took) == 0 {
		return time.Hour
	}
	slices.Sort(took)
	return took[len(took)*99/100]
}

// leases checks that a process loses no lease that is renewed because callers of it have the same
// scope and keys.
func (c *checker) leases(f Fault, subject string, all []*history.Call) {
	lost := func(from, to int64) (n int) {
		for _, call := range all {
			if call.Worker == f.Target && call.Valid() && from < call.Ended && call.Ended < to {
				n++
			}
		}
		return n
	}
	if n := lost(f.Turned, f.To); n > 0 && lost(f.From, f.Turned) == 0 {
		c.wrong(f.To, subject, "%s has lost %d leases beside callers of one scope, and none beside those of many", f.Target, n)
	}
}
