package memstore

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// space is a number that replaces names in the table of buckets: those of a limiter and its limit,
// or these and an interval.
type space uint16

type limitName struct{ limiter, bucket string }

// spaceInfo is the meaning of a space. The space of a limit itself is its own limit.
type spaceInfo struct {
	limit    space
	interval time.Duration
}

// numbers are the spaces of a limit that is charged at an interval.
type numbers struct {
	own   space // of the limit and the interval; the limit's if they have none
	limit space
}

// spaces numbers limits, and their intervals. Numbers are never removed: a program has a fixed
// number of limits. There may be more intervals, for instance if every customer has a rate of its
// own. Intervals without a number are kept with the keys of buckets ([withInterval]).
type spaces struct {
	first atomic.Pointer[[]quickSpace] // some intervals, for a lookup without a lock

	mu        sync.RWMutex
	limits    map[limitName]space
	intervals map[spaceInfo]space
	known     []spaceInfo // of space 1, 2 ...
}

type quickSpace struct {
	interval time.Duration // in front, since the plans of a limiter differ in it
	limit    limitName
	numbers  numbers
}

const (
	quickSpaces = 8
	maxSpaces   = math.MaxUint16
	// maxIntervals is the maximum of spaces with an interval.
	maxIntervals = maxSpaces / 4
)

// get returns the numbers of a limit that is charged at an interval.
func (s *spaces) get(limiter, bucket string, interval time.Duration) (numbers, error) {
	if p := s.first.Load(); p != nil {
		first := *p
		for i := range first {
			q := &first[i]
			if q.interval == interval && len(q.limit.bucket) == len(bucket) && q.limit.limiter == limiter &&
				(bucket == "" || q.limit.bucket == bucket) { // most limits have no name to compare
				return q.numbers, nil
			}
		}
	}
	return s.getSlowly(limitName{limiter, bucket}, interval)
}

func (s *spaces) getSlowly(limit limitName, interval time.Duration) (numbers, error) {
	s.mu.RLock()
	n, ok := s.lookup(limit, interval)
	s.mu.RUnlock()
	if ok {
		return n, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n, ok = s.lookup(limit, interval); ok {
		return n, nil
	}
	limit = limitName{strings.Clone(limit.limiter), strings.Clone(limit.bucket)} // they may be substrings of a longer text
	if n.limit == 0 {
		if len(s.known) >= maxSpaces {
			return n, store.ErrFull
		}
		n.limit = space(len(s.known) + 1)
		s.known = append(s.known, spaceInfo{limit: n.limit})
		if s.limits == nil {
			s.limits, s.intervals = make(map[limitName]space), make(map[spaceInfo]space)
		}
		s.limits[limit] = n.limit
	}
	if n.own = n.limit; s.moreIntervals() {
		info := spaceInfo{n.limit, interval}
		n.own = space(len(s.known) + 1)
		s.known = append(s.known, info)
		s.intervals[info] = n.own
		s.addQuick(quickSpace{interval, limit, n})
	}
	return n, nil
}

// lookup returns the numbers of a limit, which are final if it returns true. The caller holds mu.
func (s *spaces) lookup(limit limitName, interval time.Duration) (numbers, bool) {
	n := numbers{limit: s.limits[limit]}
	if n.limit == 0 {
		return n, false
	}
	if n.own = s.intervals[spaceInfo{n.limit, interval}]; n.own == 0 && !s.moreIntervals() {
		n.own = n.limit
	}
	return n, n.own != 0
}

func (s *spaces) moreIntervals() bool {
	return len(s.intervals) < maxIntervals && len(s.known) < maxSpaces
}

func (s *spaces) addQuick(q quickSpace) {
	var first []quickSpace
	if old := s.first.Load(); old != nil {
		first = append(first, *old...)
	}
	if len(first) < quickSpaces {
		first = append(first, q)
		s.first.Store(&first)
	}
}

// ofLimit returns the space of a limit, or 0 if it has none.
func (s *spaces) ofLimit(limiter, bucket string) space {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.limits[limitName{limiter, bucket}]
}

// info returns the meaning of a space.
func (s *spaces) info(n space) spaceInfo {
	s.mu.RLock()
	defer s.mu.RUnlock()
	return s.known[n-1]
}
