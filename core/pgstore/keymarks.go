package pgstore

import (
	"encoding/binary"
	"hash/fnv"
	"io"
	"sync/atomic"
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
