package check

import (
	"cmp"
	"slices"
	"strings"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
)

// effects checks that an operation has its effects once, if it may not run again, and never after
// its completion was confirmed.
func (p *part) effects() {
	slices.SortFunc(p.Notes, func(a, b history.Note) int { return cmp.Compare(a.At, b.At) })
	var effect, done *history.Note
	for i, n := range p.Notes {
		switch n.Step {
		case history.Effect:
			if effect != nil && !p.mayRepeat(min(effect.Call.Called, n.Call.Called), n.At) {
				p.wrong(n.At, "a second effect, of %s after %s", n.Call.Worker, effect.Call.Worker)
			}
			effect = &p.Notes[i]
		case history.Completed:
			if done == nil || p.lost(done.Call.Called, n.At) {
				done = &p.Notes[i]
			}
		}
	}
	for _, c := range p.Calls {
		if c.Error == "outcome unknown" {
			p.Unknown++
			break
		}
	}
	if done == nil {
		return
	}
	for _, c := range p.Calls {
		if c.Held && c.Called > done.At && !p.lost(done.Call.Called, c.Returned) {
			p.wrong(c.Returned, "%s was to run it again after %s had completed it", c.Worker, done.Call.Worker)
		}
	}
}

// mayRepeat reports whether an operation may have had two effects between two times.
func (p *part) mayRepeat(from, to int64) bool {
	return p.subject.Rerun || p.lost(from, to) || p.subject.Open && !p.replied(from, to)
}

// results checks that all processes are given the same result, of an attempt that has completed.
// A process whose own completion is not confirmed yet replays that one.
func (p *part) results() {
	var first *history.Note
	for i, n := range p.Notes {
		own := strings.HasPrefix(n.Text, n.Call.Worker+".")
		if n.Step != history.Replayed || own {
			continue
		}
		if !slices.ContainsFunc(p.Notes, func(c history.Note) bool { return c.Step == history.Completing && c.Text == n.Text }) {
			p.wrong(n.At, "%s was given a result that nobody has produced: %q", n.Call.Worker, n.Text)
		}
		switch {
		case first == nil || p.lost(first.Call.Called, n.At):
			first = &p.Notes[i]
		case first.Text != n.Text:
			p.wrong(n.At, "two results: %q, and %q for %s", first.Text, n.Text, n.Call.Worker)
		}
	}
}

// once checks that an operation in a transaction has its effect once, and that each result is that of
// the effect, also if the caller got no reply to the commit.
func (p *part) once() {
	var from, to int64
	for i, c := range p.Calls {
		if i == 0 || c.Called < from {
			from = c.Called
		}
		to = max(to, c.Called, c.Returned)
	}
	if p.lost(from, to) {
		return
	}
	if len(p.Committed) > 1 {
		p.wrong(to, "%d effects: %s", len(p.Committed), strings.Join(p.Committed, ", "))
	}
	for _, n := range p.Notes {
		if !slices.Contains(p.Committed, n.Text) {
			p.wrong(n.At, "%s was given the result %q, without its effect", n.Call.Worker, n.Text)
		}
	}
}
