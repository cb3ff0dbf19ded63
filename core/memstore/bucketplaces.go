package memstore

import (
	"encoding/binary"
	"fmt"
	"time"
	"unsafe"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// place is where a bucket belongs in the table. The buckets of all intervals of a limit have the
// same hash, and so have its holds: they stand side by side.
type place struct {
	id    bucketID
	hash  uint32
	limit space
}

// wide reports whether the key in memory is followed by the interval of the bucket, or by the used
// tokens of a calendar's.
func (p *place) wide() bool { return p.id.space == p.limit }

// place returns the place of a charge's bucket. hash is the hash of the key.
func (b *buckets) place(limiter, key string, c *store.Charge, hash uint32) (place, error) {
	if len(key) > maxKey {
		return place{}, errKey(key)
	}
	n, err := b.spaces.get(limiter, c.Bucket, c.Interval)
	if c.Period != nil {
		n.own = n.limit
	}
	return place{bucketID{key, n.own}, n.hash(hash), n.limit}, err
}

func errKey(key string) error {
	return fmt.Errorf("%w: no room for a key of %d bytes", store.ErrFull, len(key))
}

// hash returns the hash of a bucket, given that of its key.
func (n numbers) hash(key uint32) uint32 { return max(key^uint32(n.limit-1)*0x9e3779b9, 1) }

// search returns the slot of a bucket, charged at any interval, or of its hold.
func (b *buckets) search(t *bucketTable, p *place, hold bool) (int, bool) {
	i, _ := t.find(bucketID{}, p.hash) // behind all with this hash
	for i--; t.hasHash(i, p.hash); i-- {
		if s := &t.slots[i]; s.isHold() == hold && b.spaces.info(s.space).limit == p.limit && s.isOf(p.id.key) {
			return i, true
		}
	}
	return 0, false
}

// found is a charge's bucket.
type found struct {
	debt time.Duration
	left time.Duration // of the period; zero without one
	slot int
	ok   bool // it has a slot
}

// look returns a charge's bucket.
func (b *buckets) look(t *bucketTable, p *place, c *store.Charge, at instant) (f found) {
	if !p.wide() {
		i, ok := t.find(p.id, p.hash)
		if ok {
			return found{debt: c.Debt(t.slots[i].full - at.now), slot: i, ok: true}
		}
		if !t.hasHash(i-1, p.hash) {
			return found{}
		}
	}
	f.slot, f.ok = b.search(t, p, false)
	if c.Period != nil {
		var used, left time.Duration
		if f.ok {
			used, left = b.used(&t.slots[f.slot], at)
		}
		f.debt, f.left = c.Used(used, left, at.wall)
		return f
	}
	if !f.ok {
		return f
	}
	left := t.slots[f.slot].full - at.now
	if interval := b.interval(&t.slots[f.slot]); interval != c.Interval {
		f.debt = c.Convert(max(left, 0), interval)
	} else {
		f.debt = c.Debt(left)
	}
	return f
}

// held returns for how long a bucket is held.
func (b *buckets) held(t *bucketTable, p *place, now time.Duration) time.Duration {
	if t.held <= now {
		return 0
	}
	i, found := b.search(t, p, true)
	if !found {
		return 0
	}
	return max(t.slots[i].over()-now, 0)
}

// keep gives a bucket that look has found a debt. text is a copy of the key, which buckets share;
// it is empty before the first one needs it.
func (b *buckets) keep(t *bucketTable, p *place, c *store.Charge, f found, at instant, text *string) {
	full := at.now + f.debt
	if c.Period != nil {
		full = at.now + f.keptFor(c)
	}
	if !f.ok {
		id := p.id
		if !p.wide() {
			if *text == "" {
				*text = lasting(id.key)
			}
			id.key = *text
		}
		f.slot = t.add(id, p.hash, full, at.now)
	}
	s := &t.slots[f.slot]
	switch {
	case c.Period != nil:
		if !f.ok || b.interval(s) >= 0 {
			s.text = withPeriod(p.id.key)
		}
		s.setUsed(f.debt, at.wall.Add(f.left))
	case p.wide() && (!f.ok || b.interval(s) != c.Interval):
		s.text = withInterval(p.id.key, c.Interval)
	}
	s.space, s.full = p.id.space, full
}

const intervalSize = 8

// withInterval returns a copy of a key, behind which in memory is the interval of its bucket.
func withInterval(key string, interval time.Duration) *byte {
	both := append(make([]byte, 0, len(key)+intervalSize), key...)
	return unsafe.SliceData(binary.LittleEndian.AppendUint64(both, uint64(interval)))
}

// interval returns the interval of a bucket's last charge, or a negative number for a calendar's.
func (b *buckets) interval(s *bucketSlot) time.Duration {
	info := b.spaces.info(s.space)
	if info.limit != s.space {
		return info.interval
	}
	return time.Duration(binary.LittleEndian.Uint64(s.behindKey()))
}

// behindKey returns the number that withInterval or setUsed has put there. No other slot shares it.
func (s *bucketSlot) behindKey() []byte {
	return unsafe.Slice(s.text, int(s.size)+intervalSize)[s.size:] //nolint:gosec // of withInterval
}
