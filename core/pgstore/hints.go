package pgstore

import (
	"encoding/binary"
	"hash/fnv"
	"io"
	"sync"
	"sync/atomic"

	"github.com/jackc/pgx/v5/pgtype"
)

// keyMarks marks keys, by their digests. It may forget a mark.
type keyMarks [1024]atomic.Uint64

func (m *keyMarks) of(key [16]byte) (slot *atomic.Uint64, mark uint64) {
	mark = binary.BigEndian.Uint64(key[:])
	return &m[mark%uint64(len(m))], mark
}

// markOf returns a key to mark a text by.
func markOf(text string) (key [16]byte) {
	h := fnv.New64a()
	_, _ = io.WriteString(h, text)
	h.Sum(key[:0])
	return key
}

func (m *keyMarks) has(key [16]byte) bool {
	slot, mark := m.of(key)
	return slot.Load() == mark
}

func (m *keyMarks) set(key [16]byte, marked bool) {
	switch slot, mark := m.of(key); {
	case !marked:
		slot.CompareAndSwap(mark, 0)
	case slot.Load() != mark: // to write it again would invalidate it in the caches of other processors
		slot.Store(mark)
	}
}

// newestOf returns a search for the newest version of the row of a table with this id. place is
// where the row was last seen, or NULL.
//
// While an older transaction is open, such as a backup's, the server keeps all versions that a row
// has had since. A search by id = $1 visits them from the oldest to the newest, so that a hot row
// would get slower with every change. So this search tries in turn:
//   - the place itself;
//   - the newest version that the place leads to: an older version is not visible there, but has
//     the place of the next one, unless the server has removed it;
//   - the index, backward. It has the versions in the order of their places, and new ones are often
//     last. A backward search needs a range of ids.
func newestOf(table, id, place string) string {
	in := "(SELECT n.ctid FROM " + table + " n WHERE n.id = " + id + " AND n.ctid = "
	// A statement that waits for the row evaluates all subqueries of its own level: hence the nesting.
	return "(SELECT coalesce(" + in + place + "::tid), " +
		in + "(SELECT lk.newest_place_1('" + table + "', " + place + "))), " +
		"(SELECT n.ctid FROM " + table + " n WHERE n.id >= " + id + " AND n.id <= " + id + " ORDER BY n.id DESC LIMIT 1)))"
}

// rowPlaces keeps the place of the newest version of a key's row at the time when this process
// wrote it. It may forget keys.
type rowPlaces [1024]rowPlace

type rowPlace struct {
	mu  sync.Mutex
	key [16]byte
	at  pgtype.TID
}

func (p *rowPlaces) of(key [16]byte) *rowPlace {
	return &p[binary.BigEndian.Uint16(key[:])%uint16(len(p))]
}

// get returns the place of a key's row, or NULL if it has none for the key.
func (p *rowPlaces) get(key [16]byte) pgtype.TID {
	r := p.of(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.key == key {
		return r.at
	}
	return pgtype.TID{}
}

// set records the place of a key's row.
func (p *rowPlaces) set(key [16]byte, at pgtype.TID) {
	r := p.of(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.key, r.at = key, at
}
