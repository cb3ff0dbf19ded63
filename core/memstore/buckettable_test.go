package memstore

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"runtime"
	"strings"
	"testing"
	"time"
	"unsafe"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// check compares a table with its expected buckets, and checks the order that its searches rely on.
func (t *bucketTable) check(tt *testing.T, want map[bucketID]time.Duration, hash func(bucketID) uint32) {
	tt.Helper()
	n, last := 0, uint32(0)
	for i := range t.slots {
		s := &t.slots[i]
		if s.space == 0 {
			if *s != (bucketSlot{}) {
				tt.Fatalf("free slot %d keeps something", i)
			}
			continue
		}
		n++
		if s.hash < last {
			tt.Fatalf("slot %d is out of order", i)
		}
		last = s.hash
		for j := t.home(s.hash); j < i; j++ {
			if t.slots[j].space == 0 {
				tt.Fatalf("slot %d cannot be reached from its home", i)
			}
		}
	}
	if n != t.count {
		tt.Fatalf("%d slots are taken; the table has counted %d", n, t.count)
	}
	for id, full := range want {
		i, found := t.find(id, hash(id))
		if !found || t.slots[i].full != full {
			tt.Fatalf("%v: found is %v, want %v", id, found, full)
		}
	}
}

func TestTableAgainstAMap(t *testing.T) {
	t.Parallel()
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		spread := uint32(1) << (4 * r.IntN(9) % 32) // from all hashes alike to all different
		hash := func(id bucketID) uint32 {
			h := uint32(len(id.key))*40503 + uint32(id.space)*0x9e3779b9
			for _, c := range []byte(id.key) {
				h = h*16777619 ^ uint32(c)
			}
			return max(h/max(spread, 1)*max(spread, 1), 1)
		}
		var table bucketTable
		want := map[bucketID]time.Duration{}
		now := time.Duration(0)
		for step := range 3000 {
			now += time.Duration(r.Int64N(3))
			id := bucketID{strings.Repeat("k", r.IntN(2)*shortKey) + fmt.Sprint(r.IntN(400)), space(1 + r.IntN(3))}
			full := now + 1 + time.Duration(r.Int64N(2000))
			i, found := table.find(id, hash(id))
			switch {
			case r.IntN(4) == 0:
				if found {
					table.remove(i)
				}
				delete(want, id)
			case found:
				table.slots[i].full = full
				want[id] = full
			default:
				table.add(id, hash(id), full, now)
				want[id] = full
			}
			if step%50 == 49 {
				for id, full := range want {
					if full <= now {
						delete(want, id) // it may be gone
					}
				}
				table.check(t, want, hash)
			}
		}
	}
}

// A table removes full buckets while others are added, so that its size is that of the live ones.
func TestTableSweeps(t *testing.T) {
	var table bucketTable
	for now := range time.Duration(100_000) {
		id := bucketID{fmt.Sprint(int(now)), 1}
		hash := max(uint32(now)*2654435761, 1)
		table.add(id, hash, now+100, now)
	}
	if len(table.slots) > 1000 {
		t.Errorf("the table has %d slots for 100 live buckets", len(table.slots))
	}
}

