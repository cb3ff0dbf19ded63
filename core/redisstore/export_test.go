package redisstore

// Scripts is how many scripts a store loads.
var Scripts = len(allScripts)

// MostTakers is how many calls for decisions a store has under way at most.
func (s *Store) MostTakers() int { return s.mostTakers() }

// Taking is how many calls for decisions are under way.
func (s *Store) Taking() (n int) {
	for _, node := range s.nodes.all() {
		if l := node.decisions; l != nil {
			l.mu.Lock()
			n += l.takers
			l.mu.Unlock()
		}
	}
	return n
}

// RememberedDenials is how many denials are in a store's memory.
func (s *Store) RememberedDenials() (n int) {
	for i := range s.denials.shards {
		shard := &s.denials.shards[i]
		shard.mu.Lock()
		n += shard.table.Len()
		shard.mu.Unlock()
	}
	return n
}
