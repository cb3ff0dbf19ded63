package storetest

import (
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// leaseInspections are the tests of Leases about what others see of holders and waiters.
var leaseInspections = []leaseTest{
	{"inspect returns the holders", leaseCase.inspectsHolders},
	{"inspect returns the waiters in their order", leaseCase.inspectsWaiters},
	{"inspect lists a maximum of holders and waiters", leaseCase.inspectsMany},
	{"a refusal says when enough holds expire", leaseCase.remains},
}

func (l leaseCase) inspectsHolders() {
	l.state(0, 0)
	blocker := l.whole()
	l.granted(blocker)
	var ws []*leaseWait
	for i, label := range []string{"", "ü:{}", string(slices.Repeat([]byte("h\x00\xff "), store.MaxLabel/4))} {
		req := lasting(longLease/time.Duration(i+1), l.light())
		req.Label, req.Fences = label, 1+3*i
		ws = append(ws, l.waits(req))
	}
	const waited, held = 300 * time.Millisecond, 100 * time.Millisecond
	l.h.Advance(waited)
	began := time.Now()
	l.release(blocker)
	want := map[int64]store.LeaseRequest{}
	for _, w := range ws {
		want[w.granted().Fence] = w.req
	}
	l.h.Advance(held)
	l.queued(l.whole())
	for range 2 {
		state := l.state(3, 1)
		if len(state.Holders) != len(want) {
			l.t.Fatalf("%d holders, and %d were granted: %+v", len(state.Holders), len(want), state)
		}
		for _, got := range state.Holders {
			req := want[got.Fence]
			if got.Weight != req.Weight || got.Label != req.Label || got.LastFence < got.Fence ||
				got.LastFence >= got.Fence+int64(req.Fences) || got.Remaining <= req.TTL-eventually || got.Remaining > req.TTL ||
				got.Age < held-clocks || got.Age > held+time.Since(began)+clocks {
				l.t.Errorf("the hold is %+v, granted %+v", got, req)
			}
			l.renew(req, true) // changes no age
		}
	}
}

func (l leaseCase) inspectsWaiters() {
	l.granted(l.whole())
	began := time.Now()
	var want []store.LeaseWaiter
	for i, weight := range []int{1, l.capacity, 1, 1} {
		req := l.request(weight)
		req.Label = string(rune('a' + i))
		if i%2 == 0 && l.kind == aSemaphore {
			req.Reserve = 2 - i/2
		}
		l.queued(req)
		want = append(want, store.LeaseWaiter{Weight: weight, Reserve: req.Reserve, Label: req.Label})
		if i == 1 {
			l.h.Advance(100 * time.Millisecond)
		}
	}
	slices.SortStableFunc(want, func(a, b store.LeaseWaiter) int { return a.Reserve - b.Reserve })
	state := l.state(l.capacity, len(want))
	if len(state.Waiters) != len(want) {
		l.t.Fatalf("%d waiters, want %d: %+v", len(state.Waiters), len(want), state)
	}
	for i, got := range state.Waiters {
		age := time.Duration(0)
		if got.Label < "c" {
			age = 100 * time.Millisecond
		}
		if got.Age < age-clocks || got.Age > time.Since(began)+age+clocks {
			l.t.Errorf("waiter %s has waited for %v, want %v", got.Label, got.Age, age)
		}
		if got.Age = 0; got != want[i] {
			l.t.Errorf("waiter %d is %+v, want %+v", i, got, want[i])
		}
	}
}

func (l leaseCase) inspectsMany() {
	const more = store.MaxListed + 20
	if l.kind == aSemaphore {
		l = l.of(more)
	}
	fences := map[int64]bool{}
	for range more {
		fences[l.acquire(l.light(), store.Granted).Fence] = true
	}
	if len(fences) != more {
		l.t.Errorf("%d fences for %d holds", len(fences), more)
	}
	for range more {
		l.queued(l.whole())
	}
	for _, state := range []store.LeaseState{l.inspect(), l.list()[l.key]} {
		if state.InUse != more || state.Waiting != more || len(state.Holders) != store.MaxListed || len(state.Waiters) != store.MaxListed {
			l.t.Errorf("%d in use by %d, %d and %d wait; want %d by %d, and as many",
				state.InUse, len(state.Holders), state.Waiting, len(state.Waiters), more, store.MaxListed)
		}
		seen := map[int64]bool{}
		for _, holder := range state.Holders {
			if holder.Weight != 1 || !fences[holder.Fence] || seen[holder.Fence] {
				l.t.Errorf("a hold is %+v", holder)
			}
			seen[holder.Fence] = true
		}
	}
}

func (l leaseCase) remains() {
	remains := func(req store.LeaseRequest, want time.Duration) {
		l.t.Helper()
		if got := l.refused(req).Remaining; got <= want-eventually || got > want {
			l.t.Errorf("enough for a weight of %d expires in %v, want %v", req.Weight, got, want)
		}
	}
	first, second, third := l.light(), lasting(longLease/2, l.light()), lasting(2*longLease, l.light())
	for _, req := range []store.LeaseRequest{first, second, third} {
		l.granted(req)
	}
	remains(l.whole(), 2*longLease)
	if l.kind == aSemaphore {
		remains(l.request(2), longLease/2)
		remains(l.request(3), longLease)
		lower := l.light()
		lower.Reserve = 2
		remains(lower, longLease)
	}
	second.TTL = 3 * longLease
	l.renew(second, true)
	remains(l.whole(), 3*longLease)
	if l.kind == aSemaphore {
		remains(l.request(2), longLease)
	}
	l.release(second)
	remains(l.whole(), 2*longLease)
	l.queued(l.whole())
	remains(l.whole(), 2*longLease)
}
