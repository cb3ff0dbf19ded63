package check

import (
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

// planted is a history that a test writes.
type planted struct {
	log    *history.Log
	calls  int64
	faults []Fault
}

func at(ms int) int64 { return int64(time.Hour) + int64(ms)*int64(time.Millisecond) }

// call adds a call of a worker, and returns what adds its later events.
func (p *planted) call(worker, subject string, ms int, weight int64) func(step history.Step, ms int, n int64, until int, text ...string) {
	p.calls++
	number := p.calls
	p.log.Add(worker, history.Event{At: at(ms), Step: history.Called, Call: number, Subject: subject, N: weight, Waits: true})
	return func(step history.Step, ms int, n int64, until int, text ...string) {
		e := history.Event{At: at(ms), Step: step, Call: number, N: n, Text: strings.Join(text, "")}
		if until != 0 {
			e.Until = at(until)
		}
		p.log.Add(worker, e)
	}
}

// hold adds a hold that is valid from one time to another.
func (p *planted) hold(worker, subject string, from, to int, weight, fence int64) {
	add := p.call(worker, subject, from-1, weight)
	add(history.Granted, from, fence, from+1000)
	add(history.Wrote, to, 0, to)
	add(history.Releasing, to, 0, 0)
}

// died adds a hold of a process that is killed while it is valid.
func (p *planted) died(worker, subject string, from, killed int, weight, fence int64) {
	p.call(worker, subject, from-1, weight)(history.Granted, from, fence, from+1000)
	p.log.Died(worker, at(killed))
}

func (p *planted) charge(called, returned int, n int64) { p.chargeOf("limit", called, returned, n) }

func (p *planted) chargeOf(subject string, called, returned int, n int64) {
	p.log.Add("a", history.Event{At: at(returned), Step: history.Allowed, Subject: subject, N: n, Until: at(called)})
}

// keyHeld adds a hold of the key of a bucket for some milliseconds.
func (p *planted) keyHeld(subject string, called, returned, ms int) {
	p.log.Add("a", history.Event{
		At: at(returned), Step: history.Holding, Subject: subject, N: int64(ms) * int64(time.Millisecond), Until: at(called),
	})
}

// attempt adds an attempt with an effect, and a result unless that is empty.
func (p *planted) attempt(worker, subject string, from, to int, result string) {
	add := p.call(worker, subject, from-1, workload.Exclusive)
	add(history.Granted, from, 1, 0)
	add(history.Effect, to, 0, 0)
	if result == "" {
		add(history.Ended, to, 0, 0)
		return
	}
	add(history.Completing, to, 0, to, result)
	add(history.Completed, to+1, 0, 0, result)
}

func (p *planted) lost(from, to int) {
	p.faults = append(p.faults, Fault{Name: "flush", From: at(from), To: at(to), Lost: true})
}

func (p *planted) once(ms int, result string, step history.Step) {
	p.call("a", workload.OnceName, ms, workload.Exclusive)(step, ms+1, 0, 0, result)
}

func (p *planted) committed(text string) {
	p.log.Add("", history.Event{Step: history.Committed, Subject: workload.OnceName, Text: text})
}

// put adds a put of a task that is due ms later, which is answered at once.
func (p *planted) put(subject, task string, called, ms int, outcome string) {
	p.asked(history.Event{
		At: at(called), Step: history.Putting, Subject: subject, Task: task, N: int64(ms) * int64(time.Millisecond),
	}, called+1, outcome)
}

func (p *planted) cancel(subject string, called, returned int, outcome string) {
	p.asked(history.Event{At: at(called), Step: history.Cancelling, Subject: subject}, returned, outcome)
}

// asked adds a put or a cancel, which is not answered if its outcome is empty.
func (p *planted) asked(e history.Event, returned int, outcome string) {
	p.calls++
	e.Call = p.calls
	p.log.Add("a", e)
	answer := history.Event{At: at(returned), Step: history.Answered, Call: p.calls, Text: outcome}
	if outcome == "" {
		answer.Step, answer.Text = history.Failed, history.Unconfirmed
	}
	p.log.Add("a", answer)
}

// run adds a run of a task with a number of effects.
func (p *planted) run(worker, subject, task string, from, to int, fence int64, effects ...history.Step) {
	p.calls++
	add := func(e history.Event) {
		e.Call = p.calls
		p.log.Add(worker, e)
	}
	add(history.Event{At: at(from - 1000), Step: history.Called, Subject: subject, Task: task, N: workload.Exclusive})
	add(history.Event{At: at(from), Step: history.Granted, N: fence})
	for _, step := range effects {
		add(history.Event{At: at(to), Step: step, Text: task})
	}
	add(history.Event{At: at(to), Step: history.Releasing})
}

func (p *planted) emptied(from, to int) {
	p.faults = append(p.faults, Fault{Name: "crash", From: at(from), To: at(to), Emptied: true})
}

func (p *planted) step(ms int, d time.Duration) {
	p.faults = append(p.faults, Fault{Name: "step", From: at(ms), To: at(ms), Step: d})
}

func TestHistories(t *testing.T) {
	const x = workload.Exclusive
	for name, test := range map[string]struct {
		plant func(p *planted)
		want  string // a part of the only violation; empty if there is none
	}{
		"locks one after the other": {func(p *planted) {
			p.hold("a", "lock", 0, 10, x, 1)
			p.hold("b", "lock", 10, 20, x, 2)
			p.hold("a", "lock", 21, 30, x, 9)
		}, ""},
		"two holders": {func(p *planted) {
			p.hold("a", "lock", 0, 10, x, 1)
			p.hold("b", "lock", 9, 20, x, 2)
		}, "two valid holders for 1.0 ms"},
		"two holders, one within the other": {func(p *planted) {
			p.hold("a", "lock", 0, 100, x, 1)
			p.died("b", "lock", 200, 201, x, 3)
			p.hold("b", "lock", 50, 60, x, 2)
		}, "two valid holders"},
		"a hold that was never valid": {func(p *planted) {
			p.hold("a", "lock", 0, 10, x, 1)
			add := p.call("b", "lock", 1, x)
			add(history.Late, 5, 2, 0)
		}, ""},
		"a hold whose end its holder has seen": {func(p *planted) {
			add := p.call("a", "lock", 0, x)
			add(history.Granted, 1, 1, 100)
			add(history.Valid, 10, 0, 110)
			add(history.Wrote, 200, 0, 0)
			add(history.Ended, 200, 0, 0)
			p.hold("b", "lock", 11, 20, x, 2)
		}, ""},
		"readers": {func(p *planted) {
			p.hold("a", "rwlock", 0, 10, 1, 1)
			p.hold("b", "rwlock", 5, 20, 1, 2)
			p.hold("a", "rwlock", 20, 30, x, 3)
		}, ""},
		"a reader beside a writer": {func(p *planted) {
			p.hold("a", "rwlock", 0, 10, x, 1)
			p.hold("b", "rwlock", 5, 20, 1, 2)
		}, "two valid holders"},
		"the lease of a dead process": {func(p *planted) {
			p.died("a", "lock", 0, 5, x, 1)
			p.hold("b", "lock", 1001, 1010, x, 2)
		}, ""},
		"the lease of a dead process, granted again": {func(p *planted) {
			p.died("a", "lock", 0, 5, x, 1)
			p.hold("b", "lock", 990, 1010, x, 2)
		}, "two valid holders for 10.0 ms"},
		"the lock-delay of a dead process": {func(p *planted) {
			p.died("a", "lockdelay", 0, 5, x, 1)
			p.hold("b", "lockdelay", 1300, 1310, x, 2)
		}, "two valid holders"},
		"a fence that does not grow": {func(p *planted) {
			p.hold("a", "lock", 0, 10, x, 2)
			p.call("b", "lock", 9, x)(history.Granted, 11, 2, 1000)
		}, "fence 2 after 2"},
		"a write that is refused": {func(p *planted) {
			p.hold("a", "rwlock", 0, 10, 1, 7) // a downgraded lease: its writes are of an exclusive one before
			p.hold("b", "rwlock", 11, 20, 1, 6)
		}, "write was refused"},
		"after a loss, for a lease": {func(p *planted) {
			p.lost(100, 101)
			p.hold("a", "lock", 0, 1000, x, 1)
			p.hold("b", "lock", 200, 900, x, 2)
			p.hold("b", "lock", 1201, 1210, x, 3)
		}, ""},
		"after a loss, for longer than a lease": {func(p *planted) {
			p.lost(100, 101)
			p.hold("a", "lock", 0, 1300, x, 1)
			p.hold("b", "lock", 1200, 1290, x, 2)
		}, "two valid holders for 90.0 ms"},
		"after a loss, between new holders": {func(p *planted) {
			p.lost(100, 101)
			p.hold("a", "lock", 310, 400, x, 1)
			p.hold("b", "lock", 350, 450, x, 2)
		}, "two valid holders"},
		"a fence after a loss": {func(p *planted) {
			p.hold("a", "lock", 0, 10, x, 5)
			p.lost(100, 101)
			p.hold("b", "lock", 1200, 1210, x, 4)
		}, "fence 4 after 5"},
		"a fence after a loss, by a clock that was set back": {func(p *planted) {
			p.hold("a", "lock", 0, 10, x, 5)
			p.step(50, -3*time.Second)
			p.lost(100, 101)
			p.hold("b", "lock", 1200, 1210, x, 4)
		}, ""},
		"a write from before a loss, by a clock that was set back": {func(p *planted) {
			p.step(50, -3*time.Second)
			p.lost(100, 101)
			p.hold("a", "lock", 90, 110, x, 5)
			p.hold("b", "lock", 1200, 1210, x, 4)
		}, ""},
		"a grant from before a loss, handed on after it, by a clock that was set back": {func(p *planted) {
			p.hold("a", "lock", 0, 10, x, 5)
			p.step(50, -3*time.Second)
			p.lost(100, 101)
			p.hold("a", "lock", 110, 120, x, 6)
			p.hold("b", "lock", 1200, 1210, x, 4)
		}, ""},
		"a fence after a loss, by a clock that was set back later": {func(p *planted) {
			p.hold("a", "lock", 0, 10, x, 5)
			p.lost(100, 101)
			p.step(150, -3*time.Second)
			p.hold("b", "lock", 1200, 1210, x, 4)
		}, ""},
		"a fence between a loss and a clock that was set back": {func(p *planted) {
			p.hold("a", "lock", 0, 10, x, 5)
			p.lost(100, 101)
			p.hold("b", "lock", 1200, 1210, x, 4)
			p.step(1250, -3*time.Second)
		}, "fence 4 after 5"},
		"a fence after one between a loss and a clock that was set back": {func(p *planted) {
			p.lost(100, 101)
			p.hold("a", "lock", 1200, 1210, x, 5)
			p.step(1250, -3*time.Second)
			p.hold("b", "lock", 1300, 1310, x, 4)
		}, "fence 4 after 5"},
		"a fence after a loss, by a clock that was set back by less than has passed": {func(p *planted) {
			p.hold("a", "lock", 0, 10, x, 5)
			p.lost(100, 101)
			p.step(4000, -3*time.Second)
			p.hold("b", "lock", 4100, 4110, x, 4)
		}, "fence 4 after 5"},
		"a fence after a clock that was set forward and back": {func(p *planted) {
			p.hold("a", "lock", 0, 10, x, 5)
			p.step(50, time.Second)
			p.faults[0].Lost = true
			p.step(100, -3*time.Second)
			p.hold("b", "lock", 1200, 1210, x, 4)
		}, "fence 4 after 5"},
		"a write long after a loss, by a clock that was set back": {func(p *planted) {
			p.step(50, -3*time.Second)
			p.lost(100, 101)
			p.hold("a", "rwlock", 2300, 2310, 1, 5)
			p.hold("b", "rwlock", 2320, 2330, 1, 4)
		}, "write was refused"},
		"a fence after a loss, by a clock that was set back long before": {func(p *planted) {
			p.step(0, -3*time.Second)
			p.hold("a", "lock", 3500, 3510, x, 5)
			p.lost(3600, 3601)
			p.hold("b", "lock", 4700, 4710, x, 4)
		}, "fence 4 after 5"},
		"permits": {func(p *planted) {
			p.hold("a", "semaphore", 0, 10, 3, 1)
			p.hold("b", "semaphore", 1, 10, 2, 2)
			p.hold("a", "semaphore", 10, 20, 3, 3)
		}, ""},
		"too many permits": {func(p *planted) {
			p.hold("a", "semaphore", 0, 10, 3, 1)
			p.hold("b", "semaphore", 1, 10, 2, 2)
			p.hold("b", "semaphore", 9, 20, 1, 2)
		}, "6 of 5 in use for 1.0 ms"},
		"tokens": {func(p *planted) { // 40 a second, 10 at once
			p.charge(0, 1, 10)
			p.charge(20, 26, 1)
			p.charge(40, 51, 1)
		}, ""},
		"a token too many": {func(p *planted) {
			p.charge(0, 1, 10)
			p.charge(20, 26, 1)
			p.charge(40, 49, 1)
		}, "12 tokens"},
		"a token too many after a pause": {func(p *planted) {
			p.charge(0, 1, 1)
			p.charge(5000, 5001, 3)
			p.charge(5002, 5010, 8)
		}, "11 tokens in 0.010 s"},
		"tokens after a loss": {func(p *planted) {
			p.charge(0, 1, 10)
			p.lost(5, 6)
			p.charge(10, 11, 10)
		}, ""},
		"tokens after a loss of buckets": {func(p *planted) {
			p.charge(0, 1, 10)
			p.emptied(5, 6)
			p.charge(10, 11, 10)
		}, ""},
		"after a loss of buckets, two holders": {func(p *planted) {
			p.emptied(100, 101)
			p.hold("a", "lock", 0, 1000, x, 1)
			p.hold("b", "lock", 200, 900, x, 2)
		}, "two valid holders"},
		"an operation in a transaction": {func(p *planted) {
			p.once(10, "a.1", history.Completed)
			p.once(20, "a.1", history.Replayed)
			p.committed("a.1")
		}, ""},
		"two effects of an operation in a transaction": {func(p *planted) {
			p.once(10, "a.1", history.Completed)
			p.committed("a.1")
			p.committed("b.1")
		}, "2 effects: a.1, b.1"},
		"a result without its effect": {func(p *planted) {
			p.once(10, "a.1", history.Completed)
		}, "without its effect"},
		"tokens in advance": {func(p *planted) { // 10 at once, and a block of 8 in each of two processes
			p.chargeOf("leased", 0, 1, 26)
			p.chargeOf("leased", 10, 26, 1)
		}, ""},
		"a token in advance too many": {func(p *planted) {
			p.chargeOf("leased", 0, 1, 26)
			p.chargeOf("leased", 10, 24, 1)
		}, "27 tokens"},
		"an overdraft": {func(p *planted) { // of 20, with 20 at once
			p.chargeOf("reserved", 0, 1, 20)
			p.chargeOf("reserved", 1, 2, 20)
		}, ""},
		"more than an overdraft": {func(p *planted) {
			p.chargeOf("reserved", 0, 1, 20)
			p.chargeOf("reserved", 1, 2, 21)
		}, "41 tokens"},
		"charges around a hold": {func(p *planted) {
			p.chargeOf("reserved", 0, 12, 1)
			p.keyHeld("reserved", 10, 12, 100)
			p.chargeOf("reserved", 11, 13, 1)
			p.chargeOf("reserved", 20, 111, 1)
		}, ""},
		"a charge during a hold": {func(p *planted) {
			p.keyHeld("reserved", 10, 12, 100)
			p.chargeOf("reserved", 13, 108, 1)
		}, "although the key was held"},
		"a charge during a hold that was lost": {func(p *planted) {
			p.keyHeld("reserved", 10, 12, 100)
			p.lost(20, 21)
			p.chargeOf("reserved", 30, 40, 1)
		}, ""},
		"order": {func(p *planted) {
			p.hold("a", "fair", 0, 900, x, 1)
			b := p.call("b", "fair", 10, x)
			c := p.call("c", "fair", 20, x)
			c(history.Granted, 900, 2, 1900)
			c(history.Releasing, 901, 0, 0)
			b(history.Granted, 902, 3, 1902)
			b(history.Releasing, 903, 0, 0)
		}, ""}, // they have called at almost the same time
		"out of order": {func(p *planted) {
			p.hold("a", "fair", 0, 900, x, 1)
			b := p.call("b", "fair", 10, x)
			c := p.call("c", "fair", 800, x)
			c(history.Granted, 900, 2, 1900)
			c(history.Releasing, 901, 0, 0)
			b(history.Granted, 902, 3, 1902)
			b(history.Releasing, 903, 0, 0)
		}, "granted the lock before b, who had called 790 ms before"},
		"out of order, soon after a fault": {func(p *planted) {
			p.faults = append(p.faults, Fault{Name: "start", From: at(-1500), To: at(-1000)})
			p.hold("a", "fair", 0, 900, x, 1)
			b := p.call("b", "fair", 10, x)
			c := p.call("c", "fair", 800, x)
			c(history.Granted, 900, 2, 1900)
			c(history.Releasing, 901, 0, 0)
			b(history.Granted, 902, 3, 1902)
			b(history.Releasing, 903, 0, 0)
		}, ""},
		"a stall": {func(p *planted) {
			p.hold("a", "lock", 0, 10, x, 1)
			b := p.call("b", "lock", 5, x)
			b(history.Granted, 12_000, 2, 13_000)
			b(history.Releasing, 12_001, 0, 0)
		}, "nobody held it for 11.99s"},
		"a stall by a fault": {func(p *planted) {
			p.faults = append(p.faults, Fault{Name: "pause", From: at(10), To: at(5000)})
			p.hold("a", "lock", 0, 10, x, 1)
			b := p.call("b", "lock", 5, x)
			b(history.Granted, 12_000, 2, 13_000)
			b(history.Releasing, 12_001, 0, 0)
		}, ""},
		"nobody waits": {func(p *planted) {
			p.hold("a", "lock", 0, 10, x, 1)
			p.hold("a", "lock", 60_000, 60_010, x, 2)
		}, ""},
		"an operation": {func(p *planted) {
			p.attempt("a", "guard", 0, 10, "a.1")
			p.call("b", "guard", 20, x)(history.Replayed, 21, 0, 0, "a.1")
		}, ""},
		"two effects": {func(p *planted) {
			p.attempt("a", "guard", 0, 10, "")
			p.attempt("b", "guard", 20, 30, "b.1")
		}, "a second effect, of b after a"},
		"two effects after a loss": {func(p *planted) {
			p.attempt("a", "guard", 0, 10, "")
			p.lost(15, 16)
			p.attempt("b", "guard", 20, 30, "b.1")
		}, ""},
		"an effect of an attempt that was lost": {func(p *planted) {
			a := p.call("a", "guard", 0, x)
			a(history.Granted, 1, 1, 0)
			p.lost(5, 6)
			p.attempt("b", "guard", 10, 30, "b.1")
			a(history.Effect, 40, 0, 0)
		}, ""},
		"an attempt after another": {func(p *planted) {
			p.attempt("a", "rerun", 0, 10, "")
			p.attempt("b", "rerun", 20, 30, "b.1")
		}, ""},
		"an attempt beside another": {func(p *planted) {
			p.attempt("a", "rerun", 0, 10, "a.1")
			p.attempt("b", "rerun", 5, 30, "")
		}, "two valid holders"},
		"an attempt after the completion": {func(p *planted) {
			p.attempt("a", "rerun", 0, 10, "a.1")
			p.attempt("b", "rerun", 20, 30, "b.1")
		}, "b was to run it again after a had completed it"},
		"two results": {func(p *planted) {
			p.attempt("a", "rerun", 0, 10, "a.1")
			p.call("b", "rerun", 20, x)(history.Completing, 21, 0, 0, "b.1")
			p.call("c", "rerun", 22, x)(history.Replayed, 23, 0, 0, "a.1")
			p.call("c", "rerun", 24, x)(history.Replayed, 25, 0, 0, "b.1")
		}, `two results: "a.1", and "b.1" for c`},
		"a result of nobody": {func(p *planted) {
			p.attempt("a", "guard", 0, 10, "a.1")
			p.call("c", "guard", 22, x)(history.Replayed, 23, 0, 0, "a.2")
		}, "nobody has produced"},
		"a task": {func(p *planted) {
			p.put("tasks", "1", 0, 100, "created")
			p.run("a", "tasks", "1", 101, 110, 1)
			p.run("b", "tasks", "1", 210, 220, 2, history.Effect, history.Recorded)
		}, ""},
		"a task that is early": {func(p *planted) {
			p.put("tasks", "1", 0, 100, "created")
			p.run("a", "tasks", "1", 90, 110, 1, history.Effect)
		}, `a ran "1" 7.0 ms before it was due`},
		"a task by a clock that was set forward": {func(p *planted) {
			p.put("tasks", "1", 0, 1500, "created")
			p.step(50, time.Second)
			p.run("a", "tasks", "1", 500, 510, 1, history.Effect)
		}, ""},
		"a task that is early, by a clock that was set forward by less": {func(p *planted) {
			p.put("tasks", "1", 0, 1500, "created")
			p.step(50, time.Second)
			p.run("a", "tasks", "1", 490, 510, 1, history.Effect)
		}, "before it was due"},
		"a task that is early, by a clock that was set forward before": {func(p *planted) {
			p.step(-50, time.Second)
			p.put("tasks", "1", 0, 1500, "created")
			p.run("a", "tasks", "1", 500, 510, 1, history.Effect)
		}, "before it was due"},
		"a task of nobody": {func(p *planted) {
			p.run("a", "tasks", "1", 101, 110, 1, history.Effect)
		}, "which nobody has put"},
		"a task of a put that was rolled back": {func(p *planted) {
			p.put("finished tasks", "1", 0, 100, history.RolledBack)
			p.run("a", "finished tasks", "1", 101, 110, 1)
		}, "which nobody has put"},
		"a lost task": {func(p *planted) {
			p.put("tasks", "1", 0, 100, "created")
			p.run("a", "tasks", "1", 101, 110, 1)
		}, `"1" is lost`},
		"a task that the server has lost": {func(p *planted) {
			p.put("tasks", "1", 0, 100, "created")
			p.lost(50, 51)
		}, ""},
		"a task that was not confirmed": {func(p *planted) {
			p.put("tasks", "1", 0, 100, "")
		}, ""},
		"a buried task": {func(p *planted) {
			p.put("tasks", "1", 0, 100, "created")
			p.log.Add("", history.Event{Step: history.Buried, Subject: "tasks"})
		}, ""},
		"two effects of a task": {func(p *planted) {
			p.put("tasks", "1", 0, 100, "created")
			p.run("a", "tasks", "1", 101, 110, 1, history.Effect)
			p.run("b", "tasks", "1", 1210, 1220, 2, history.Effect)
		}, `a second effect of "1", of b`},
		"two effects of a task that may": {func(p *planted) {
			p.put("rerun tasks", "1", 0, 100, "created")
			p.run("a", "rerun tasks", "1", 101, 110, 1, history.Effect)
			p.run("b", "rerun tasks", "1", 1210, 1220, 2, history.Effect, history.Recorded)
		}, ""},
		"an effect after it was recorded": {func(p *planted) {
			p.put("rerun tasks", "1", 0, 100, "created")
			p.run("a", "rerun tasks", "1", 101, 110, 1, history.Effect, history.Recorded)
			p.run("b", "rerun tasks", "1", 1210, 1220, 2, history.Effect)
		}, "after a had recorded it"},
		"two effects in transactions": {func(p *planted) {
			p.put("finished tasks", "1", 0, 100, "created")
			p.run("a", "finished tasks", "1", 101, 110, 1)
			for range 2 {
				p.log.Add("", history.Event{Step: history.Committed, Subject: "finished tasks", Text: "1"})
			}
		}, `2 effects of "1" are in the database`},
		"no effect in a transaction": {func(p *planted) {
			p.put("finished tasks", "1", 0, 100, "created")
			p.run("a", "finished tasks", "1", 101, 110, 1)
		}, "is lost"},
		"a task that was prevented": {func(p *planted) {
			p.put("cancels", "1", 0, 100, "created")
			p.cancel("cancels", 99, 101, "prevented")
		}, ""},
		"a task that was prevented, and runs": {func(p *planted) {
			p.put("cancels", "1", 0, 100, "created")
			p.cancel("cancels", 99, 101, "prevented")
			p.run("b", "cancels", "1", 102, 103, 1, history.Effect)
		}, `b ran "1", which a had prevented`},
		"a task that ran before it was prevented": {func(p *planted) {
			p.put("cancels", "1", 0, 10, "created")
			p.run("b", "cancels", "1", 11, 12, 1, history.Effect)
			p.cancel("cancels", 13, 14, "prevented")
		}, `b ran "1", which a had prevented`},
		"a task that runs while it is cancelled": {func(p *planted) {
			p.put("cancels", "1", 0, 10, "created")
			p.cancel("cancels", 13, 14, "running")
		}, ""},
		"a task that a cancel has not met": {func(p *planted) {
			p.put("cancels", "1", 0, 100, "created")
			p.cancel("cancels", 99, 101, "absent")
		}, `"1" is lost`},
		"a task that a cancel may have met": {func(p *planted) {
			p.put("cancels", "1", 0, 100, "created")
			p.cancel("cancels", 99, 101, "")
			p.cancel("cancels", 102, 103, "absent")
		}, ""},
		"tasks that follow": {func(p *planted) {
			p.put("followed tasks", "1", 0, 10, "created")
			p.put("followed tasks", "2", 15, 10, "follows")
			p.put("followed tasks", "3", 18, 10, "follows")
			p.run("a", "followed tasks", "1", 11, 20, 1, history.Effect)
			p.run("b", "followed tasks", "3", 30, 40, 2, history.Effect)
		}, ""},
		"two workers with a key": {func(p *planted) {
			p.put("followed tasks", "1", 0, 10, "created")
			p.put("followed tasks", "2", 15, 10, "follows")
			p.run("a", "followed tasks", "1", 11, 40, 1, history.Effect)
			p.run("b", "followed tasks", "2", 30, 50, 2, history.Effect)
		}, "two valid holders for 10.0 ms"},
		"a task after a later one": {func(p *planted) {
			p.put("followed tasks", "1", 0, 10, "created")
			p.put("followed tasks", "2", 5, 10, "moved")
			p.run("a", "followed tasks", "2", 30, 40, 1, history.Effect)
			p.run("b", "followed tasks", "1", 41, 50, 2, history.Effect)
		}, `b ran "1" after "2", which was put later`},
		"a last task that is lost": {func(p *planted) {
			p.put("followed tasks", "1", 0, 10, "created")
			p.put("followed tasks", "2", 15, 10, "follows")
			p.run("a", "followed tasks", "1", 11, 20, 1, history.Effect)
		}, `"2" is lost`},
	} {
		t.Run(name, func(t *testing.T) {
			p := &planted{log: history.NewLog()}
			test.plant(p)
			var found []Violation
			p.log.Snapshot(func(records map[history.Place]*history.Record) {
				found = Check(records, workload.Subjects(), p.faults, Options{Workers: 2}).Violations
			})
			for _, v := range found {
				if test.want == "" || !strings.Contains(v.Text, test.want) && !also(found, test.want) {
					t.Errorf("found: %s", v.Text)
				}
			}
			if test.want != "" && !also(found, test.want) {
				t.Errorf("not found: %s", test.want)
			}
		})
	}
}

// also reports whether one of the violations has a text.
func also(found []Violation, text string) bool {
	for _, v := range found {
		if strings.Contains(v.Text, text) {
			return true
		}
	}
	return false
}

// Of an untimed run, what took long is no violation, and two holders are one.
func TestUntimed(t *testing.T) {
	p := &planted{log: history.NewLog()}
	p.hold("a", "fair", 0, 10, workload.Exclusive, 1)
	p.call("b", "fair", 20, workload.Exclusive)(history.Granted, 60_000, 2, 61_000)
	p.fault(0, 1500, stale)
	for i := range 7 {
		p.fails("a", workload.SteadyName, 10, 400+i, history.Unconfirmed)
	}
	p.hold("a", "lock", 0, 30, workload.Exclusive, 1)
	p.hold("b", "lock", 10, 40, workload.Exclusive, 2)
	for untimed, want := range map[bool]int{false: 3, true: 1} {
		p.log.Snapshot(func(records map[history.Place]*history.Record) {
			found := Check(records, workload.Subjects(), p.faults, Options{Workers: 2, Untimed: untimed}).Violations
			if len(found) != want || !also(found, "two valid holders") {
				t.Errorf("untimed %t: %v", untimed, found)
			}
		})
	}
}

// A request of a tier must not be granted what it leaves to others.
func TestReserves(t *testing.T) {
	for name, other := range map[string]struct {
		from, to int
		wrong    bool
	}{
		"all the time":           {0, 5000, true},
		"until before the grant": {0, 3995, false},
		"for less than a lease":  {3900, 5000, false}, // it may have been granted before, for a caller that has left
	} {
		log := history.NewLog()
		p := &planted{log: log}
		p.hold("a", "semaphore", other.from, other.to, 2, 1)
		log.Add("b", history.Event{At: at(3990), Step: history.Called, Call: 99, Subject: "semaphore", N: 2, Reserve: 2})
		log.Add("b", history.Event{At: at(4000), Step: history.Granted, Call: 99, N: 2})
		log.Snapshot(func(records map[history.Place]*history.Record) {
			found := Check(records, workload.Subjects(), nil, Options{Workers: 2}).Violations
			if len(found) > 0 != other.wrong {
				t.Errorf("beside one that was held %s: %v", name, found)
			}
		})
	}
}

// What a killed process held is free when it dies, for the gaps of a report, and what is held at
// the end of a time is not.
func TestLongestGap(t *testing.T) {
	p := &planted{log: history.NewLog()}
	p.hold("a", "lock", 0, 10, workload.Exclusive, 1)
	p.died("b", "lock", 10, 100, workload.Exclusive, 2)
	c := p.call("c", "lock", 200, workload.Exclusive)
	c(history.Granted, 1100, 3, 2100)
	p.log.Snapshot(func(records map[history.Place]*history.Record) {
		g := Longest(records, workload.Subjects(), at(0), at(1500))
		if g.From != at(200) || g.To != at(1100) || g.Place.Subject != "lock" {
			t.Errorf("%v from %v to %v", g.Place, time.Duration(g.From-at(0)), time.Duration(g.To-at(0)))
		}
		if g := Longest(records, workload.Subjects(), at(0), at(600)); g.Length() != 400*time.Millisecond {
			t.Errorf("until now: %v", g.Length())
		}
	})
}
