package zkstore

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
)

// stage is what an entry is at, in its process.
type stage int

const (
	creating stage = iota // its node may be there or not
	waiting
	holding
	leaving // it is released; its node may still be there
	gone
)

// entry is a request of this process: a waiter or a hold. Its fields are guarded by the mutex of
// entries, except fields that do not change.
type entry struct {
	place
	id      string
	fences  int
	label   string
	writing sync.Mutex // the data of its node; locked before the mutex of entries

	stage    stage
	made     chan struct{} // closed when no call of put is in progress for it, and no request of one
	stray    bool          // the reply to that was lost
	changed  chan struct{} // closed when it waits no longer
	err      error         // why it left the queue
	weight   int
	capacity int
	ttl      time.Duration

	session *session // of its node
	node    child
	czxid   int64
	number  int64 // its place
	fresh   bool  // it had no place before
	tries   bool  // it does not queue

	awaiting int // calls that await it
	joined   time.Time
	granted  time.Time
	fence    int64
	sent     time.Time // a request that was answered, from which the TTL is counted
	until    time.Time // of a hold, or of a place that no call awaits
	timer    *time.Timer
	guarded  bool // its node is watched

	removing chan struct{} // closed when a request that removes its node is over; nil without one
	removed  bool          // by this process
}

// path returns the path of the entry's node.
func (e *entry) path() string { return e.place.path + "/" + e.node.name }

// grant returns the grant of a hold.
func (e *entry) grant() store.Grant {
	g := store.Grant{Sent: e.sent, Fence: e.fence, LastFence: e.fence + int64(e.fences) - 1, TTL: e.ttl}
	if e.number != 0 {
		g.Place = e.number
	}
	return g
}

// facts returns what the entry's node says.
func (e *entry) facts() *facts {
	return &facts{
		weight: e.weight, capacity: e.capacity, fences: e.fences, ttl: e.ttl, joined: e.joined, label: e.label, czxid: e.czxid,
	}
}

// entries are those of this process, by key and ID.
type entries struct {
	mu          sync.Mutex
	keys        map[string]*key   // by path
	nodes       map[string]*entry // by path
	withdrawn   expiry.Table[string, struct{}]
	began       time.Time
	leaving     int  // entries
	sweeping    bool // a goroutine removes the leaving entries
	connections atomic.Int64
}

// key is a key with entries of this process.
type key struct {
	place
	entries   map[string]*entry
	following bool          // a goroutine looks at the queue for awaited entries
	kick      chan struct{} // has room for one
	facts     map[string]*facts
}

const (
	// unawaited is how long a place, or a grant, is kept that no call awaits.
	unawaited = 3 * time.Second
	// tombstone is how long the ID of a withdrawn request is kept, and maxTombstones how many.
	tombstone     = time.Minute
	maxTombstones = 1 << 16
)

func (a *entries) init() {
	a.keys, a.nodes, a.began = make(map[string]*key), make(map[string]*entry), time.Now()
	a.withdrawn = expiry.NewTable[string](maxTombstones, func(*struct{}) {})
}

// now returns the time for tombstones.
func (a *entries) now() int64 { return int64(time.Since(a.began)) }

// add enters a new request, unless there is one with its ID. It returns the entry, and whether it is
// new.
func (a *entries) add(p place, req *store.LeaseRequest) (e *entry, added bool) {
	a.mu.Lock()
	defer a.mu.Unlock()
	k := a.keys[p.path]
	if k == nil {
		k = &key{place: p, entries: make(map[string]*entry), kick: make(chan struct{}, 1), facts: make(map[string]*facts)}
		a.keys[p.path] = k
	}
	if e := k.entries[req.ID]; e != nil {
		return e, false
	}
	e = &entry{
		place: k.place, id: req.ID, fences: max(req.Fences, 1), label: req.Label, weight: req.Weight, capacity: req.Capacity, ttl: req.TTL,
		number: req.Place, fresh: req.Place == 0, tries: !req.Queue, joined: time.Now(), made: make(chan struct{}), changed: make(chan struct{}),
	}
	k.entries[req.ID] = e
	return e, true
}

// leaves reports whether an entry leaves, or is gone.
func (a *entries) leaves(e *entry) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return e.stage >= leaving
}

// find returns the entry of a reference, or nil.
func (a *entries) find(path, id string) *entry {
	a.mu.Lock()
	defer a.mu.Unlock()
	if k := a.keys[path]; k != nil {
		return k.entries[id]
	}
	return nil
}

// set changes the stage of an entry. The caller holds mu.
func (a *entries) set(e *entry, to stage) {
	if e.stage == to {
		return
	}
	was := e.stage
	if was == leaving {
		a.leaving--
	}
	e.stage = to
	switch to {
	case leaving:
		a.leaving++
	case gone:
		delete(a.nodes, e.path())
		if k := a.keys[e.place.path]; k != nil {
			delete(k.entries, e.id)
			if len(k.entries) == 0 {
				delete(a.keys, k.path)
			}
		}
	}
	if to == leaving || to == gone {
		if e.timer != nil {
			e.timer.Stop()
		}
	}
	if was <= waiting && to > waiting {
		close(e.changed)
	}
	if k := a.keys[e.place.path]; k != nil && to == gone {
		k.wake() // there may be room
	}
}

// claim reports whether the caller may create the entry's node: no other creation is in flight, and
// the entry has not left.
func (a *entries) claim(e *entry) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	if e.stage >= leaving || !isClosed(e.made) {
		return false
	}
	e.made = make(chan struct{})
	return true
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// wake has the key's goroutine look at the queue.
func (k *key) wake() {
	select {
	case k.kick <- struct{}{}:
	default:
	}
}

func (a *entries) kickAll() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.keys {
		k.wake()
	}
}

func (a *entries) empty() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return len(a.keys) == 0
}

// held returns the number of holds that have not expired.
func (a *entries) held() (n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.keys {
		for _, e := range k.entries {
			if e.stage == holding && time.Now().Before(e.until) {
				n++
			}
		}
	}
	return n
}

// stop stops the timers of all entries.
func (a *entries) stop() {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, k := range a.keys {
		for _, e := range k.entries {
			if e.timer != nil {
				e.timer.Stop()
			}
		}
	}
}

// withdraw records that an ID was released, so that a late AwaitLease does not queue it again. The
// caller holds mu.
func (a *entries) withdraw(e *entry) {
	id, now := e.place.path+"/"+e.id, a.now()
	if a.withdrawn.Room(1, now) && a.withdrawn.Get(id, now) == nil {
		a.withdrawn.Add(id, struct{}{}, now+int64(tombstone), now)
	}
}

func (a *entries) wasWithdrawn(p place, id string) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.withdrawn.Get(p.path+"/"+id, a.now()) != nil
}
