package memstore

// table is a map whose entries expire and whose number is bounded. What has expired is removed a
// few entries at a time as others are added, so that neither a goroutine nor a stop of the world
// is needed. It is not safe for concurrent use.
type table[K comparable, V any] struct {
	index   map[K]int
	entries []entry[K, V]
	hand    int // where the sweep goes on
	limit   int
	// removed is called for every entry that goes, if it is not nil.
	removed func(*V)
}

type entry[K comparable, V any] struct {
	key     K
	value   V
	expires int64 // µs of the store's clock
}

const (
	// sweepStep entries are looked at for each one added: two, so that the expired never
	// outnumber the live for long.
	sweepStep = 2
	// sweepFull entries are looked at before an addition to a full table is refused.
	sweepFull = 64
)

func newTable[K comparable, V any](limit int, removed func(*V)) table[K, V] {
	return table[K, V]{index: make(map[K]int), limit: limit, removed: removed}
}

// get returns the entry of k, or nil if there is none or it has expired.
func (t *table[K, V]) get(k K, now int64) *entry[K, V] {
	i, ok := t.index[k]
	if !ok {
		return nil
	}
	if t.entries[i].expires <= now {
		t.removeAt(i)
		return nil
	}
	return &t.entries[i]
}

// room reports whether n more entries fit, after looking for expired ones to remove.
func (t *table[K, V]) room(n int, now int64) bool {
	if len(t.entries)+n > t.limit {
		t.sweep(sweepFull, now)
	}
	return len(t.entries)+n <= t.limit
}

// add adds an entry for a key that has none. The caller has asked for room.
func (t *table[K, V]) add(k K, v V, expires, now int64) {
	t.sweep(sweepStep, now)
	t.index[k] = len(t.entries)
	t.entries = append(t.entries, entry[K, V]{k, v, expires})
}

func (t *table[K, V]) remove(k K) {
	if i, ok := t.index[k]; ok {
		t.removeAt(i)
	}
}

func (t *table[K, V]) removeAt(i int) {
	if t.removed != nil {
		t.removed(&t.entries[i].value)
	}
	delete(t.index, t.entries[i].key)
	last := len(t.entries) - 1
	if i != last {
		t.entries[i] = t.entries[last]
		t.index[t.entries[i].key] = i
	}
	t.entries[last] = entry[K, V]{}
	t.entries = t.entries[:last]
}

func (t *table[K, V]) sweep(n int, now int64) {
	for range min(n, len(t.entries)) {
		if t.hand >= len(t.entries) {
			t.hand = 0
		}
		if t.entries[t.hand].expires <= now {
			t.removeAt(t.hand) // another entry takes its place, and is next
		} else {
			t.hand++
		}
		if len(t.entries) == 0 {
			return
		}
	}
}
