package redisstore

// Scripts is how many scripts a store loads.
var Scripts = len(allScripts)

// MostTakers is how many calls for decisions a store has under way at most.
func (s *Store) MostTakers() int { return s.mostTakers() }
