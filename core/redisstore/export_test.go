package redisstore

// Scripts is how many scripts a store loads.
var Scripts = len(allScripts)

// MostTakers is how many calls for decisions a store has under way at most.
func (s *Store) MostTakers() int { return s.mostTakers() }

// Taking is how many calls for decisions are under way.
func (s *Store) Taking() (n int) {
	count := func(l *lane[*charge]) {
		l.mu.Lock()
		defer l.mu.Unlock()
		n += l.takers
	}
	s.charges.mu.Lock()
	defer s.charges.mu.Unlock()
	count(s.charges.only)
	for _, l := range s.charges.byMaster {
		count(l)
	}
	return n
}

// Stick has a store behave as if as many calls were stuck as may be, of those that finish nothing, until the
// function that it returns is called.
func (s *Store) Stick() (loosen func()) {
	n := s.maxOrphans[ordinary]
	s.orphans[ordinary].Add(n)
	return func() { s.orphans[ordinary].Add(-n) }
}
