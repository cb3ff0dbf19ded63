package waiting

import (
	"time"

	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
)

// lateRequests are the IDs of requests that may still be on their way to the server: the release of
// such an ID leaves a tombstone.
type lateRequests struct {
	start time.Time
	ids   expiry.Table[string, struct{}]
	all   int64 // until then every request may be late: there were too many
}

const (
	// LateFor is how long a request may be on its way, and so how long a tombstone is kept.
	LateFor = time.Minute
	maxLate = 1 << 16
)

func newLateRequests() lateRequests {
	return lateRequests{start: time.Now(), ids: expiry.NewTable[string, struct{}](maxLate, nil)}
}

func (l *lateRequests) add(id string) {
	now := int64(time.Since(l.start))
	until := now + int64(LateFor)
	if e := l.ids.Get(id, now); e != nil {
		e.Expires = until
	} else if l.ids.Room(1, now) {
		l.ids.Add(id, struct{}{}, until, now)
	} else {
		l.all = until
	}
}

// has reports whether a request may be late.
func (l *lateRequests) has(id string) bool {
	if l.ids.Len() == 0 && l.all == 0 { // nearly always
		return false
	}
	now := int64(time.Since(l.start))
	return l.all > now || l.ids.Get(id, now) != nil
}

// remove is called after the release of a request, which has left a tombstone.
func (l *lateRequests) remove(id string) {
	l.ids.Remove(id)
}
