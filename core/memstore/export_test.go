package memstore

import (
	"maps"
	"math"
)

// RecordBytes returns the store's count of the bytes of its records, and their actual sum. It panics
// if the counts of a scope are wrong.
func (s *Store) RecordBytes() (used, counted int) {
	for i := range s.records {
		r := &s.records[i]
		r.mu.Lock()
		records := 0
		for name, sc := range r.scopes {
			results, data := 0, 0
			for e := sc.all.Front(); e != nil; e = e.Next() {
				rec := e.Value.(*record)
				if rec.scope != sc {
					panic("a record is in another scope")
				}
				if len(rec.data) > 0 {
					results++
				}
				data += len(rec.data)
			}
			if sc.name != name || sc.all.Len() == 0 || sc.results.Len() != results || sc.bytes != data || r.fullest[sc.index] != sc {
				panic("a scope is not counted as it is")
			}
			records += sc.all.Len()
			counted += sc.all.Len()*recordBytes + data
		}
		if records != r.records.Len() || len(r.fullest) != len(r.scopes) {
			panic("the scopes of a shard are not those of its records")
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

// DocumentBytes returns the store's count of the bytes of its documents, and their actual sum. It
// panics if the count of a space is wrong.
func (s *Store) DocumentBytes() (used, counted int) {
	d := &s.documents
	d.mu.Lock()
	defer d.mu.Unlock()
	spaces := make(map[string]int)
	for at := range d.table.Keys() {
		spaces[at.space]++
		counted += d.table.Get(at, math.MinInt64).Value.size()
	}
	if !maps.Equal(spaces, d.spaces) {
		panic("the documents of a space are not counted as they are")
	}
	return d.bytes, counted
}

// SweepDocuments removes all documents that have expired.
func (s *Store) SweepDocuments() {
	s.documents.mu.Lock()
	defer s.documents.mu.Unlock()
	s.documents.table.Sweep(math.MaxInt, s.now())
}
