package check

import (
	"cmp"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
)

const (
	// late is how long after its call a request may join the queue, or leave it after its end: a
	// store waits for a connection and for a reply, 250 ms each.
	late = 600 * time.Millisecond
	// calm is how long after a fault the order is that of the calls again: what was queued, or
	// failed to be, has gone.
	calm = 2 * time.Second
)

// order checks, outside the time of faults, that no caller was granted a fair lock before another
// one that had called well before it and was waiting.
func (p *part) order() {
	if !p.subject.Fair || p.Untimed { // a caller counts as waiting after a time
		return
	}
	waits := slices.Clone(p.Calls)
	waits = slices.DeleteFunc(waits, func(c *history.Call) bool {
		return !c.Waits || c.Returned == 0 || c.Error != "" && c.Error != history.Taken
	})
	slices.SortFunc(waits, func(a, b *history.Call) int { return cmp.Compare(a.Called, b.Called) })
	for i, b := range waits {
		if !b.Held {
			continue
		}
		for _, a := range slices.Backward(waits[:i]) {
			if b.Called-a.Called > int64(10*time.Second) {
				break // nobody waits for so long
			}
			waited := a.Held && a.Returned > b.Returned || a.Returned > b.Returned+int64(late)
			if waited && a.Called+int64(late) < b.Called && !p.near(a.Called, b.Returned) {
				p.wrong(b.Returned, "%s was granted the lock before %s, who had called %.0f ms before",
					name(b), a.Worker, float64(b.Called-a.Called)/1e6)
				break
			}
		}
	}
}

// unanswered is near for faults while which the server may not reply.
func (c *checker) unanswered(from, to int64) bool {
	return slices.ContainsFunc(c.faults, func(f Fault) bool { return !f.answers() && f.From < to && f.To+int64(calm) > from })
}

// near reports whether there was a fault, or shortly before.
func (c *checker) near(from, to int64) bool {
	return slices.ContainsFunc(c.faults, func(f Fault) bool { return f.From < to && f.To+int64(calm) > from })
}
