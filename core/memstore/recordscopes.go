package memstore

import (
	"container/list"
	"sync"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
)

// If there is no room for a new record,
//   - expired ones are removed;
//   - then larger results of the scope with the most bytes of results are dropped, whose operations
//     stay finished;
//   - only if that makes no room, the new record is refused.
const (
	// freedPart is the part of the store that is freed at a time, so that not every new record has
	// to find the fullest scope.
	freedPart = 64
	// maxDropped and dropBatch bound the search for room: the maximum of dropped results, and of
	// the scope's oldest results that are examined at a time.
	maxDropped, dropBatch = 1024, 256
)

// recordRoom is the memory of all records of a store.
type recordRoom struct {
	max  int64
	used atomic.Int64
	mu   sync.Mutex // held while making room
}

// take takes room for n bytes. It returns false if there is not enough.
func (r *recordRoom) take(n int) bool {
	if r.used.Add(int64(n)) > r.max && n > 0 {
		r.free(n)
		return false
	}
	return true
}

func (r *recordRoom) free(n int) { r.used.Add(int64(-n)) }

func (r *recordRoom) fits(n int) bool { return r.used.Load()+int64(n) <= r.max }

// makeRoom makes room for n bytes, and reports whether it succeeded. It drops results only of
// scopes with more than moreThan bytes of results.
func (s *Store) makeRoom(n, moreThan int) bool {
	room := &s.recordRoom
	room.mu.Lock()
	defer room.mu.Unlock()
	if room.fits(n) { // another call has made room
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
	for forgotten := 0; forgotten < maxDropped && !room.fits(goal); {
		dropped := s.fullestShard().dropResults(int(room.used.Load()+int64(goal)-room.max), moreThan)
		if dropped == 0 {
			break
		}
		forgotten += dropped
	}
	return room.fits(n)
}

// fullestShard returns the shard whose fullest scope has the most bytes.
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

// dropResults drops results of the shard's fullest scope until it has freed n bytes: of the oldest
// ones, results not smaller than the mean, or any if there are none. It returns their number.
func (r *recordShard) dropResults(n, moreThan int) (dropped int) {
	if r == nil {
		return 0
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if len(r.fullest) == 0 || r.fullest[0].bytes <= moreThan {
		return 0
	}
	sc := r.fullest[0]
	for mean := sc.bytes / max(sc.results.Len(), 1); dropped == 0; mean = 0 {
		at := sc.results.Front()
		for range dropBatch {
			if at == nil || n <= 0 {
				break
			}
			rec := at.Value.(*record)
			at = at.Next()
			if len(rec.data) >= mean {
				rec.state = store.NotRetained
				n -= r.dropData(rec)
				dropped++
			}
		}
		if mean == 0 {
			break
		}
	}
	return dropped
}

// recordScope is a scope in a shard. Operations without a scope share one.
type recordScope struct {
	name    string
	all     list.List // of *record, ordered by expiry if their retentions are the same
	results list.List // of *record, with a result, oldest first
	bytes   int       // total size of the results
	index   int       // in the heap
}

// scope returns a scope; it adds one without records.
func (r *recordShard) scope(name string) *recordScope {
	sc := r.scopes[name]
	if sc == nil {
		sc = &recordScope{name: name}
		r.scopes[name] = sc
		r.fullest.Push(sc)
	}
	return sc
}

// resize adds n to the bytes of a scope's results.
func (r *recordShard) resize(sc *recordScope, n int) {
	sc.bytes += n
	r.fullest.Fix(sc)
}

func (r *recordShard) bytesOf(scope string) int {
	if sc := r.scopes[scope]; sc != nil {
		return sc.bytes
	}
	return 0
}

// first removes the expired records of a scope, and returns the first other one, or nil.
func (r *recordShard) first(sc *recordScope, now int64) *expiry.Entry[string, *record] {
	for first := sc.all.Front(); first != nil; first = sc.all.Front() {
		if e := r.records.Get(first.Value.(*record).ref.ID, now); e != nil {
			return e
		}
	}
	return nil
}

// Before implements heap.Item: the scope with the most bytes is first.
func (sc *recordScope) Before(other *recordScope) bool { return sc.bytes > other.bytes }

// Index implements heap.Item.
func (sc *recordScope) Index() *int { return &sc.index }
