package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

const (
	// rounding is by how much a task may seem to be early: clocks differ by so much in a few seconds.
	rounding = 3 * time.Millisecond
	// prompt is how long a put or a cancel takes that was sent once. Of others a copy may arrive
	// later, for as long as stray.
	prompt = 200 * time.Millisecond
	stray  = 10 * time.Second
	never  = int64(1<<63 - 1)
)

// tasks are the puts, cancels and runs of a key.
type tasks struct {
	*part
	puts    map[string]*history.Call // by task
	cancels []*history.Call
	runs    []*history.Call // in the order in which they began
	effects map[string]int  // by task
}

// tasks checks the tasks of a key.
func (p *part) tasks() {
	t := tasks{part: p, puts: make(map[string]*history.Call), effects: make(map[string]int)}
	for _, c := range p.Calls {
		switch c.Step {
		case history.Putting:
			t.puts[c.Task] = c
		case history.Cancelling:
			t.cancels = append(t.cancels, c)
		default:
			t.runs = append(t.runs, c)
		}
	}
	slices.SortFunc(t.runs, func(a, b *history.Call) int { return cmp.Compare(begun(a), begun(b)) })
	t.due()
	t.once()
	t.prevented()
	t.succession()
	t.complete()
}

// begun is when a run began, at the latest.
func begun(run *history.Call) int64 { return max(run.Returned, run.Called) }

// due checks that tasks were put, and that none runs before it is due, by the server's clock. If
// that clock was set forward in between, a task runs earlier by other clocks, by as much.
func (t *tasks) due() {
	for _, run := range t.runs {
		put := t.puts[run.Task]
		if put == nil || put.Outcome == history.RolledBack {
			t.wrong(begun(run), "%s ran %q, which nobody has put", run.Worker, run.Task)
			continue
		}
		waits := put.After - rounding
		for _, f := range t.faults {
			if f.Step > 0 && f.From < begun(run) && f.To >= put.Called {
				waits -= f.Step
			}
		}
		if early := put.Called + int64(waits) - begun(run); early > 0 {
			t.wrong(begun(run), "%s ran %q %.1f ms before it was due", run.Worker, run.Task, float64(early)/1e6)
		}
	}
}

// once checks that tasks have their effects once: those without a guard have none that is checked.
func (t *tasks) once() {
	var recorded map[string]*history.Note
	slices.SortFunc(t.Notes, func(a, b history.Note) int { return cmp.Compare(a.At, b.At) })
	for i, n := range t.Notes {
		switch n.Step {
		case history.Recorded:
			if recorded == nil {
				recorded = make(map[string]*history.Note)
			}
			recorded[n.Text] = &t.Notes[i]
		case history.Effect:
			t.effects[n.Text]++
			before := recorded[n.Text]
			switch {
			case t.subject.Effect != workload.Guarded || t.effects[n.Text] == 1 || t.lostSince(n.Text, n.At):
			case !t.subject.Rerun:
				t.wrong(n.At, "a second effect of %q, of %s", n.Text, n.Call.Worker)
			case before != nil && before.At < n.Call.Called:
				t.wrong(n.At, "an effect of %q, of %s, after %s had recorded it", n.Text, n.Call.Worker, before.Call.Worker)
			}
		}
	}
	for _, text := range t.Committed {
		t.effects[text]++
		if put := t.puts[text]; put == nil || put.Outcome == history.RolledBack {
			t.wrong(t.end(), "an effect of %q, which nobody has put", text)
		} else if t.effects[text] > 1 && !t.lostSince(text, t.end()) {
			t.wrong(t.end(), "%d effects of %q are in the database", t.effects[text], text)
		}
	}
}

// lostSince reports whether the server may have lost something of a task since it was put.
func (t *tasks) lostSince(task string, until int64) bool {
	put := t.puts[task]
	return put == nil || t.lost(put.Called, until)
}

// end is when the last call of the key began or returned.
func (t *tasks) end() (end int64) {
	for _, c := range t.Calls {
		end = max(end, c.Called, c.Returned)
	}
	return end
}

// reach is until when a call may have had its effect in the store.
func reach(c *history.Call) int64 {
	switch {
	case c.Returned == 0 || c.Outcome == "":
		return never
	case c.Returned-c.Called > int64(prompt):
		return c.Returned + int64(stray)
	}
	return c.Returned
}

// prevented checks that a task that a cancel has prevented does not run.
func (t *tasks) prevented() {
	put := t.only()
	for _, c := range t.cancels {
		if c.Outcome != "prevented" || put == nil || t.lost(put.Called, c.Returned) {
			continue
		}
		for _, run := range t.runs {
			if run.Task == put.Task {
				t.wrong(begun(run), "%s ran %q, which %s had prevented at %s", run.Worker, run.Task, c.Worker, ms(c.Returned))
				break
			}
		}
	}
}

// only returns the put of the key, if there is one that was answered, and no other one.
func (t *tasks) only() *history.Call {
	for _, put := range t.puts {
		if len(t.puts) == 1 && put.Outcome != "" {
			return put
		}
	}
	return nil
}

// succession checks that no task runs after another one that was put later.
func (t *tasks) succession() {
	var last *history.Call // of the puts whose tasks have run, the one that was called last
	for _, run := range t.runs {
		put := t.puts[run.Task]
		if put == nil || !run.Valid() { // one that is late was taken before others, perhaps
			continue
		}
		if last != nil && reach(put) < last.Called && !t.lost(put.Called, begun(run)) {
			t.wrong(begun(run), "%s ran %q after %q, which was put later", run.Worker, run.Task, last.Task)
		}
		if last == nil || put.Called > last.Called {
			last = put
		}
	}
}

// complete checks that each task that was put has had its effect, unless it was cancelled or buried,
// or another one has taken its place.
func (t *tasks) complete() {
	var first, second int64 // the latest reaches of puts
	for _, put := range t.puts {
		if r := reach(put); r > first {
			first, second = r, first
		} else {
			second = max(second, r)
		}
	}
	cancelled := int64(0)
	for _, c := range t.cancels {
		if c.Outcome != "absent" {
			cancelled = max(cancelled, reach(c))
		}
	}
	for task, put := range t.puts {
		others := first
		if reach(put) == first {
			others = second
		}
		if put.Outcome == "" || put.Outcome == history.RolledBack || t.effects[task] > 0 || others > put.Called || cancelled > put.Called || t.Buried {
			continue
		}
		if !t.lost(put.Called, never) {
			t.wrong(put.Returned, "%q is lost: %s was told that it was put (%s)", task, put.Worker, put.Outcome)
		}
	}
}