func TestEvictionOfTheLeastIndebted(t *testing.T) {
	s := New(WithMaxBuckets(50))
	defer s.Close()
	charge := func(key string, cost time.Duration, buckets ...string) (store.TakeReply, error) {
		var charges []store.Charge
		for _, bucket := range buckets {
			charges = append(charges, store.Charge{Bucket: bucket, Cost: cost, Capacity: 1000 * time.Hour})
		}
		return s.TakeTokens(t.Context(), store.TokenRequest{Limiter: "api", Key: key, Charges: charges})
	}
	debt := func(key string) time.Duration {
		reply, err := charge(key, 0, "")
		if err != nil {
			t.Fatal(err)
		}
		return reply.Debts.At(0)
	}
	for i := range 50 {
		if _, err := charge(fmt.Sprint("key-", i), time.Duration(1+i)*time.Hour, ""); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 20 {
		if _, err := charge(fmt.Sprint("new-", i), 100*time.Hour, ""); err != nil {
			t.Fatalf("new key %d: %v", i, err)
		}
	}
	for i := range 50 {
		if got := debt(fmt.Sprint("key-", i)); (got == 0) != (i < 20) {
			t.Errorf("key %d owes %v after the 20 that owed least were to go", i, got)
		}
	}
	if n := s.buckets.count(); n != 50 {
		t.Errorf("%d buckets", n)
	}

	// A decision's own buckets are not what it forgets.
	names := make([]string, 50)
	for i := range names {
		names[i] = fmt.Sprint(i)
	}
	if reply, err := charge("all", time.Hour, names...); err != nil || !reply.Allowed {
		t.Fatalf("fifty buckets: %+v, %v", reply, err)
	}
	if reply, err := charge("all", 0, names...); err != nil || reply.Debts.At(0) == 0 || reply.Debts.At(49) == 0 {
		t.Errorf("afterwards: %+v, %v", reply, err)
	}
	if _, err := charge("too many", time.Hour, append(names, "one more")...); !errors.Is(err, store.ErrFull) {
		t.Errorf("more buckets than the store holds: %v", err)
	}
}

// An eviction reads a bounded number of slots.
func TestEvictionIsBounded(t *testing.T) {
	var table bucketTable
	crowds := func(s *bucketSlot) bool { return s.isOf("crowd") }
	if table.evict(crowds) {
		t.Fatal("a bucket of an empty table was evicted")
	}
	const crowd = 20_000
	for i := range crowd {
		table.add(bucketID{"crowd", space(1 + i)}, uint32(i+1)*214_748, time.Hour, 0)
	}
	found := 0
	for range 100 {
		table.add(bucketID{"other", 1}, 1<<31, time.Hour, 0)
		if table.evict(crowds) { // it looks at less than 1 in 200
			found++
			continue
		}
		i, _ := table.find(bucketID{"other", 1}, 1<<31)
		table.remove(i)
	}
	if found > 10 || table.count != crowd {
		t.Errorf("the only bucket of another key was found %d times of 100; %d buckets are left", found, table.count)
	}
}

// An eviction finds the only bucket of a table, wherever the holds stand.
func TestEvictionBesideHolds(t *testing.T) {
	none := func(*bucketSlot) bool { return false }
	for at := range 200 {
		var table bucketTable
		for i := range 200 {
			full := time.Hour
			if i != at {
				full |= holdMark
			}
			table.add(bucketID{"key", space(1 + i)}, uint32(i+1)*21_474_836, full, 0)
		}
		if !table.evict(none) || table.count != 199 || table.holds != 199 {
			t.Fatalf("bucket %d: %d slots are left, %d of holds", at, table.count, table.holds)
		}
	}
}

func TestKeysOfAnyLength(t *testing.T) {
	s := New()
	defer s.Close()
	take := func(key string) (store.TakeReply, error) {
		return s.TakeTokens(t.Context(), store.TokenRequest{Limiter: "api", Key: key, Charges: []store.Charge{
			{Cost: time.Hour, Capacity: time.Hour},
		}})
	}
	longest := strings.Repeat("k", maxKey)
	keys := []string{"", "k", longest[:shortKey], longest[:shortKey+1], longest[:256], longest[:maxKey-1], longest}
	for _, key := range keys {
		if reply, err := take(strings.Clone(key)); err != nil || !reply.Allowed {
			t.Errorf("%d bytes: %+v, %v", len(key), reply, err)
		}
	}
	runtime.GC() // what the table keeps must hold on to the keys
	for _, key := range keys {
		if reply, err := take(key); err != nil || reply.Allowed {
			t.Errorf("%d bytes, again: %+v, %v", len(key), reply, err)
		}
	}
	if _, err := take(longest + "k"); !errors.Is(err, store.ErrFull) {
		t.Errorf("longer: %v", err)
	}
	if err := s.ResetTokens(t.Context(), store.TokenRequest{Limiter: "api", Key: longest + "k", Charges: []store.Charge{{}}}); !errors.Is(err, store.ErrFull) {
		t.Errorf("longer, to be reset: %v", err)
	}
}

func TestSpaces(t *testing.T) {
	var s spaces
	seen := map[numbers]string{}
	for i := range maxSpaces - maxIntervals {
		name := fmt.Sprint(i)
		n, err := s.get(name, "x", time.Second)
		if err != nil || n.limit == 0 || n.own == 0 || seen[n] != "" {
			t.Fatalf("name %d has numbers %+v, %v", i, n, err)
		}
		seen[n] = name
	}
	for n, name := range seen {
		if again, err := s.get(name, "x", time.Second); again != n || err != nil {
			t.Fatalf("%s has numbers %+v, and then %+v, %v", name, n, again, err)
		}
	}
	if _, err := s.get("one", "more", time.Second); !errors.Is(err, store.ErrFull) {
		t.Errorf("one more: %v", err)
	}
	if n, err := s.get("0", "x", time.Hour); err != nil || n.own != n.limit {
		t.Errorf("one more interval: %+v, %v", n, err)
	}
}

// A limit may be charged at more intervals than there are numbers.
func TestManyIntervals(t *testing.T) {
	s := New()
	defer s.Close()
	take := func(key string, interval time.Duration, tokens int64) time.Duration {
		t.Helper()
		reply, err := s.TakeTokens(t.Context(), store.TokenRequest{Limiter: "api", Key: key, Charges: []store.Charge{
			{Cost: time.Duration(tokens) * interval, Capacity: 100 * interval, Interval: interval},
		}})
		if err != nil || !reply.Allowed {
			t.Fatalf("%+v, %v", reply, err)
		}
		return reply.Debts.At(0)
	}
	const plans = maxSpaces + 10
	at := func(i int) time.Duration { return time.Hour + time.Duration(i) }
	for i := range plans {
		take("k", at(i), 0) // a number, as long as there are any
	}
	for _, key := range []string{"", "k", "key", "a key that is not short"} {
		used := int64(0)
		for _, i := range []int{plans, plans, 5, 5, plans, plans + 1, plans, 6, plans + 2} {
			used++
			got := take(key, at(i), 1)
			if want := time.Duration(used) * at(i); got > want || got < want-time.Minute {
				t.Fatalf("%d tokens of %v are a debt of %v", used, at(i), got)
			}
			runtime.GC() // what the table keeps must hold on to the interval
		}
		if got := take(key, at(7), 0); got < 8*time.Hour {
			t.Errorf("a look at nine tokens: %v", got)
		}
	}
	if n := s.buckets.count(); n != 4 {
		t.Errorf("%d buckets of four keys", n)
	}
}

// Different shards share no cache line.
func TestShardsAndSlotsInCacheLines(t *testing.T) {
	if math.MaxInt == math.MaxInt32 {
		t.Skip("sizes are of 64 bits")
	}
	var shard bucketShard
	if size := unsafe.Sizeof(shard); size != 128 {
		t.Errorf("a shard has %d bytes", size)
	}
	if hot := unsafe.Offsetof(shard.table) + unsafe.Offsetof(shard.table.count); hot > 64 {
		t.Errorf("what a decision needs of a shard has %d bytes", hot)
	}
	if size := unsafe.Sizeof(bucketSlot{}); size != 40 {
		t.Errorf("a slot has %d bytes", size)
	}
}
