package presence

import (
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/live"
)

// Process is one process of the fleet, as it described itself.
type Process struct {
	ID          string // of this start of it
	Service     string
	Host        string
	PID         int
	Up          time.Duration // since its first Start
	Version, Go string        // of this library and of the language
	Stores      []Store
	Mechanisms  []Mechanism // the busiest first
	More        int         // how many others did not fit
	Rules       []Rules     // the documents that it follows, of [WithRules]

	Age        time.Duration // of this description
	Unreadable string        // why it cannot be read; "" if it can
}

// Store is a store of a process.
type Store struct {
	Kind     string // redis, postgresql, memory, or the Go type
	Down     bool   // the process takes its server to be down, and fails fast
	Findings []store.Finding
	Calls    Activity // of the store's calls to its server
}

// Rules is a document with rules that a process follows, without its text.
type Rules struct {
	Source, Name string        // file, store or func; the file's or the document's name
	State        string        // current, stale or none
	Since        time.Duration // since when the state is that, by the process's clock
	Version      string        // that the document in force gives itself
	Revision     int64         // of the document in force in the store; 0 for other sources
	Hash         string        // of the document in force
	Errors       int           // why they are stale; the process's log and console have the places
}

// RulesOf describes rules as a process with [WithRules] does.
func RulesOf(of inspect.RulesInspector) Rules {
	r := of.Inspect()
	return Rules{
		Source: cut(r.Source), Name: cut(r.Name), State: cut(r.State), Since: max(time.Since(r.Since), 0), Version: cut(r.Version),
		Revision: r.Revision, Hash: cut(r.Hash), Errors: len(r.Errors),
	}
}

// Mechanism is what a process has under one kind and name.
type Mechanism struct {
	Kind     string // that of log lines: rate_limit, lock, semaphore, idempotency or delay
	Name     string
	Store    int    // the index of its store
	Settings string // of the first of them, without secrets
	Members  int    // how many the process has
	Activity

	// DeniedKeys are the keys that a limiter denied most in the last 10 to 20 minutes, the one with
	// the most denials first. [Presence.Process] returns at most 100. A process writes at most 10 into
	// its history, and fewer if they do not fit; they are nil if it has not written one.
	DeniedKeys []DeniedKey
}

// DeniedKey is a key that a limiter denied, as
// [github.com/lockkeeper/lockkeeper/core/tokenbucket.Limiter.Denied] counts it.
type DeniedKey struct {
	Key     string // its [KeyHash]; the key itself, which may have any bytes, with [ShowKeys]
	Denials uint64
	Excess  uint64 // by how much Denials may be too high
}

// KeyHash returns the hash of a key: the first 11 characters of its SHA-256 digest in URL-safe
// base64. A tool that is given a key finds it so among the denied ones. A reader of a hash can test
// guesses of the key.
func KeyHash(key string) string {
	digest := sha256.Sum256([]byte(key))
	return base64.RawURLEncoding.EncodeToString(digest[:])[:11]
}

// Activity is what a mechanism has done since its process called Start, and what it does now.
type Activity struct {
	Passed uint64 // allowed, acquired, executed, done
	Denied uint64 // by a limit, a holder, or the record of another attempt
	Failed uint64 // without a decision of the store; operations and tasks that failed
	Other  uint64 // left while waiting; replayed; to run again

	Waiting int64 // for a lock, permits or tokens
	Held    int64 // locks, permits by weight, attempts and tasks that run

	// Slots are the last ten minutes in slots of [SlotLength], the oldest first; the last one is
	// still open, since the time Open. They are nil if the process has not written them.
	Slots []Slot
	Open  time.Duration
}

// Slot is what happened in [SlotLength]. Of a mechanism that is called often, the durations are a
// sample.
type Slot = live.Slot

// SlotLength is the length of a slot.
const SlotLength = live.SlotLength

// Calls is the number of calls.
func (a *Activity) Calls() uint64 { return a.Passed + a.Denied + a.Failed + a.Other }

// Percentile returns the p-th part of the durations of slots, such as 0.99, rounded up to the bound
// of its bucket: 10 or 30 µs, and so on up to 100 s. It reports false if there are none.
func Percentile(p float64, slots ...Slot) (time.Duration, bool) { return live.Percentile(p, slots...) }

// kindOf returns the kind of a store.
func kindOf(st any) string {
	name := strings.TrimPrefix(fmt.Sprint(reflect.TypeOf(st)), "*")
	switch name {
	case "redisstore.Store":
		return "redis"
	case "pgstore.Store":
		return "postgresql"
	case "memstore.Store":
		return "memory"
	}
	return name
}
