package memstore

import "math"

// RecordBytes returns the store's count of the bytes of its records, and their actual sum. It panics
// if the counts of a scope are wrong.
func (s *Store) RecordBytes() (used, counted int) {
	for i := range s.records {
		r := &s.records[i]
		r.mu.Lock()
		records, data := make(map[*recordScope]int), make(map[*recordScope]int)
		for rec := range r.records.Values {
			counted += recordBytes + len(rec.data)
			records[rec.scope]++
			data[rec.scope] += len(rec.data)
		}
		if len(records) != len(r.scopes) || len(r.fullest) != len(r.scopes) {
			panic("the scopes of a shard are not those of its records")
		}
		for name, sc := range r.scopes {
			if sc.name != name || sc.all.Len() != records[sc] || sc.bytes != data[sc] || r.fullest[sc.index] != sc {
				panic("a scope is not counted as it is")
			}
		}
		r.mu.Unlock()
	}
	return int(s.recordRoom.used.Load()), counted
}

// SweepRecords removes all records that have expired.
func (s *Store) SweepRecords() {
	for i := range s.records {
		r := &s.records[i]
		r.mu.Lock()
		r.records.Sweep(math.MaxInt, s.now())
		r.mu.Unlock()
	}
}
