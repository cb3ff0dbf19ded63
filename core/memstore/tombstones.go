package memstore

import (
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/expiry"
)

// tombstoneFor is how long a delayed request with a released ID is refused.
const tombstoneFor = int64(time.Minute / time.Microsecond)

// tombstones are the IDs that were released in the last minute. If there are more than the maximum
// of requests, the oldest are removed early.
type tombstones struct {
	byID        map[requestID]*tombstone
	first, last *tombstone // in order of age
}

type tombstone struct {
	id      requestID
	held    bool // the reply to the release
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
	added := &tombstone{id: id, held: held, expires: now + tombstoneFor}
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
	if t.byID[old.id] == old { // unless it was released again after it expired
		delete(t.byID, old.id)
	}
	count.Add(-1)
}
