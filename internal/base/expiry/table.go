// Package expiry has a map whose entries expire.
package expiry

import "iter"

// Table is a bounded map whose entries expire. Expired entries are removed a few at a time as
// others are added, so that it needs no goroutine and no long pause. It is not safe for concurrent
// use.
type Table[K comparable, V any] struct {
	index   map[K]int
	entries []Entry[K, V]
	hand    int // where the next sweep begins
	limit   int
	removed func(*V)
}

// Entry is an entry of a table, valid until the table changes.
type Entry[K comparable, V any] struct {
	key     K
	Value   V
	Expires int64 // by the caller's clock
}

const (
	// SweepStep entries are examined for each added one: two, so that the expired entries do not
	// outnumber the live ones for long.
	SweepStep = 2
	// SweepFull entries are examined before an addition to a full table is refused.
	SweepFull = 64
)

// NewTable returns an empty table. If removed is not nil, it is called for every removed value.
func NewTable[K comparable, V any](limit int, removed func(*V)) Table[K, V] {
	return Table[K, V]{index: make(map[K]int), limit: limit, removed: removed}
}

// Len returns the number of entries, including expired ones.
func (t *Table[K, V]) Len() int { return len(t.entries) }

// Keys yields the keys of all entries, including expired ones.
func (t *Table[K, V]) Keys() iter.Seq[K] {
	return func(yield func(K) bool) {
		for i := range t.entries {
			if !yield(t.entries[i].key) {
				return
			}
		}
	}
}

// Get returns the entry of k, or nil if there is none or it has expired.
func (t *Table[K, V]) Get(k K, now int64) *Entry[K, V] {
	i, ok := t.index[k]
	if !ok {
		return nil
	}
	if t.entries[i].Expires <= now {
		t.removeAt(i)
		return nil
	}
	return &t.entries[i]
}

// Room reports whether n more entries fit, after looking for expired ones to remove.
func (t *Table[K, V]) Room(n int, now int64) bool {
	if len(t.entries)+n > t.limit {
		t.Sweep(SweepFull, now)
	}
	return len(t.entries)+n <= t.limit
}

// Add adds an entry for a key that has none. The caller has called Room.
func (t *Table[K, V]) Add(k K, v V, expires, now int64) {
	t.Sweep(SweepStep, now)
	t.index[k] = len(t.entries)
	t.entries = append(t.entries, Entry[K, V]{k, v, expires})
}

// Remove removes the entry of k, if there is one.
func (t *Table[K, V]) Remove(k K) {
	if i, ok := t.index[k]; ok {
		t.removeAt(i)
	}
}

func (t *Table[K, V]) removeAt(i int) {
	if t.removed != nil {
		t.removed(&t.entries[i].Value)
	}
	delete(t.index, t.entries[i].key)
	last := len(t.entries) - 1
	if i != last {
		t.entries[i] = t.entries[last]
		t.index[t.entries[i].key] = i
	}
	t.entries[last] = Entry[K, V]{}
	t.entries = t.entries[:last]
}

// Sweep examines n entries, and removes the expired ones.
func (t *Table[K, V]) Sweep(n int, now int64) {
	for range min(n, len(t.entries)) {
		if t.hand >= len(t.entries) {
			t.hand = 0
		}
		if t.entries[t.hand].Expires <= now {
			t.removeAt(t.hand) // another entry takes its place, and is next
		} else {
			t.hand++
		}
		if len(t.entries) == 0 {
			return
		}
	}
}
