package memstore

import (
	"math"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// space is the number of a limiter's limit, which replaces both names in the table of buckets.
type space uint16

type spaceName struct{ limiter, bucket string }

// spaces numbers the limits of limiters. They are never removed: a program has a fixed number of
// them.
type spaces struct {
	first atomic.Pointer[[]spaceName] // the spaces 1 to quickSpaces, for a lookup without a lock

	mu  sync.RWMutex
	all map[spaceName]space
}

const (
	quickSpaces = 8
	maxSpaces   = math.MaxUint16
)

// get returns the number of a limit.
func (s *spaces) get(limiter, bucket string) (space, error) {
	if first := s.first.Load(); first != nil {
		for i := range *first {
			if n := &(*first)[i]; n.limiter == limiter && n.bucket == bucket {
				return space(i + 1), nil
			}
		}
	}
	return s.getSlowly(spaceName{limiter, bucket})
}

func (s *spaces) getSlowly(name spaceName) (space, error) {
	s.mu.RLock()
	n := s.all[name]
	s.mu.RUnlock()
	if n != 0 {
		return n, nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if n = s.all[name]; n != 0 {
		return n, nil
	}
	if len(s.all) >= maxSpaces {
		return 0, store.ErrFull
	}
	if s.all == nil {
		s.all = make(map[spaceName]space)
	}
	name = spaceName{strings.Clone(name.limiter), strings.Clone(name.bucket)} // they may be substrings of a longer text
	n = space(len(s.all) + 1)
	s.all[name] = n
	if n <= quickSpaces {
		var first []spaceName
		if old := s.first.Load(); old != nil {
			first = append(first, *old...)
		}
		first = append(first, name)
		s.first.Store(&first)
	}
	return n, nil
}
