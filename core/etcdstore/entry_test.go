package etcdstore

import (
	"strings"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/internal/position"
	"github.com/lockkeeper/lockkeeper/core/store"
)

func TestEntries(t *testing.T) {
	t.Parallel()
	e := entry{
		Entry: position.Entry{ID: "id", Created: 7, Order: "\x00\xff", Place: 5, Weight: 1 << 30, Capacity: 1 << 30, Reserve: 3, Held: true},
		at:    "p/l/n/k/id", mod: 9, on: 11, base: 1 << 50, fence: 1<<50 + 3, fences: 64, ttl: 40 * time.Millisecond, since: 1 << 40,
		process: "p", label: "me\x00\xff", key: strings.Repeat("k", 1024),
	}
	kv := &mvccpb.KeyValue{Key: []byte(e.at), Value: []byte(e.value()), CreateRevision: 7, ModRevision: 9, Lease: 11}
	if got, err := read(kv); err != nil || got != e {
		t.Errorf("read %+v, %v, want %+v", got, err, e)
	}
	for n := range len(kv.Value) { // a part of a value, and one of another release, take all there is
		part := &mvccpb.KeyValue{Key: kv.Key, Value: kv.Value[:n], CreateRevision: 7}
		if _, err := read(part); err == nil {
			t.Errorf("%d bytes are an entry", n)
		}
		if got := readAny(part); got.ID != "id" || got.Weight != store.MaxCapacity || got.Created != 7 {
			t.Errorf("%d bytes: %+v", n, got)
		}
	}
}

// What another release has written excludes others.
func TestAnEntryOfAnotherRelease(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	for _, weight := range []int{0, 1} {
		req := newRequest("k", weight)
		at := s.path(req.Name, req.Key) + "other"
		if _, err := s.client.Put(t.Context(), at, "\x02what"); err != nil {
			t.Fatal(err)
		}
		try := req
		try.Queue = false
		acquire(t, s, try, store.Taken)
		req = newRequest("k", weight)
		req.Place = acquire(t, s, req, store.Queued).Place
		done := await(t.Context(), s, req)
		if _, err := s.client.Delete(t.Context(), at, clientv3.WithPrevKV()); err != nil {
			t.Fatal(err)
		}
		receive(t, done, "a waiter behind an entry of another release")
		release(t, s, req)
	}
}

// A request that was queued anew has a fence between those of its neighbours, or stands at the end.
func TestFencesOfRequestsQueuedAnew(t *testing.T) {
	t.Parallel()
	seen := &snapshot{100, map[string]entry{}}
	add := func(id string, created, fence int64) {
		e := entry{Entry: position.Entry{ID: id, Created: created, Weight: store.MaxCapacity, Capacity: store.MaxCapacity}, at: id, fence: fence, fences: 64}
		seen.entries[id] = e
	}
	add("holds", 10, 0)
	add("waits", 20, 0)
	anewAt := func(place int64) (*entry, []clientv3.Cmp) {
		e := &entry{Entry: position.Entry{ID: "anew", Place: place, Weight: store.MaxCapacity, Capacity: store.MaxCapacity}}
		return e, anew(e, seen, seen.queue())
	}
	holds, waits := seen.entries["holds"], seen.entries["waits"]
	for _, place := range []int64{5, 10, 15} {
		if e, conditions := anewAt(place); e.Order == "" || e.fence <= holds.lastFence() || e.fence >= waits.firstFence() || len(conditions) != 1 {
			t.Errorf("place %d: order %q, fence %d between %d and %d, %d conditions", place, e.Order, e.fence, holds.lastFence(), waits.firstFence(), len(conditions))
		}
	}
	if e, conditions := anewAt(25); e.Order != "" || e.fence != 0 || len(conditions) != 0 {
		t.Errorf("behind all: %+v, %v", e, conditions)
	}
	add("holds", 10, waits.firstFence()-1) // no room is left
	if e, _ := anewAt(15); e.Order != "" || e.fence != 0 {
		t.Errorf("without room: %+v", e)
	}
}
