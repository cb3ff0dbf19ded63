package memstore

import (
	"container/heap"
	"sync"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/expiry"
)

// When there is no room for a new record, expired ones go first. Then the larger results of the scope that
// has the most bytes of them are forgotten, and their operations stay finished. Only if that makes no
// room is the new one refused.
const (
	// freedPart is the part of the store that is freed at a time, so that not every new record looks for
	// the fullest scope.
	freedPart = 64
	// maxDemoted and demotedOf bound a search for room: so many results at most are forgotten, a part
	// of the scope's oldest at a time.
	maxDemoted, demotedOf = 1024, 256
)

// recordRoom is the memory of all records of a store.
type recordRoom struct {
	max  int64
	used atomic.Int64
	mu   sync.Mutex // held by who makes room
}

// take reports whether there is room for n bytes, which it then takes.
func (r *recordRoom) take(n int) bool {
	if r.used.Add(int64(n)) > r.max && n > 0 {
		r.give(n)
		return false
	}
	return true
}

func (r *recordRoom) give(n int) { r.used.Add(int64(-n)) }

func (r *recordRoom) fits(n int) bool { return r.used.Load()+int64(n) <= r.max }

// makeRoom makes room for n bytes, and reports whether it could. It forgets results only of scopes that
// have more bytes of them than a given number.
func (s *Store) makeRoom(n, moreThan int) bool {
	room := &s.recordRoom
	room.mu.Lock()
	defer room.mu.Unlock()
	if room.fits(n) { // another has made some
		return true
	}
	now := s.now()
	for i := range s.records {
		r := &s.records[i]
		r.mu.Lock()
		r.records.Sweep(expiry.SweepFull, now)
		r.mu.Unlock()
	}
	goal := max(n, int(room.max/freedPart))
	for forgotten := 0; forgotten < maxDemoted && !room.fits(goal); {
		demoted := s.fullestShard().demote(int(room.used.Load()+int64(goal)-room.max), moreThan)
		if demoted == 0 {
			break
		}
		forgotten += demoted
	}
	return room.fits(n)
}

// fullestShard returns the one whose fullest scope has the most bytes.
func (s *Store) fullestShard() (fullest *recordShard) {
	most := -1
	for i := range s.records {
		r := &s.records[i]
		r.mu.Lock()
		if len(r.fullest) > 0 && r.fullest[0].bytes > most {
			most, fullest = r.fullest[0].bytes, r
		}
		r.mu.Unlock()
	}
	return fullest
}

// demote forgets results of the shard's fullest scope, until it has freed n bytes: those of its oldest
// that are no smaller than the mean, or if there are none, of its oldest. It returns how many.
func (r *recordShard) demote(n, moreThan int) (demoted int) {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.fullest) == 0 || r.fullest[0].bytes <= moreThan {
		return 0
	}
	sc := r.fullest[0]
	for mean := sc.bytes / max(sc.results.size, 1); demoted == 0; mean = 0 {
		rec := sc.results.first
		for range demotedOf {
			if rec == nil || n <= 0 {
				break
			}
			next := rec.links[sc.results.which].next
			if len(rec.data) >= mean {
				rec.state = store.NotRetained
				n -= r.dropData(rec)
				demoted++
			}
			rec = next
		}
		if mean == 0 {
			break
		}
	}
	return demoted
}

// recordScope is what a shard knows of a scope. Operations of a shard that have none share one.
type recordScope struct {
	name    string
	all     recordList // the first to expire first, if their retentions are the same
	results recordList // those that have a result, the oldest first
	bytes   int        // of the results
	index   int        // in the heap
}

// scope returns a scope, which is begun if it has no records.
func (r *recordShard) scope(name string) *recordScope {
	sc := r.scopes[name]
	if sc == nil {
		sc = &recordScope{name: name}
		sc.results.which = 1
		r.scopes[name] = sc
		heap.Push(&r.fullest, sc)
	}
	return sc
}

// forget forgets a scope that has no records.
func (r *recordShard) forget(sc *recordScope) {
	delete(r.scopes, sc.name)
	heap.Remove(&r.fullest, sc.index)
}

// resize notes that a scope has n more bytes of results.
func (r *recordShard) resize(sc *recordScope, n int) {
	sc.bytes += n
	heap.Fix(&r.fullest, sc.index)
}

func (r *recordShard) bytesOf(scope string) int {
	if sc := r.scopes[scope]; sc != nil {
		return sc.bytes
	}
	return 0
}

// first removes the records of a scope that have expired, and returns the first that has not, or nil.
func (r *recordShard) first(sc *recordScope, now int64) *expiry.Entry[string, *record] {
	for sc.all.first != nil {
		if e := r.records.Get(sc.all.first.id, now); e != nil {
			return e
		}
	}
	return nil
}

// recordList is a list of records that are linked to each other.
type recordList struct {
	first, last *record
	size        int
	which       int // of a record's links
}

type recordLinks struct{ prev, next *record }

func (l *recordList) push(rec *record) {
	rec.links[l.which] = recordLinks{prev: l.last}
	if l.last != nil {
		l.last.links[l.which].next = rec
	} else {
		l.first = rec
	}
	l.last = rec
	l.size++
}

func (l *recordList) remove(rec *record) {
	links := rec.links[l.which]
	if links.prev != nil {
		links.prev.links[l.which].next = links.next
	} else {
		l.first = links.next
	}
	if links.next != nil {
		links.next.links[l.which].prev = links.prev
	} else {
		l.last = links.prev
	}
	rec.links[l.which] = recordLinks{}
	l.size--
}

// scopeHeap has the scope with the most bytes at its top.
type scopeHeap []*recordScope

func (h scopeHeap) Len() int           { return len(h) }
func (h scopeHeap) Less(i, j int) bool { return h[i].bytes > h[j].bytes }
func (h scopeHeap) Swap(i, j int) {
	h[i], h[j] = h[j], h[i]
	h[i].index, h[j].index = i, j
}

func (h *scopeHeap) Push(x any) {
	sc := x.(*recordScope)
	sc.index = len(*h)
	*h = append(*h, sc)
}

func (h *scopeHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	old[len(old)-1] = nil
	*h = old[:len(old)-1]
	return last
}
