package history

import (
	"cmp"
	"maps"
	"slices"
	"sync"
	"time"
)

// Place is a key of a subject.
type Place struct{ Subject, Key string }

// Call is a call for a hold, with the hold if there is one; or the run of a task, which is one; or
// the put or the cancel of a task.
type Call struct {
	Worker  string
	Step    Step // Called, Putting or Cancelling
	Weight  int64
	Reserve int64
	Waits   bool

	Called   int64
	Returned int64 // 0 if it has not returned
	Error    string

	Held   bool // it returned a hold, valid or not
	Fence  int64
	From   int64 // when the hold was first known to be valid; 0 if it never was
	To     int64 // when it was last known to be valid
	Until  int64 // its end as last known, unless it was renewed; 0 if that is not known
	Closed bool  // its holder has released it, or seen its end
	Died   int64 // when its process was killed before that
	Ended  int64 // when its holder has seen its end, before its release

	Task    string        // that is put, or run
	After   time.Duration // of a put: until the task is due
	Outcome string        // of a put or a cancel that was answered
}

// Taken is the Error of a call that was refused, or has waited in vain, because others hold the
// key.
const Taken = "taken"

// The Errors of calls that the store has not answered, or refused.
const (
	Unavailable   = "unavailable"
	Unconfirmed   = "unconfirmed"
	Overloaded    = "overloaded"
	Misconfigured = "misconfigured"
)

// Outage reports whether the call's error says that the server is down.
func (c *Call) Outage() bool { return c.Error == Unavailable || c.Error == Unconfirmed }

// Unanswered reports whether the call's error is about the store.
func (c *Call) Unanswered() bool {
	return c.Outage() || c.Error == Overloaded || c.Error == Misconfigured
}

// Valid reports whether the call had a hold that was valid.
func (c *Call) Valid() bool { return c.From != 0 }

// Write is a write of a holder, with its fence.
type Write struct {
	At    int64
	Call  *Call
	Valid bool // the hold was valid after it
}

// Charge is an allowed charge of a token bucket.
type Charge struct{ Called, Returned, N int64 }

// Hold is a hold of the key of a token bucket: nothing is allowed for so long.
type Hold struct{ Called, Returned, For int64 }

// Note is a step of an operation: an effect, or a result that was recorded or returned.
type Note struct {
	At   int64
	Step Step // Effect, Recorded, Completing, Completed or Replayed
	Text string
	Call *Call
}

// Record is all that is known of a place.
type Record struct {
	Calls   []*Call
	Writes  []Write
	Charges []Charge
	Holds   []Hold
	Notes   []Note
	Denied  int
	// Committed are the texts of effects that are in the database.
	Committed []string
	Buried    bool // there is a buried task of the key
}

// Log collects the events of all workers. Its methods may be called concurrently.
type Log struct {
	mu      sync.Mutex
	records map[Place]*Record
	open    map[string]map[int64]*entry // the unfinished calls of each worker
	wrong   []Event
	puts    int // that were answered
	cancels int
}

type entry struct {
	call   *Call
	record *Record
}

// NewLog returns an empty log.
func NewLog() *Log {
	return &Log{records: make(map[Place]*Record), open: make(map[string]map[int64]*entry)}
}

func (l *Log) record(p Place) *Record {
	r := l.records[p]
	if r == nil {
		r = new(Record)
		l.records[p] = r
	}
	return r
}

// Add adds an event of a worker.
func (l *Log) Add(worker string, e Event) {
	l.mu.Lock()
	defer l.mu.Unlock()
	place := Place{e.Subject, e.Key}
	switch e.Step {
	case Called, Putting, Cancelling:
		r, c := l.record(place), &Call{Worker: worker, Step: e.Step, Reserve: e.Reserve, Waits: e.Waits, Called: e.At, Task: e.Task}
		if e.Step == Putting {
			c.After = time.Duration(e.N)
		} else {
			c.Weight = e.N
		}
		r.Calls = append(r.Calls, c)
		if l.open[worker] == nil {
			l.open[worker] = make(map[int64]*entry)
		}
		l.open[worker][e.Call] = &entry{c, r}
		return
	case Allowed:
		r := l.record(place)
		r.Charges = append(r.Charges, Charge{Called: e.Until, Returned: e.At, N: e.N})
		return
	case Denied:
		l.record(place).Denied++
		return
	case Holding:
		r := l.record(place)
		r.Holds = append(r.Holds, Hold{Called: e.Until, Returned: e.At, For: e.N})
		return
	case Committed:
		r := l.record(place)
		r.Committed = append(r.Committed, e.Text)
		return
	case Buried:
		l.record(place).Buried = true
		return
	case Wrong:
		e.Text = worker + ": " + e.Text
		l.wrong = append(l.wrong, e)
		return
	}
	o := l.open[worker][e.Call]
	if o == nil {
		return
	}
	switch {
	case e.Step == Answered && o.call.Step == Putting:
		l.puts++
	case e.Step == Answered:
		l.cancels++
	}
	if o.add(e) {
		delete(l.open[worker], e.Call)
	}
}

// Tasks returns how many puts and cancels of tasks were answered.
func (l *Log) Tasks() (puts, cancels int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.puts, l.cancels
}

// add adds a later event of a call, and reports whether it is the last one.
func (o *entry) add(e Event) (last bool) {
	c := o.call
	switch e.Step {
	case Granted:
		c.Held, c.Returned, c.Fence, c.From, c.To, c.Until = true, e.At, e.N, e.At, e.At, e.Until
	case Late:
		c.Held, c.Returned, c.Fence, c.Closed = true, e.At, e.N, true
	case Valid:
		c.To, c.Until = e.At, e.Until
	case Releasing:
		c.To, c.Closed = e.At, true
		return true
	case Ended:
		c.Closed, c.Ended = true, e.At
		return true
	case Failed:
		if c.Returned == 0 {
			c.Returned = e.At
		}
		c.Error, c.Closed = e.Text, true
		return true
	case Answered:
		c.Returned, c.Outcome = e.At, e.Text
		return true
	case Wrote:
		o.record.Writes = append(o.record.Writes, Write{e.At, c, e.Until != 0})
	case Replayed:
		c.Returned = e.At
		o.record.Notes = append(o.record.Notes, Note{e.At, e.Step, e.Text, c})
		return true
	case Effect, Recorded, Completing, Completed:
		o.record.Notes = append(o.record.Notes, Note{e.At, e.Step, e.Text, c})
		if e.Step == Completing {
			c.Closed = true
			if e.Until != 0 {
				c.To = e.At
			}
		}
		if e.Step == Completed && c.Returned == 0 {
			c.Returned = e.At
		}
		return e.Step == Completed
	}
	return false
}

// Died says that a worker was killed, and that all its events were added.
func (l *Log) Died(worker string, at int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, o := range l.open[worker] {
		o.call.Died = at
	}
	delete(l.open, worker)
}

// Wrong returns what workers have found to be wrong.
func (l *Log) Wrong() []Event {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.wrong)
}

// Snapshot calls f with the records, which do not change during the call. f must not keep them.
func (l *Log) Snapshot(f func(map[Place]*Record)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	f(l.records)
}

// Places returns the places of some records, in order.
func Places(records map[Place]*Record) []Place {
	return slices.SortedFunc(maps.Keys(records), func(a, b Place) int {
		return cmp.Or(cmp.Compare(a.Subject, b.Subject), cmp.Compare(a.Key, b.Key))
	})
}
