package memstore

import (
	"encoding/binary"
	"time"
	"unsafe"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// The bucket of a calendar has two numbers behind its key in memory, where wide ones have their
// interval: the tokens that were used, as a number that is no interval, and the end of their period
// by the wall clock, which decides. The slot has only the time until which the bucket is kept.

// periodSize is the size of both numbers, in bytes.
const periodSize = intervalSize + 8

// clockSlack is how much longer a bucket is kept than its period lasts, since the wall clock may be
// set back. The used part of its tokens adds as much again, so that the buckets that have used
// least are evicted first.
const clockSlack = time.Minute

// keptFor returns for how long a bucket is kept.
func (f *found) keptFor(c *store.Charge) time.Duration {
	used := float64(f.debt) / float64(c.Capacity+c.Overdraft)
	return min(f.left, holdMark/2) + clockSlack + time.Duration(used*float64(clockSlack))
}

// instant is the time of a decision.
type instant struct {
	now  time.Duration // since the store's start
	wall time.Time     // zero if no charge is of a calendar
}

// at returns the instant of a decision about charges. Most need no time of day.
func (b *buckets) at(now time.Duration, all requests) instant {
	for k := range all.len() {
		charges := all.at(k).Charges
		for i := range charges {
			if charges[i].Period != nil {
				return instant{now, b.wallClock()}
			}
		}
	}
	return instant{now: now}
}

// report sets the debt of charge i of n in a reply.
func (f *found) report(debts *store.Debts, c *store.Charge, i, n int) {
	debts.Set(i, f.debt)
	if c.Period != nil {
		debts.SetEnd(i, n, f.left)
	}
}

// withPeriod returns a copy of a key with room for the numbers of setUsed.
func withPeriod(key string) *byte {
	both := make([]byte, len(key)+periodSize)
	copy(both, key)
	return unsafe.SliceData(both)
}

func (s *bucketSlot) setUsed(tokens time.Duration, end time.Time) {
	both := unsafe.Slice(s.text, int(s.size)+periodSize) //nolint:gosec // of withPeriod
	binary.LittleEndian.PutUint64(both[s.size:], uint64(-1-tokens))
	binary.LittleEndian.PutUint64(both[int(s.size)+intervalSize:], uint64(end.UnixNano()))
}

// used returns the used tokens of a bucket, and for how long their period lasts: zeros for a bucket
// of no calendar.
func (b *buckets) used(s *bucketSlot, at instant) (tokens, left time.Duration) {
	tokens = -1 - b.interval(s)
	if tokens < 0 {
		return 0, 0
	}
	both := unsafe.Slice(s.text, int(s.size)+periodSize) //nolint:gosec // of withPeriod
	end := binary.LittleEndian.Uint64(both[int(s.size)+intervalSize:])
	return tokens, time.Duration(int64(end) - at.wall.UnixNano())
}
