package redisstore

import (
	"sync"
	"sync/atomic"
	"time"
)

// sends is an argument of a script: "1" if the call may have been carried out before, since it was
// sent before, and "0" otherwise. The client marshals an argument each time that it sends it.
type sends struct{ n atomic.Int32 }

var firstSend, repeatedSend = []byte("0"), []byte("1")

// MarshalBinary implements encoding.BinaryMarshaler.
func (s *sends) MarshalBinary() ([]byte, error) {
	if s.n.Add(1) > 1 {
		return repeatedSend, nil
	}
	return firstSend, nil
}

func (s *sends) String() string { return "" } // in traces

// lateRequests are the IDs of requests that may still be on their way to the server: the release of
// such an ID leaves a tombstone.
type lateRequests struct {
	mu    sync.Mutex
	until map[string]time.Time
	order []string  // by age
	all   time.Time // until then every request may be late: there were too many
}

const (
	// lateFor is how long a request may be on its way.
	lateFor = time.Minute
	maxLate = 1 << 16
)

func (l *lateRequests) add(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := time.Now()
	for len(l.order) > 0 && !l.until[l.order[0]].After(now) {
		delete(l.until, l.order[0])
		l.order = l.order[1:]
	}
	if len(l.order) >= maxLate {
		l.all = now.Add(lateFor)
		return
	}
	if l.until == nil {
		l.until = make(map[string]time.Time)
	}
	if _, ok := l.until[id]; !ok {
		l.order = append(l.order, id)
	}
	l.until[id] = now.Add(lateFor)
}

// has reports whether a request may be late.
func (l *lateRequests) has(id string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.until) == 0 && l.all.IsZero() {
		return false
	}
	now := time.Now()
	return l.until[id].After(now) || l.all.After(now)
}

// remove is called after the release of a request, which has left a tombstone.
func (l *lateRequests) remove(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	delete(l.until, id) // its entry in order is skipped when it is the oldest
}
