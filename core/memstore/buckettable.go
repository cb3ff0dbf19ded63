package memstore

import (
	"math"
	"math/rand/v2"
	"strings"
	"time"
	"unsafe"
)

// bucketTable has the times at which token buckets are full, in little memory: about 56 bytes each,
// and the text of a long key. A lookup of a short key reads nothing else, since each read of
// distant memory takes about as long as the rest of it. Holds of buckets have slots of their own.
//
// It is a hash table with open addressing (linear probing). Its slots are in the order of their
// hashes, so that a search ends at the first larger one. A hash's home is hash/2³² of the way
// through the table, which keeps that order. A run of taken slots may continue behind the last
// home. No hash is 0. It is not safe for concurrent use.
type bucketTable struct {
	slots []bucketSlot
	homes int
	held  time.Duration // no hold lasts longer
	count int           // holds included
	hand  int           // where the next sweep begins
	holds int
}

// bucketID identifies a bucket.
type bucketID struct {
	key   string
	space space // 0 is none
}

// bucketSlot keeps a bucket.
type bucketSlot struct {
	text  *byte         // of the key; nil if short has it
	full  time.Duration // when the bucket is full, on the store's clock; or holdMark and when a hold ends
	hash  uint32        // 0 only of an empty slot
	size  uint16        // of the key
	space space         // 0 of an empty slot
	short [shortKey]byte
}

// shortKey is the maximum size, in bytes, of a key in the slot itself, such as an IPv4 address.
const shortKey = 16

// holdMark tells a hold from a bucket. It sorts holds behind all buckets, and leaves 146 years.
const holdMark time.Duration = 1 << 62

func (s *bucketSlot) isHold() bool { return s.full >= holdMark }

// over returns when the bucket is full, or the hold has ended.
func (s *bucketSlot) over() time.Duration { return s.full &^ holdMark }

// maxKey is the maximum size of a key, in bytes. That of a limiter is smaller.
const maxKey = math.MaxUint16

// newSlot returns the slot of a bucket, whose key has at most maxKey bytes. It refers to the text
// of a key that is not short.
func newSlot(id bucketID, hash uint32, full time.Duration) bucketSlot {
	s := bucketSlot{size: uint16(len(id.key)), space: id.space, hash: hash, full: full} //nolint:gosec // maxKey fits
	if len(id.key) <= shortKey {
		copy(s.short[:], id.key)
	} else {
		s.text = unsafe.StringData(id.key) //nolint:gosec // see isOf
	}
	return s
}

// lasting returns a key for a new slot: a long substring of a request would keep all of its text in
// memory.
func lasting(key string) string {
	if len(key) <= shortKey {
		return key
	}
	return strings.Clone(key)
}

// isOf reports whether the slot is of a bucket, or a hold, of the key. A string in place of the
// text and its size would take eight bytes more.
func (s *bucketSlot) isOf(key string) bool {
	if s.text == nil {
		return string(s.short[:s.size]) == key
	}
	return unsafe.String(s.text, s.size) == key //nolint:gosec // of newSlot, or longer
}

const (
	firstHomes = 8
	// slackHomes is room for a run behind the last home. A longer run makes the table grow.
	slackHomes = 24
	// sweepSlots is how many slots are examined for each bucket added. They hold more than two
	// buckets, so that the expired never outnumber the live for long.
	sweepSlots = 4
	// sweepFull is how many slots are examined before a bucket is added to a full table.
	sweepFull = 96
	// evictParts is how many parts of the table, of evictSlots each, are examined for a bucket to
	// evict: some sixty buckets.
	evictParts, evictSlots = 6, 16
)

func (t *bucketTable) home(hash uint32) int { return int(uint64(hash) * uint64(t.homes) >> 32) }

// find returns where a bucket is, and true; or where it would be.
func (t *bucketTable) find(id bucketID, hash uint32) (int, bool) {
	i := t.home(hash)
	if len(t.slots) >= slackHomes {
		// The slots to pass stand together, before the first that is larger or empty. Counting them
		// does not wait for one comparison after the other, each with a guess of its own at distant
		// memory.
		near := t.slots[i : i+4]
		i += smaller(near[0].hash, hash) + smaller(near[1].hash, hash) + smaller(near[2].hash, hash) + smaller(near[3].hash, hash)
	}
	for ; i < len(t.slots); i++ {
		s := &t.slots[i]
		if s.hash == hash && s.space == id.space && s.isOf(id.key) {
			return i, true
		}
		if s.hash == 0 || s.hash > hash {
			break
		}
	}
	return i, false
}

// smaller returns 1 if a slot with hash a stands before one with hash b, or 0, without a branch. An
// empty slot does not.
func smaller(a, b uint32) int { return int((uint64(a-1) - uint64(b-1)) >> 63) }

