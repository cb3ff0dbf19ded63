package redisstore

// Scripts returns the number of scripts that a store loads.
func Scripts() int { return len(allScripts) }

// MaxInFlight returns the maximum of calls for decisions in flight.
func (s *Store) MaxInFlight() int {
	_, most := decisionsOf(s.redis.Whole()).InFlight()
	return most
}

// InFlight returns the number of calls for decisions in flight.
func (s *Store) InFlight() (calls int) {
	for _, n := range s.redis.Nodes() {
		now, _ := decisionsOf(n).InFlight()
		calls += now
	}
	return calls
}

// CachedDenials returns the number of denials in a store's cache.
func (s *Store) CachedDenials() int { return s.denials.Len() }

// Polls reports whether waiters do not rely on pushes.
func (s *Store) Polls() bool { return s.pushMode() != "P" }

// Partitions is the number of hash tags of token buckets.
const Partitions = partitions
