package position_test

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"github.com/lockkeeper/lockkeeper/core/internal/position"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// server is a server with entries in an order of its own, whose processes apply the rule after each
// step. The memory store gets the same steps.
type server struct {
	*rapid.T
	st       *memstore.Store
	entries  map[string]position.Entry
	places   map[string]int64 // as the server has numbered requests
	told     map[string]int64 // as the memory store has
	fences   map[string]int64 // of the memory store's holds
	gone     []store.LeaseRequest
	revision int64
	requests int
	granted  map[string]bool // that were granted: none may wait again
}

var anyContext = context.Background()

func (s *server) queue() *position.Queue { return position.Of(slices.Collect(maps.Values(s.entries))) }

// settle grants what the rule grants, as the processes of waiters with a reserve do.
func (s *server) settle() {
	for {
		q := s.queue()
		i := slices.IndexFunc(q.Waiting, q.Fits)
		if i < 0 {
			return
		}
		e := q.Waiting[i]
		if e.Reserve == 0 {
			s.Fatalf("%+v fits, and waits", e)
		}
		e.Order, e.Held = q.Next(s.revision), true
		s.entries[e.ID] = e
		s.revision++
	}
}

func (s *server) request() store.LeaseRequest {
	s.requests++
	capacity := rapid.SampledFrom([]int{4, 4, 4, 3, 6, 9}).Draw(s.T, "capacity")
	req := store.LeaseRequest{
		Name: store.SemaphoreKind + "n", Key: "k", ID: fmt.Sprint(s.requests), Capacity: capacity, TTL: time.Hour, Fences: 1,
		Reserve: rapid.SampledFrom([]int{0, 0, 0, 1, 2}).Draw(s.T, "reserve"),
		Queue:   rapid.IntRange(0, 3).Draw(s.T, "queue") > 0,
	}
	req.Weight = rapid.IntRange(1, capacity-req.Reserve).Draw(s.T, "weight")
	if rapid.IntRange(0, 3).Draw(s.T, "writer") == 0 && req.Reserve == 0 {
		req.Weight = capacity
	}
	req.Label = req.ID
	return req
}

func entry(req store.LeaseRequest) position.Entry {
	return position.Entry{ID: req.ID, Weight: req.Weight, Capacity: req.Capacity, Reserve: req.Reserve}
}

func (s *server) acquire(req store.LeaseRequest, place int64) {
	s.revision++
	q, e := s.queue(), entry(req)
	e.Created, e.Place = s.revision, place
	fits := place == 0 && q.Fits(e)
	if place != 0 {
		e.Order = q.Anew(e)
	}
	if req.Queue || fits {
		if e.Reserve > 0 && fits {
			e.Order, e.Held = q.Next(s.revision-1), true
		}
		s.entries[e.ID] = e
	}
	s.settle()
	reply, err := s.st.AcquireLease(anyContext, req)
	if err != nil {
		s.Fatal(err)
	}
	want := store.Taken
	if s.queue().Holding(req.ID) {
		want = store.Granted
		s.fences[req.ID] = reply.Fence
	} else if req.Queue {
		want = store.Queued
		s.places[req.ID], s.told[req.ID] = cmp.Or(place, e.Created), reply.Place
	}
	if reply.Outcome != want {
		s.Fatalf("request %+v: outcome %d, by the rule %d", req, reply.Outcome, want)
	}
}

func (s *server) some(label string) string {
	if len(s.entries) == 0 {
		return ""
	}
	return rapid.SampledFrom(slices.Sorted(maps.Keys(s.entries))).Draw(s.T, label)
}

func (s *server) requestOf(id string) store.LeaseRequest {
	e := s.entries[id]
	return store.LeaseRequest{
		Name: store.SemaphoreKind + "n", Key: "k", ID: id, Weight: e.Weight, Capacity: e.Capacity, Reserve: e.Reserve, Queue: true,
		TTL: time.Hour, Fences: 1, Label: id,
	}
}

