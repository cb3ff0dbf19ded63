package pgstore

import (
	"encoding/binary"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgtype"
)

// newestOf returns a search for the newest version of the row of a table whose id is $1, given the
// parameter that has the place in which it was last seen, or NULL.
//
// While a transaction is open that is older, such as a backup's, the server keeps all versions that
// a row has had since, and a search by id = $1 passes them from the oldest to the newest: a hot row
// would get slower with every change. A version that is not the newest one is not seen in its place.
// The search then goes through the index, in which the versions stand in the order of their places:
// backward, since new ones are often last, for which it has to be one of a range of ids.
func newestOf(table, place string) string {
	return "coalesce((SELECT n.ctid FROM " + table + " n WHERE n.ctid = " + place + "::tid AND n.id = $1), " +
		"(SELECT n.ctid FROM " + table + " n WHERE n.id >= $1 AND n.id <= $1 ORDER BY n.id DESC LIMIT 1))"
}

// rowPlaces remembers keys that have a row, and where its newest version is, if this process has
// written that. It may forget keys.
type rowPlaces [1024]rowPlace

type rowPlace struct {
	mu     sync.Mutex
	turn   chan struct{} // has an element while a call has the turn; nil until the first one
	key    [16]byte
	known  bool
	at     pgtype.TID // NULL if it is not known
	misses int        // calls in a row that did not find it there
}

func (p *rowPlaces) of(key [16]byte) *rowPlace {
	return &p[binary.BigEndian.Uint16(key[:])%uint16(len(p))]
}

// get returns the place of a key's row, and whether it has one.
func (p *rowPlaces) get(key [16]byte) (at pgtype.TID, known bool) {
	r := p.of(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.known && r.key == key {
		return r.at, true
	}
	return at, false
}

// set records the place of a key's row.
func (p *rowPlaces) set(key [16]byte, at pgtype.TID) {
	r := p.of(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	r.key, r.known, r.at, r.misses = key, true, at, 0
}

// move records the place of a key's row that a call has found elsewhere, or has looked for without
// its turn.
func (p *rowPlaces) move(key [16]byte, at pgtype.TID, missed bool) {
	r := p.of(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.key != key:
		return
	case missed:
		r.misses++
	case r.misses >= maxMisses && rand.N(16) == 0: // the other process may have ended
		r.misses = 0
	}
	r.at = at
}

// forget records that a key may have no row.
func (p *rowPlaces) forget(key [16]byte) {
	r := p.of(key)
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.key == key {
		r.known = false
	}
}

const (
	// maxTurn is how long a call waits for its turn: one whose connection hangs stops no others.
	maxTurn = 10 * time.Millisecond
	// maxMisses in a row show that another process writes the row as well. A single one may be due to
	// a call of this process that did not wait for its turn.
	maxMisses = 2
)

// turn waits until no other call has the turn of a key, and returns what ends it. It reports false if
// that takes too long, or turns are of no use, since another process writes the row as well.
func (p *rowPlaces) turn(key [16]byte) (end func(), ok bool) {
	r := p.of(key)
	r.mu.Lock()
	if r.turn == nil {
		r.turn = make(chan struct{}, 1)
	}
	turn, shared := r.turn, r.key == key && r.misses >= maxMisses
	r.mu.Unlock()
	if shared {
		return nil, false
	}
	end = func() { <-turn }
	select {
	case turn <- struct{}{}:
		return end, true
	default:
	}
	timeout := time.NewTimer(maxTurn)
	defer timeout.Stop()
	select {
	case turn <- struct{}{}:
		return end, true
	case <-timeout.C:
		return nil, false
	}
}
