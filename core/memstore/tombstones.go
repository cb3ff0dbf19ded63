package memstore

import (
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/expiry"
)

// withdrawnFor is for how long a delayed request of a released ID is refused.
const withdrawnFor = int64(time.Minute / time.Microsecond)

// tombstones remember which IDs were released, for a minute. When the store has as many as it may
// have requests, the oldest go early.
type tombstones struct {
	byID        map[requestID]*tombstone
	first, last *tombstone // in order of age
}

type tombstone struct {
	id      requestID
	held    bool // what the release answered
	expires int64
	next    *tombstone
}

func (t *tombstones) get(id requestID, now int64) *tombstone {
	if found := t.byID[id]; found != nil && now < found.expires {
		return found
	}
	return nil
}

func (t *tombstones) add(id requestID, held bool, now int64, count *atomic.Int64, limit int64) {
	for range expiry.SweepStep {
		if t.first != nil && t.first.expires <= now {
			t.removeFirst(count)
		}
	}
	if count.Add(1) > limit && t.first != nil {
		t.removeFirst(count)
	}
	added := &tombstone{id: id, held: held, expires: now + withdrawnFor}
	if t.last == nil {
		t.first = added
	} else {
		t.last.next = added
	}
	t.last = added
	t.byID[id] = added
}

func (t *tombstones) removeFirst(count *atomic.Int64) {
	old := t.first
	t.first = old.next
	if t.first == nil {
		t.last = nil
	}
	if t.byID[old.id] == old { // not one that was released again after it expired
		delete(t.byID, old.id)
	}
	count.Add(-1)
}