func (s *server) step() {
	switch rapid.SampledFrom([]string{"new", "new", "new", "end", "end", "anew", "capacity", "lighter"}).Draw(s.T, "step") {
	case "new":
		s.acquire(s.request(), 0)
	case "end":
		id := s.some("end")
		if id == "" {
			return
		}
		if req := s.requestOf(id); !s.queue().Holding(id) {
			s.gone = append(s.gone, req)
		}
		delete(s.entries, id)
		s.revision++
		s.settle()
		if _, err := s.st.ReleaseLeases(anyContext, []store.LeaseRef{{Name: store.SemaphoreKind + "n", Key: "k", ID: id}}); err != nil {
			s.Fatal(err)
		}
	case "anew": // a place that was lost
		if len(s.gone) == 0 {
			return
		}
		req := s.gone[0]
		s.gone = s.gone[1:]
		place := s.places[req.ID]
		req.Place = s.told[req.ID]
		s.requests++
		req.ID = fmt.Sprint(s.requests)
		req.Label = req.ID
		s.acquire(req, place)
	case "capacity":
		id := s.some("capacity")
		if id == "" || s.queue().Holding(id) {
			return
		}
		e := s.entries[id]
		e.Capacity = rapid.IntRange(e.Weight+e.Reserve, 10).Draw(s.T, "new capacity")
		s.entries[id] = e
		s.revision++
		s.settle()
		if _, err := s.st.AcquireLease(anyContext, s.requestOf(id)); err != nil {
			s.Fatal(err)
		}
	case "lighter":
		id := s.some("lighter")
		if id == "" || !s.queue().Holding(id) {
			return
		}
		e := s.entries[id]
		e.Weight = rapid.IntRange(1, e.Weight).Draw(s.T, "new weight")
		s.entries[id] = e
		s.revision++
		s.settle()
		held, err := s.st.DowngradeLease(anyContext, s.ref(id), e.Weight)
		if err != nil || !held {
			s.Fatalf("downgrade of %s: %v, %v", id, held, err)
		}
	}
}

// ref returns the reference to a hold of the memory store, which has told its fence only to the
// caller that waits.
func (s *server) ref(id string) store.LeaseRef {
	if s.fences[id] == 0 {
		reply, err := s.st.AcquireLease(anyContext, s.requestOf(id))
		if err != nil || reply.Outcome != store.Granted {
			s.Fatalf("%s: %+v, %v", id, reply, err)
		}
		s.fences[id] = reply.Fence
	}
	req := s.requestOf(id)
	return req.Ref(s.fences[id])
}

func (s *server) compare() {
	state, err := s.st.InspectLease(anyContext, store.SemaphoreKind+"n", "k")
	if err != nil {
		s.Fatal(err)
	}
	q := s.queue()
	var holds, wantHolds, waits, wantWaits []string
	for _, h := range state.Holders {
		wantHolds = append(wantHolds, fmt.Sprint(h.Label, ":", h.Weight))
	}
	for _, w := range state.Waiters {
		wantWaits = append(wantWaits, fmt.Sprint(w.Label, ":", w.Weight, "~", w.Reserve))
	}
	for _, e := range q.Holds {
		holds = append(holds, fmt.Sprint(e.ID, ":", e.Weight))
		s.granted[e.ID] = true
	}
	for _, e := range q.Waiting {
		waits = append(waits, fmt.Sprint(e.ID, ":", e.Weight, "~", e.Reserve))
		if s.granted[e.ID] {
			s.Fatalf("%s was granted, and waits", e.ID)
		}
		s.behind(q, e)
	}
	slices.Sort(holds)
	slices.Sort(wantHolds)
	if !slices.Equal(holds, wantHolds) || !slices.Equal(waits, wantWaits) || q.InUse != state.InUse {
		s.Fatalf("%v hold and %v wait, with %d in use; in memory %v and %v, with %d", holds, waits, q.InUse, wantHolds, wantWaits, state.InUse)
	}
}

