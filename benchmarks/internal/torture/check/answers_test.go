package check

import (
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

// fault adds a fault beside which the server replies to new connections within 10 ms, and whose
// store has a timeout of 250 ms.
func (p *planted) fault(from, to int, change func(f *Fault)) {
	f := Fault{Name: "fault", Target: "a", From: at(from), To: at(to), Slowest: 10 * time.Millisecond, Timeout: 250 * time.Millisecond}
	change(&f)
	p.faults = append(p.faults, f)
}

func stale(f *Fault)   { f.Stale = true }
func replies(f *Fault) { f.Replies = true }
func crowd(f *Fault)   { f.Replies, f.Turned = true, at(1000) }

// fails adds a call that ends with an error.
func (p *planted) fails(worker, subject string, from, to int, class string) {
	p.call(worker, subject, from, workload.Exclusive)(history.Failed, to, 0, 0, class)
}

// steady adds a steady call that takes so long.
func (p *planted) steady(worker string, from, to int, fence int64) {
	add := p.call(worker, workload.SteadyName, from, 1)
	add(history.Granted, to, fence, to+1000)
	add(history.Releasing, to, 0, 0)
}

// runs adds a run of an operation without its guard.
func (p *planted) runs(worker string, ms int) {
	add := p.call(worker, "unprotected", ms, workload.Exclusive)
	add(history.Effect, ms+1, 0, 0)
	add(history.Failed, ms+1, 0, 0, history.Unavailable)
}

func TestAnswers(t *testing.T) {
	for name, test := range map[string]struct {
		plant func(p *planted)
		want  string // a part of the only violation; empty if there is none
	}{
		"calls that fail for a timeout after connections were stale": {func(p *planted) {
			p.fault(0, 1500, stale)
			for i := range 6 {
				p.fails("a", workload.SteadyName, 10, 400+i, history.Overloaded)
			}
			p.steady("a", 500, 700, 1)
		}, ""},
		"too many calls that fail": {func(p *planted) {
			p.fault(0, 1500, stale)
			for i := range 7 {
				p.fails("a", workload.SteadyName, 10, 400+i, history.Unconfirmed)
			}
		}, "7 calls of a failed"},
		"as many in two processes": {func(p *planted) {
			p.fault(0, 1500, stale)
			for i := range 7 {
				p.fails([]string{"a", "b"}[i%2], workload.SteadyName, 10, 400+i, history.Misconfigured)
			}
		}, ""},
		"calls that a breaker refuses at first": {func(p *planted) {
			p.fault(0, 1500, stale)
			for i := range 100 {
				p.fails("a", workload.SteadyName, i, i+1, history.Unavailable)
			}
		}, ""},
		"calls that a breaker refuses later": {func(p *planted) {
			p.fault(0, 1500, stale)
			for i := range 7 {
				p.fails("a", workload.SteadyName, 400+i, 401+i, history.Unavailable)
			}
		}, "7 calls of a failed"},
		"a call that fails too late": {func(p *planted) {
			p.fault(0, 1500, stale)
			p.fails("a", workload.SteadyName, 800, 1010, history.Overloaded)
		}, "1 calls of a failed, the last after 1.010 s"},
		"a call that takes too long": {func(p *planted) {
			p.fault(0, 1500, stale)
			p.steady("a", -10, 1010, 1)
		}, "the last after 1.010 s"},
		"a call that fails too late, on a busy machine": {func(p *planted) {
			p.fault(0, 1500, func(f *Fault) { f.Stale, f.Slowest = true, 130*time.Millisecond })
			p.fails("a", workload.SteadyName, 800, 1010, history.Overloaded)
		}, ""},
		"an outage while the server replies": {func(p *planted) {
			p.fault(0, 1500, replies)
			p.fails("a", "guard", 10, 20, history.Unavailable)
			p.fails("b", "guard", 30, 40, history.Unconfirmed)
		}, "guard: 2 calls ended as in an outage"},
		"an overload while the server replies": {func(p *planted) {
			p.fault(0, 1500, replies)
			p.fails("a", "guard", 10, 20, history.Overloaded)
		}, ""},
		"an outage after another fault": {func(p *planted) {
			p.lost(-500, -100)
			p.fault(0, 1500, replies)
			p.fails("a", "guard", 10, 20, history.Unavailable)
		}, ""},
		"an outage on a busy machine": {func(p *planted) {
			p.fault(0, 1500, func(f *Fault) { f.Replies, f.Slowest = true, 300*time.Millisecond })
			p.fails("a", "guard", 10, 20, history.Unavailable)
		}, ""},
		"operations without their guard in an outage": {func(p *planted) {
			p.runs("a", 10)
			p.runs("b", 20)
		}, ""},
		"operations without their guard while the server replies": {func(p *planted) {
			p.fault(0, 1500, replies)
			p.runs("a", 10)
			p.runs("b", 20)
		}, "a second effect, of b after a"},
		"calls beside a crowd": {func(p *planted) {
			p.fault(0, 2000, crowd)
			p.steady("a", 10, 60, 1)
			p.steady("a", 1010, 1150, 2)
			p.steady("b", 1200, 1900, 3)
		}, ""},
		"calls that take longer beside a crowd in one scope": {func(p *planted) {
			p.fault(0, 2000, crowd)
			p.steady("a", 10, 60, 1)
			p.steady("a", 1010, 1170, 2)
		}, "calls of a took 160ms at p99 beside callers of one scope, and 50ms beside those of many"},
		"calls that fail beside a crowd in one scope": {func(p *planted) {
			p.fault(0, 2000, crowd)
			p.steady("a", 10, 60, 1)
			p.fails("a", workload.SteadyName, 1010, 1020, history.Overloaded)
		}, "1h0m0s at p99"},
		"a lease that is lost beside a crowd in one scope": {func(p *planted) {
			p.fault(0, 2000, crowd)
			p.steady("a", 10, 60, 1)
			p.steady("a", 1010, 1060, 2)
			add := p.call("a", "lock", 1200, workload.Exclusive)
			add(history.Granted, 1210, 1, 2210)
			add(history.Ended, 1500, 0, 0)
		}, "a has lost 1 leases"},
		"a failover": {func(p *planted) {
			p.faults = append(p.faults, Fault{Name: "failover", From: at(100), To: at(101), Failover: true, Emptied: true})
			p.hold("a", "lock", 0, 1000, workload.Exclusive, 1)
			p.hold("b", "lock", 200, 900, workload.Exclusive, 2)
			p.charge(0, 1, 10)
			p.charge(110, 111, 10)
		}, ""},
		"an operation that a failover has lost": {func(p *planted) {
			p.faults = append(p.faults, Fault{Name: "failover", From: at(100), To: at(101), Failover: true, Emptied: true})
			p.once(10, "a.1", history.Completed)
		}, "without its effect"},
	} {
		t.Run(name, func(t *testing.T) {
			p := &planted{log: history.NewLog()}
			test.plant(p)
			var found []Violation
			p.log.Snapshot(func(records map[history.Place]*history.Record) {
				found = Check(records, workload.Subjects(), p.faults, Options{Workers: 2}).Violations
			})
			if test.want != "" && !also(found, test.want) {
				t.Errorf("not found: %s", test.want)
			}
			for _, v := range found {
				if test.want == "" || !strings.Contains(v.Text, test.want) && !strings.Contains(v.Text, "ended as in an outage") {
					t.Errorf("found: %s", v.Text)
				}
			}
		})
	}
}
