// Package report writes down what a fleet was tortured with, and what came of it.
package report

import (
	"cmp"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/check"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

// Run is a run on one store.
type Run struct {
	Store, Version string
	Missing        []string // what could not be tortured, and why
	Workers        int
	Seed           uint64
	Took           time.Duration
	Faults         []Fault // all that could be injected
	Injected       []Injected
	Subjects       []Count
	Findings       check.Findings
}

// Fault is a kind of fault.
type Fault struct{ Name, About string }

// Injected is a fault that was injected, with the longest gap until the next one.
type Injected struct {
	check.Fault
	Gap check.Gap
}

// Count is how often what was done to a subject.
type Count struct {
	Subject workload.Subject
	Calls   int
	Done    int // holds, allowed charges, or attempts
	Late    int // of them, holds that had ended when the call returned
	Refused int // because others held it, or without tokens
	Other   int // replayed
	Failed  map[string]int
	// Puts and Cancels are how many of them were answered, by outcome, and Buried is how many tasks
	// were buried.
	Puts, Cancels map[string]int
	Buried        int
}

// Counts counts what was done to each subject.
func Counts(records map[history.Place]*history.Record, subjects []workload.Subject) (all []Count) {
	for _, s := range subjects {
		c := Count{Subject: s, Failed: make(map[string]int), Puts: make(map[string]int), Cancels: make(map[string]int)}
		for place, r := range records {
			if place.Subject == s.Name {
				c.add(r)
			}
		}
		all = append(all, c)
	}
	return all
}

func (c *Count) add(r *history.Record) {
	c.Calls += len(r.Calls) + len(r.Charges) + r.Denied
	c.Done += len(r.Charges)
	c.Refused += r.Denied
	if r.Buried {
		c.Buried++
	}
	for _, call := range r.Calls {
		switch {
		case call.Outcome != "" && call.Step == history.Putting:
			c.Puts[call.Outcome]++
		case call.Outcome != "":
			c.Cancels[call.Outcome]++
		case call.Held:
			c.Done++
			if !call.Valid() {
				c.Late++
			}
		case call.Error == history.Taken:
			c.Refused++
		case call.Error != "":
			c.Failed[call.Error]++
		}
	}
	for _, n := range r.Notes {
		switch {
		case n.Step == history.Replayed:
			c.Other++
		case n.Step == history.Completed && c.Subject.Kind == workload.Once:
			c.Done++
		}
	}
}

// Write writes the report of some runs, which a command repeats.
func Write(to io.Writer, command string, runs []*Run) error {
	w := &writer{}
	w.line("# Torture")
	w.line("")
	w.line("Fleets of processes lock, acquire, take tokens, and run operations and tasks while they, the network and the servers fail, one fault")
	w.line("after the other. Each process writes down what it did, before and after each step; a checker then looks for anything that")
	w.line("Lockkeeper promises not to happen. It is itself tested with planted bugs.")
	w.line("")
	w.line("```\n%s\n```", command)
	w.line("")
	w.table("store | server | processes | time | operations | faults | violations", "---|---|--:|--:|--:|--:|--:", func(row func(string, ...any)) {
		for _, r := range runs {
			calls := 0
			for _, c := range r.Subjects {
				calls += c.Calls
			}
			row("%s | %s | %d | %v | %s | %d | **%d**", r.Store, r.Version, r.Workers, r.Took.Round(time.Second), thousands(calls),
				len(r.Injected), len(r.Findings.Violations))
		}
	})
	w.line("")
	w.line("A violation is any of: two valid holders of a lock, or more than the capacity of a semaphore in use; a fence that does not")
	w.line("grow; a valid holder whose write a fence refuses; a fair lock that is granted out of order; a valid lease that cannot be")
	w.line("re-entered; more tokens in any time than the burst and what has come back, and an overdraft, or what processes may have taken")
	w.line("in advance; a token of a key that is held; an operation that has its effect twice, that runs again after its completion, or")
	w.line("that gives two results; in a transaction, an operation with two effects or a result without its effect; a key that is free")
	w.line("for more than 10 s beside a lease, without a fault, while a caller waits; a task that is early or lost, that has its effect twice,")
	w.line("that was prevented and runs, or that runs after one that was put later; a process that does not end. Where the server")
	w.line("replies: a call that ends as in an outage, or an operation that runs without its guard for that reason; beside 150 callers of")
	w.line("one scope, calls that take more than three times as long as beside 150 of as many scopes, or a lease that is lost. After all")
	w.line("connections became stale while new ones work: more than 6 failed calls of a process, or one after four timeouts of the store.")
	w.line("These are judged only where a connection beside them was made in time, all along: a busy machine breaks them, too.")
	w.line("")
	w.line("Where a fault makes the server lose state, holders from before it may overlap with later ones for one lease, and rates and")
	w.line("operations begin anew; everything else is checked all the same. Those faults are marked. A crash of PostgreSQL empties")
	w.line("token buckets, which are in unlogged tables: rates begin anew then, and nothing else does.")
	for _, r := range runs {
		w.run(r)
	}
	_, err := io.WriteString(to, w.String())
	return err
}

type writer struct{ strings.Builder }

func (w *writer) line(format string, args ...any) {
	w.WriteString(fmt.Sprintf(format, args...) + "\n")
}

func (w *writer) table(head, rule string, rows func(row func(string, ...any))) {
	w.line("| %s |", head)
	w.line("|%s|", rule)
	rows(func(format string, args ...any) { w.line("| "+format+" |", args...) })
}

func (w *writer) run(r *Run) {
	w.line("\n## %s\n", strings.ToUpper(r.Store[:1])+r.Store[1:])
	w.line("%s, %d processes, %v, seed %d.", r.Version, r.Workers, r.Took.Round(time.Second), r.Seed)
	for _, m := range r.Missing {
		w.line("Not tortured: %s.", m)
	}
	w.line("")
	w.table("mechanism | | calls | held, allowed, run | ended before the call returned | refused | replayed | errors",
		"---|---|--:|--:|--:|--:|--:|---",
		func(row func(string, ...any)) {
			for _, c := range r.Subjects {
				row("%s | %s | %s | %s | %s | %s | %s | %s", c.Subject.Kind, c.Subject.About, thousands(c.Calls), thousands(c.Done), thousands(c.Late),
					thousands(c.Refused), thousands(c.Other), classes(c.Failed))
			}
		})
	w.line("")
	w.line("Of holders whose lease had ended, a fence refused %d late writes; %d operations were left with an unknown outcome.",
		r.Findings.Stale, r.Findings.Unknown)
	for _, c := range r.Subjects {
		if c.Subject.Kind == workload.Task {
			w.line("\nTasks of \"%s\": puts were answered %s; cancels %s; %s buried.", c.Subject.About, orNone(c.Puts), orNone(c.Cancels), thousands(c.Buried))
		}
	}
	w.line("")
	w.table("fault | | injected | hit | longest gap | on | violations", "---|---|--:|--:|--:|---|--:", func(row func(string, ...any)) {
		for _, f := range r.Faults {
			k := r.kind(f.Name)
			if k.injected == 0 {
				continue
			}
			lost := ""
			if k.lost == k.injected {
				lost = " **State lost.**"
			} else if k.lost > 0 {
				lost = fmt.Sprintf(" **State lost** %d times, by a failover.", k.lost)
			} else if k.failovers > 0 {
				lost = fmt.Sprintf(" **Locks lost** %d times, by a failover.", k.failovers)
			} else if k.emptied {
				lost = " **Buckets emptied.**"
			}
			row("%s | %s.%s | %d | %s | %.2f s | %s | %d", f.Name, f.About, lost, k.injected, thousands(int(k.hits)), k.gap.Length().Seconds(),
				k.gap.Place.Subject, k.violations)
		}
	})
	for _, in := range r.Injected {
		if in.Err != nil {
			w.line("\nA fault could not be injected, or not be ended: %s: %v", in.Name, in.Err)
		}
	}
	if len(r.Findings.Violations) > 0 {
		w.line("\n### Violations\n")
		for i, v := range r.Findings.Violations {
			if i == mostShown {
				w.line("- and %d more", len(r.Findings.Violations)-i)
				break
			}
			w.line("- %s", r.Describe(v))
		}
	}
}

const mostShown = 50

// Describe returns a violation with the fault that was injected last before it.
func (r *Run) Describe(v check.Violation) string {
	if in := r.during(v.At); in != nil {
		return fmt.Sprintf("%s (%.3f s after the beginning of: %s %s, which took %.3f s)", v.Text, float64(v.At-in.From)/1e9, in.Name, in.Target,
			float64(in.To-in.From)/1e9)
	}
	return v.Text
}

// during returns the last fault that had begun at a time.
func (r *Run) during(at int64) (last *Injected) {
	for i := range r.Injected {
		if r.Injected[i].From <= at {
			last = &r.Injected[i]
		}
	}
	return last
}

// kind is what there was of one kind of fault.
type kind struct {
	injected, lost, failovers, violations int

	emptied bool
	hits    int64
	gap     check.Gap
}

func (r *Run) kind(name string) (k kind) {
	for _, in := range r.Injected {
		if in.Name != name {
			continue
		}
		k.injected++
		k.hits += in.Hits
		if in.Lost {
			k.lost++
		}
		if in.Failover {
			k.failovers++
		}
		k.emptied = k.emptied || in.Emptied
		if in.Gap.Length() > k.gap.Length() {
			k.gap = in.Gap
		}
	}
	for _, v := range r.Findings.Violations {
		if in := r.during(v.At); in != nil && in.Name == name {
			k.violations++
		}
	}
	return k
}

func orNone(n map[string]int) string { return cmp.Or(classes(n), "never") }

// classes returns the numbers of errors, the most frequent first.
func classes(failed map[string]int) string {
	var all []string
	for class := range failed {
		all = append(all, class)
	}
	slices.SortFunc(all, func(a, b string) int {
		return cmp.Or(cmp.Compare(failed[b], failed[a]), cmp.Compare(a, b))
	})
	for i, class := range all {
		all[i] = fmt.Sprintf("%s %s", thousands(failed[class]), class)
	}
	return strings.Join(all, ", ")
}

// thousands returns a number with a comma every three digits.
func thousands(n int) string {
	text := fmt.Sprint(n)
	for i := len(text) - 3; i > 0; i -= 3 {
		text = text[:i] + "," + text[i:]
	}
	return text
}