// behind checks the entry that a waiter watches: as long as it is there, the waiter is not granted,
// whatever the others do.
func (s *server) behind(q *position.Queue, e position.Entry) {
	id := q.Behind(e.ID)
	if id == "" {
		return
	}
	if !q.Has(id) || id == e.ID {
		s.Fatalf("%s watches %q", e.ID, id)
	}
	if position.Of([]position.Entry{s.entries[id], e}).Holding(e.ID) {
		s.Fatalf("%s watches %s, beside which it fits", e.ID, id)
	}
}

// In any sequence of steps the rule grants the requests that the memory store grants, and the others
// wait in its order.
func TestTheRuleAgainstTheMemoryStore(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) { // in which no place expires
		for range 20 { // as often as rapid tries, which is too seldom for requests that are queued anew
			rapid.Check(struct{ testing.TB }{t}, func(rt *rapid.T) { // a bubble has no deadline
				st := memstore.New()
				defer st.Close()
				s := &server{
					T: rt, st: st, entries: map[string]position.Entry{}, places: map[string]int64{}, told: map[string]int64{},
					fences: map[string]int64{}, granted: map[string]bool{},
				}
				for range rapid.IntRange(1, 60).Draw(rt, "steps") {
					s.step()
					s.compare()
				}
			})
		}
	})
}

func TestBehind(t *testing.T) {
	t.Parallel()
	const n = store.MaxCapacity
	lock := func(weights ...int) (entries []position.Entry) {
		for i, weight := range weights {
			entries = append(entries, position.Entry{ID: string(rune('a' + i)), Created: int64(i + 1), Weight: weight, Capacity: n})
		}
		return entries
	}
	for _, c := range []struct {
		of     string
		in     []position.Entry
		id     string
		behind string
	}{
		{"a writer waits for the one before it", lock(n, n, n), "c", "b"},
		{"a writer waits for the reader before it", lock(1, 1, n), "c", "b"},
		{"a reader waits for the nearest writer", lock(1, n, 1, 1), "d", "b"},
		{"an entry that is gone is behind none", lock(n), "b", ""},
		{"a permit waits for any", []position.Entry{
			{ID: "a", Created: 1, Weight: 2, Capacity: 4}, {ID: "b", Created: 2, Weight: 2, Capacity: 4},
			{ID: "c", Created: 3, Weight: 1, Capacity: 4},
		}, "c", ""},
		{"a request with a reserve waits for any", []position.Entry{
			{ID: "a", Created: 1, Weight: 4, Capacity: 4}, {ID: "b", Created: 2, Weight: 1, Capacity: 4, Reserve: 2},
		}, "b", ""},
	} {
		if behind := position.Of(c.in).Behind(c.id); behind != c.behind {
			t.Errorf("%s: %q, want %q", c.of, behind, c.behind)
		}
	}
}

// The orders of requests with a reserve stay short, however many are granted while others of them hold.
func TestOrdersStayShort(t *testing.T) {
	t.Parallel()
	var entries []position.Entry
	for n := range int64(10_000) {
		e := position.Entry{ID: fmt.Sprint(n), Created: 2*n + 2, Weight: 1, Capacity: 4, Reserve: 1, Held: true}
		if n%3 == 0 { // it has waited
			e.Created = 1
		}
		e.Order = position.Of(entries).Next(2*n + 1)
		for _, hold := range entries {
			if !position.Before(&hold, &e) {
				t.Fatalf("%d: %q is not behind %q", n, e.Order, hold.Order)
			}
		}
		if len(e.Order) > 9 {
			t.Fatalf("the order of grant %d has %d bytes", n, len(e.Order))
		}
		if entries = append(entries, e); len(entries) > 2 {
			entries = entries[1:]
		}
	}
}
