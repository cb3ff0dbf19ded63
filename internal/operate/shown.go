package operate

import (
	"time"

	"go.opentelemetry.io/otel/trace"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// The types of this file are what pages and commands show, and what both print as JSON: fences are
// strings there, since many programs round numbers beyond 2^53, and times are nanoseconds. Texts that
// others have chosen are as they are; see [OneLine].

// ShownKey is a key: its ID, and the key itself if that is allowed.
type ShownKey struct {
	ID  string `json:"id"`
	Key string `json:"key,omitempty"`
}

// Show returns a key in the form for people.
func Show(key string, itself bool) ShownKey {
	k := ShownKey{ID: KeyID(key)}
	if itself {
		k.Key = key
	}
	return k
}

// Text returns the key on one line, or its ID.
func (k ShownKey) Text() string {
	if k.Key == "" {
		return k.ID
	}
	return OneLine(k.Key)
}

// Holds is a lock, or the permits of a semaphore's key.
type Holds struct {
	Name    string   `json:"name"`
	Key     ShownKey `json:"key"`
	InUse   int      `json:"in_use"` // the weights of all holds; 2^30 of a lock that is not shared
	Holders []Hold   `json:"holders"`
	Waiting int      `json:"waiting"`
	Waiters []Waiter `json:"waiters"` // the first of them, in order
}

// Hold is one of its holders.
type Hold struct {
	Fence     int64         `json:"fence,string"`
	Label     string        `json:"label"`
	Weight    int           `json:"weight"`
	Age       time.Duration `json:"held_for_ns"`
	Remaining time.Duration `json:"remaining_ns"`
	Trace     string        `json:"trace,omitempty"`
}

// Waiter is a request that waits for it.
type Waiter struct {
	Label   string        `json:"label"`
	Weight  int           `json:"weight"`
	Reserve int           `json:"reserve,omitempty"` // the capacity that it leaves free: its tier
	Age     time.Duration `json:"waits_for_ns"`
	Trace   string        `json:"trace,omitempty"`
}

// HoldsOf returns the holds of a key.
func HoldsOf(name string, key ShownKey, k inspect.Key) Holds {
	v := Holds{Name: name, Key: key, InUse: k.InUse, Waiting: k.Waiting, Holders: []Hold{}, Waiters: []Waiter{}}
	for i := range k.Holders {
		h := &k.Holders[i]
		v.Holders = append(v.Holders, Hold{h.Fence, h.Label, h.Weight, h.Age, h.Remaining, traceOf(h.Trace)})
	}
	for i := range k.Waiters {
		w := &k.Waiters[i]
		v.Waiters = append(v.Waiters, Waiter{w.Label, w.Weight, w.Reserve, w.Age, traceOf(w.Trace)})
	}
	return v
}

func traceOf(span trace.SpanContext) string {
	if !span.IsValid() {
		return ""
	}
	return span.TraceID().String()
}

// KeyLimits is what a key of a limiter has left.
type KeyLimits struct {
	Key        ShownKey      `json:"key"`
	Allowed    bool          `json:"allowed"`
	RetryAfter time.Duration `json:"retry_after_ns,omitempty"`
	Held       time.Duration `json:"held_ns,omitempty"`
	Unenforced bool          `json:"unenforced,omitempty"` // in shadow, or off
	Limits     []KeyLimit    `json:"limits"`
}

// KeyLimit is one of its limits.
type KeyLimit struct {
	Name      string        `json:"name"`
	Capacity  int64         `json:"capacity"`
	Window    time.Duration `json:"window_ns"`
	Remaining int64         `json:"remaining"`
	Reserved  int64         `json:"reserved,omitempty"`
	Full      time.Duration `json:"full_in_ns"`
	Next      time.Duration `json:"next_token_in_ns"`
}

// LimitsOf returns the limits of a key by a decision about it.
func LimitsOf(key ShownKey, d tokenbucket.Decision) KeyLimits {
	v := KeyLimits{Key: key, Allowed: d.Allowed, Held: d.Held, Unenforced: !d.Enforced(), Limits: []KeyLimit{}}
	if !d.Allowed {
		v.RetryAfter = d.RetryAfter
	}
	for _, s := range d.Limits() {
		v.Limits = append(v.Limits, KeyLimit{s.Name, s.Capacity, s.Window, s.Remaining, s.Reserved, s.Reset, s.Next})
	}
	return v
}

// Operation is the record of an operation.
type Operation struct {
	Guard      string        `json:"guard"`
	ID         string        `json:"id"`
	State      guard.State   `json:"state"`
	Unresolved bool          `json:"unresolved"`
	Dirty      bool          `json:"may_have_effects"`
	Attempt    int           `json:"attempt"`
	Holder     string        `json:"holder"`
	Age        time.Duration `json:"age_ns"`
	Changed    time.Duration `json:"changed_ns"`
	Lease      time.Duration `json:"lease_ns,omitempty"`
	Expires    time.Duration `json:"expires_ns"`
	Status     int           `json:"status,omitempty"`
	Size       int           `json:"size,omitempty"`
	Steps      []string      `json:"steps,omitempty"`
	Trace      string        `json:"trace,omitempty"`
	Version    string        `json:"version"`
}

// OperationOf returns the operation of a record of a guard.
func OperationOf(name string, r guard.Record) Operation {
	return Operation{
		Guard: name, ID: r.ID, State: r.State, Unresolved: r.Unresolved(), Dirty: r.Dirty || r.State == guard.Unknown,
		Attempt: r.Attempt, Holder: r.Holder, Age: r.Age, Changed: r.Changed, Lease: r.Lease, Expires: r.Expires,
		Status: r.Status, Size: r.Size, Steps: r.Steps, Trace: traceOf(r.Trace), Version: r.Version(),
	}
}

// Task is a delayed task.
type Task struct {
	Queue   string        `json:"queue"`
	Key     ShownKey      `json:"key"`
	ID      string        `json:"id"`
	State   string        `json:"state"`
	Attempt int           `json:"attempt"`
	Due     time.Duration `json:"due_ns,omitempty"` // if it waits: negative if it is due
	Lease   time.Duration `json:"lease_ns,omitempty"`
	Holder  string        `json:"holder,omitempty"`
	Follows bool          `json:"another_follows,omitempty"`
	Reason  string        `json:"reason,omitempty"`
	Age     time.Duration `json:"buried_for_ns,omitempty"`
	Expires time.Duration `json:"expires_ns,omitempty"`
	Bytes   int           `json:"bytes"`
	Fence   int64         `json:"fence,string"`
}

// The states of a [Task].
const (
	Waits  = "waiting"
	Runs   = "running"
	Buried = "buried"
)

// TaskOf returns a task of a queue.
func TaskOf(queue string, key ShownKey, t inspect.DelayedTask) Task {
	v := Task{
		Queue: queue, Key: key, ID: t.TaskID, Attempt: t.Attempt, Holder: t.Holder, Follows: t.Follows, Reason: t.Reason,
		Bytes: t.Bytes, Fence: t.Fence,
	}
	switch t.State {
	case store.TaskWaiting:
		v.State, v.Due = Waits, t.Due
	case store.TaskTaken:
		v.State, v.Lease = Runs, t.Lease
	case store.TaskKeptBuried:
		v.State, v.Age, v.Expires = Buried, t.Age, t.Expires
	}
	return v
}
