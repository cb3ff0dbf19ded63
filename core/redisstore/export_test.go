package redisstore

// Scripts is how many scripts a store loads.
var Scripts = len(allScripts)

// MostTakers is how many calls for decisions a store has under way at most.
func (s *Store) MostTakers() int { return s.mostTakers() }

// Stick has a store behave as if as many calls were stuck as may be, of those that finish nothing, until the
// function that it returns is called.
func (s *Store) Stick() (loosen func()) {
	n := s.maxOrphans[ordinary]
	s.orphans[ordinary].Add(n)
	return func() { s.orphans[ordinary].Add(-n) }
}
