package pgstore

import (
	"encoding/binary"
	"hash/fnv"
	"io"
	"sync/atomic"
)

// newestOf returns a search for the newest version of the row of a table whose id is $1.
//
// While a transaction is open that is older, such as a backup's, the server keeps all versions that
// a row has had since, and a search by id = $1 passes them from the oldest to the newest: a hot row
// would get slower with every change. The versions stand in the index in the order of their places,
// in which new ones are nearly always last. A scan of a range, other than that of a single id, can
// go backward.
func newestOf(table string) string {
	return "(SELECT n.ctid FROM " + table + " n WHERE n.id >= $1 AND n.id <= $1 ORDER BY n.id DESC LIMIT 1)"
}

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
	case slot.Load() != mark: // else, processors would pass the line to and fro
		slot.Store(mark)
	}
}