// hasHash reports whether there is a slot i, and it is of a bucket with this hash.
func (t *bucketTable) hasHash(i int, hash uint32) bool {
	return uint(i) < uint(len(t.slots)) && t.slots[i].hash == hash
}

// hasNeighbour reports whether a bucket with the same hash stands beside slot i, which find has
// returned.
func (t *bucketTable) hasNeighbour(i int, hash uint32) bool {
	return t.hasHash(i-1, hash) || t.hasHash(i+1, hash)
}

// add adds a bucket, or a hold, that is not in the table, and returns its slot.
func (t *bucketTable) add(id bucketID, hash uint32, full, now time.Duration) int {
	t.sweep(sweepSlots, now)
	if t.count*5 >= t.homes*4 { // a fuller one has long runs
		t.grow()
	}
	i, _ := t.find(id, hash)
	end := i
	for end < len(t.slots) && t.slots[end].space != 0 {
		end++
	}
	for end == len(t.slots) {
		t.grow()
		i, _ = t.find(id, hash)
		for end = i; end < len(t.slots) && t.slots[end].space != 0; {
			end++
		}
	}
	copy(t.slots[i+1:end+1], t.slots[i:end])
	t.slots[i] = newSlot(id, hash, full)
	t.count++
	if t.slots[i].isHold() {
		t.holds++
		t.held = max(t.held, full&^holdMark)
	}
	return i
}

// grow makes the table larger by a quarter: it is never less than half full.
func (t *bucketTable) grow() {
	old := t.slots
	t.homes = max(t.homes+t.homes/4, firstHomes)
	for {
		t.slots = make([]bucketSlot, t.homes+slackHomes)
		if t.refill(old) {
			return
		}
		t.homes += t.homes / 4
	}
}

// refill puts slots into an empty table, in their order. It returns false if a run is too long for
// it.
func (t *bucketTable) refill(old []bucketSlot) bool {
	next := 0
	for i := range old {
		if old[i].space == 0 {
			continue
		}
		next = max(next, t.home(old[i].hash))
		if next == len(t.slots) {
			return false
		}
		t.slots[next] = old[i]
		next++
	}
	t.hand = 0
	return true
}

// remove removes the bucket of slot i. Later slots of the run move up, up to the first at its home.
func (t *bucketTable) remove(i int) {
	if t.slots[i].isHold() {
		if t.holds--; t.holds == 0 {
			t.held = 0
		}
	}
	end := i + 1
	for end < len(t.slots) && t.slots[end].space != 0 && t.home(t.slots[end].hash) < end {
		end++
	}
	copy(t.slots[i:end-1], t.slots[i+1:end])
	t.slots[end-1] = bucketSlot{}
	t.count--
}

// sweep examines n slots, and removes buckets that are full, and holds that have ended.
func (t *bucketTable) sweep(n int, now time.Duration) {
	for range min(n, len(t.slots)) {
		if t.hand >= len(t.slots) {
			t.hand = 0
		}
		if s := &t.slots[t.hand]; s.space != 0 && s.over() <= now {
			t.remove(t.hand) // another may take its place, and is next
		} else {
			t.hand++
		}
	}
}

// evict removes one bucket whose key is not to be spared, and no hold: of the buckets in a few
// random parts of the table, the one that will be full first. It returns false if it finds none
// among some hundred buckets.
//
// The parts are random, and several: a part out of which a bucket has just been evicted has none
// left that owes little. Of equal buckets each is as likely to be evicted, so that no part is
// emptied.
func (t *bucketTable) evict(spare func(s *bucketSlot) bool) bool {
	if t.count == 0 {
		return false
	}
	parts, each := evictParts, evictSlots
	if len(t.slots) <= parts*each {
		parts, each = 1, len(t.slots)
	}
	least, alike := -1, 0
	for range parts {
		at := rand.IntN(len(t.slots)) //nolint:gosec // spreads evictions; no secret
		for range each {
			if at >= len(t.slots) {
				at = 0
			}
			switch s := &t.slots[at]; {
			case s.space == 0 || s.isHold() || least >= 0 && s.full > t.slots[least].full:
			case spare(s): // last, since the text may be far away
			case least < 0 || s.full < t.slots[least].full:
				least, alike = at, 1
			default:
				if alike++; rand.IntN(alike) == 0 { //nolint:gosec // as above
					least = at
				}
			}
			at++
		}
	}
	// These parts may have only holds, which are up to half of the table.
	for i, spared := 0, 0; least < 0 && spared < parts*each && i < len(t.slots); i++ {
		if s := &t.slots[i]; s.space == 0 || s.isHold() {
			continue
		} else if spare(s) {
			spared++
		} else {
			least = i
		}
	}
	if least < 0 {
		return false
	}
	t.remove(least)
	return true
}
