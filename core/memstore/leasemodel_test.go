package memstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// modelLease is a request in the model.
type modelLease struct {
	req     store.LeaseRequest
	awaited bool
	ever    bool // a call has awaited it
	untaken bool
	fence   int64 // as the store told; zero if it has not
	until   time.Time
	since   time.Time
}

// leaseModel is a key that is simple and slow: it applies the rule of store.Leases word by word.
type leaseModel struct {
	queue, holds []*modelLease
	withdrawn    map[string]time.Time // until when: requests that no call had awaited
}

func (m *leaseModel) inUse() (n int) {
	for _, r := range m.holds {
		n += r.req.Weight
	}
	return n
}

func (m *leaseModel) find(in []*modelLease, id string) *modelLease {
	if i := slices.IndexFunc(in, func(r *modelLease) bool { return r.req.ID == id }); i >= 0 {
		return in[i]
	}
	return nil
}

func without(in []*modelLease, r *modelLease) []*modelLease {
	return slices.DeleteFunc(in, func(other *modelLease) bool { return other == r })
}

func (m *leaseModel) hold(r *modelLease, ttl time.Duration) {
	r.untaken, r.until = false, time.Now().Add(ttl)
}

func (m *leaseModel) keep(r *modelLease) { r.until = time.Now().Add(3 * time.Second) }

func (m *leaseModel) advance() {
	over := func(r *modelLease) bool { return !time.Now().Before(r.until) }
	m.holds = slices.DeleteFunc(m.holds, over)
	m.queue = slices.DeleteFunc(m.queue, func(r *modelLease) bool { return !r.awaited && over(r) })
	for m.admitOne() {
	}
}

// admitOne grants one waiter that the rule grants.
func (m *leaseModel) admitOne() bool {
	slices.SortStableFunc(m.queue, func(a, b *modelLease) int {
		return cmp.Or(cmp.Compare(a.req.Reserve, b.req.Reserve), cmp.Compare(a.req.Place, b.req.Place))
	})
	for i, r := range m.queue {
		ahead, blocked := m.inUse(), false
		for _, before := range m.queue[:i] {
			ahead += before.req.Weight
			blocked = blocked || before.req.Reserve == r.req.Reserve
		}
		if !blocked && ahead+r.req.Weight <= r.req.Capacity-r.req.Reserve {
			m.queue = without(m.queue, r)
			m.holds = append(m.holds, r)
			m.hold(r, r.req.TTL)
			r.since = time.Now()
			if !r.awaited {
				m.hold(r, min(r.req.TTL, 2*time.Second))
				r.untaken = true
			}
			r.awaited = false
			return true
		}
	}
	return false
}

// acquire returns the reply to a request, without its Place.
func (m *leaseModel) acquire(req store.LeaseRequest, await bool) store.LeaseReply {
	m.advance()
	r := m.find(m.holds, req.ID)
	if r == nil {
		r = m.find(m.queue, req.ID)
		fresh := r == nil
		switch {
		case r == nil:
			if req.Place == 0 {
				req.Place = 1 << 62 // the end, until the store has told
			}
			full := req.MaxWaiting > 0 && len(m.queue) >= req.MaxWaiting
			impossible := req.Weight > req.Capacity-req.Reserve
			r = &modelLease{req: req, awaited: true, since: time.Now()}
			m.queue = append(m.queue, r)
			m.advance()
			if r = m.find(m.queue, req.ID); r != nil && (!req.Queue || full || impossible) {
				m.queue = without(m.queue, r)
				reply := m.refusal(store.Taken, req, 0)
				reply.QueueFull = req.Queue && full && !impossible
				return reply
			}
		case !await:
			r.req.Capacity = req.Capacity
			if r.req.Weight > r.req.Capacity-r.req.Reserve {
				m.queue = without(m.queue, r)
				m.advance()
				return m.refusal(store.Taken, req, 0)
			}
		}
		if r != nil && !await {
			r.awaited = r.awaited && !fresh
			m.keep(r)
		}
		m.advance()
	}
	if r := m.find(m.queue, req.ID); r != nil {
		return m.refusal(store.Queued, r.req, 1)
	}
	if r = m.find(m.holds, req.ID); r.untaken {
		m.hold(r, r.req.TTL)
	}
	return store.LeaseReply{Outcome: store.Granted}
}

func (m *leaseModel) refusal(outcome store.AcquireOutcome, req store.LeaseRequest, itself int) store.LeaseReply {
	reply := store.LeaseReply{Outcome: outcome, InUse: m.inUse(), Waiting: len(m.queue) - itself}
	over := reply.InUse + req.Weight - req.Capacity + req.Reserve
	ends := slices.SortedFunc(slices.Values(m.holds), func(a, b *modelLease) int { return a.until.Compare(b.until) })
	for _, r := range ends {
		reply.Remaining = time.Until(r.until)
		if over -= r.req.Weight; over <= 0 {
			break
		}
	}
	return reply
}

// release returns what a released reference was.
func (m *leaseModel) release(ref store.LeaseRef) store.ReleaseOutcome {
	m.advance()
	hold, waiter := m.find(m.holds, ref.ID), m.find(m.queue, ref.ID)
	m.holds, m.queue = without(m.holds, hold), without(m.queue, waiter)
	if waiter != nil && !waiter.ever {
		if m.withdrawn == nil {
			m.withdrawn = make(map[string]time.Time)
		}
		m.withdrawn[ref.ID] = time.Now().Add(time.Minute)
	}
	m.advance()
	switch {
	case hold != nil && (ref.Fence == 0 || ref.Fence == hold.fence):
		return store.Released
	case hold == nil && waiter == nil && ref.Repeated:
		return store.ReleaseUnknown
	}
	return store.NotHeld
}

// soonest returns when the next hold or place expires.
func (m *leaseModel) soonest() (first time.Time) {
	first = time.Now().Add(24 * time.Hour)
	for _, r := range slices.Concat(m.queue, m.holds) {
		if !r.awaited && r.until.Before(first) {
			first = r.until
		}
	}
	return first
}

// sleep lets time pass. A store finds an expiry when it happens only while a call awaits a request.
func (m *leaseModel) sleep(d time.Duration) {
	until := time.Now().Add(d)
	for slices.ContainsFunc(m.queue, func(r *modelLease) bool { return r.awaited }) && m.soonest().Before(until) {
		time.Sleep(max(time.Until(m.soonest()), 0))
		m.advance()
	}
	time.Sleep(time.Until(until))
}

// leaseRun makes the same calls of a store and of the model.
type leaseRun struct {
	t      *testing.T
	s      *Store
	r      *rand.Rand
	m      leaseModel
	reqs   []store.LeaseRequest
	places map[string]int64
	waits  map[string]*leaseWait
}

type leaseWait struct {
	cancel context.CancelFunc
	done   chan struct{}
	grant  store.Grant
	err    error
	want   error // when it ends
}

// A key replies as the model does, in any sequence of calls.
func TestLeasesAgainstAModel(t *testing.T) {
	t.Parallel()
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				run := &leaseRun{
					t: t, s: New(), r: rand.New(rand.NewPCG(seed, 1)),
					places: map[string]int64{}, waits: map[string]*leaseWait{},
				}
				for step := range 400 {
					run.step(step)
					run.compare(step)
					if t.Failed() {
						break
					}
				}
				for _, w := range run.waits {
					w.cancel()
					<-w.done
				}
				time.Sleep(2 * time.Minute)
				nothingLeft(t, run.s)
			})
		})
	}
}

// some returns one of the last requests, with its place if it has one.
func (run *leaseRun) some() store.LeaseRequest {
	if len(run.reqs) == 0 {
		return run.fresh()
	}
	req := run.reqs[len(run.reqs)-1-run.r.IntN(min(len(run.reqs), 12))]
	req.Place = run.places[req.ID]
	return req
}

func (run *leaseRun) fresh() store.LeaseRequest {
	r := run.r
	weight := 1 + r.IntN(3)
	req := store.LeaseRequest{
		Name: "n", Key: "k", ID: fmt.Sprint(len(run.reqs)), Weight: weight, Capacity: weight + r.IntN(9-weight), Reserve: r.IntN(3),
		Queue: r.IntN(4) > 0, MaxWaiting: r.IntN(3) * 4, TTL: time.Duration(1+r.IntN(20_000)) * time.Millisecond,
	}
	run.reqs = append(run.reqs, req)
	return req
}

func (run *leaseRun) ref(req store.LeaseRequest) store.LeaseRef {
	fence := int64(run.r.IntN(2)) // or one that no hold has
	if r := run.m.find(run.m.holds, req.ID); r != nil && run.r.IntN(4) > 0 {
		fence = r.fence
	}
	return req.Ref(fence)
}

// learn notes the place and the fence of a request, as the store has told.
func (run *leaseRun) learn(id string, grant store.Grant) {
	for _, r := range slices.Concat(run.m.queue, run.m.holds) {
		if r.req.ID == id {
			if grant.Place != 0 {
				r.req.Place, run.places[id] = grant.Place, grant.Place
			}
			r.fence = grant.Fence
		}
	}
}

func (run *leaseRun) step(step int) {
	ctx, r := context.Background(), run.r
	switch op := r.IntN(12); op {
	case 0, 1, 2, 3, 4: // a new request, or a repeat, also with another capacity
		req := run.some()
		if op < 3 {
			req = run.fresh()
		} else if r.IntN(2) == 0 {
			req.Capacity = req.Weight + r.IntN(9-req.Weight)
		}
		want := run.m.acquire(req, false)
		if w := run.waits[req.ID]; w != nil && want.Outcome == store.Taken {
			w.want = store.ErrWithdrawn
		}
		got, err := run.s.AcquireLease(ctx, req)
		if err != nil || got.Outcome == store.Granted != (got.Fence > 0) || got.Outcome == store.Queued && got.Place == 0 {
			run.t.Errorf("step %d: %+v, %v", step, got, err)
		}
		run.learn(req.ID, got.Grant)
		if r := run.m.find(run.m.holds, req.ID); r != nil && got.Sent.Add(got.TTL) != r.until {
			run.t.Errorf("step %d: granted %+v, until %v", step, got, r.until)
		}
		got.Grant = store.Grant{}
		if got != want {
			run.t.Errorf("step %d: request %+v, reply %+v, want %+v", step, req, got, want)
		}
	case 5, 6: // await
		run.await(run.some())
	case 7: // end a wait
		if ids := slices.Sorted(maps.Keys(run.waits)); len(ids) > 0 {
			id := ids[r.IntN(len(ids))]
			run.waits[id].cancel()
			run.waits[id].want = context.Canceled
			run.m.advance()
			if r := run.m.find(run.m.queue, id); r != nil && r.awaited {
				r.awaited = false
				run.m.keep(r)
			}
		}
	case 8:
		ref := run.ref(run.some())
		ref.Repeated = r.IntN(3) == 0
		want := run.m.release(ref)
		if w := run.waits[ref.ID]; w != nil {
			w.want = store.ErrWithdrawn
		}
		if got, err := run.s.ReleaseLeases(ctx, []store.LeaseRef{ref}); err != nil || got[0] != want {
			run.t.Errorf("step %d: released %v, %v, want %v", step, got, err, want)
		}
	case 9, 10:
		req := run.some()
		req.TTL = time.Duration(1+r.IntN(5000)) * time.Millisecond
		run.m.advance()
		ref := run.ref(req)
		hold := run.m.find(run.m.holds, req.ID)
		want := hold != nil && hold.fence == ref.Fence
		if want {
			run.m.hold(hold, req.TTL)
		}
		if op == 9 {
			held, err := run.s.RenewLeases(ctx, []store.LeaseRef{ref})
			if err != nil || held[0] != want {
				run.t.Errorf("step %d: renewed %v, %v, want %v", step, held, err, want)
			}
			break
		}
		weight := 1 + r.IntN(3)
		if want {
			hold.req.Weight = min(weight, hold.req.Weight)
			run.m.advance()
		}
		if held, err := run.s.DowngradeLease(ctx, ref, weight); err != nil || held != want {
			run.t.Errorf("step %d: downgraded %v, %v, want %v", step, held, err, want)
		}
	default:
		run.m.sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
	}
}

func (run *leaseRun) await(req store.LeaseRequest) {
	if run.waits[req.ID] != nil {
		return
	}
	run.m.advance()
	var reply store.LeaseReply
	known := run.m.find(run.m.queue, req.ID) != nil || run.m.find(run.m.holds, req.ID) != nil
	if !known && time.Now().Before(run.m.withdrawn[req.ID]) {
		reply.Outcome = store.Taken
	} else {
		asked := req
		asked.Queue, asked.MaxWaiting = true, 0
		reply = run.m.acquire(asked, true)
	}
	if r := run.m.find(run.m.queue, req.ID); r != nil {
		r.awaited, r.ever = true, true
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &leaseWait{cancel: cancel, done: make(chan struct{})}
	if reply.Outcome == store.Taken {
		w.want = store.ErrWithdrawn
	}
	run.waits[req.ID] = w
	go func() {
		defer close(w.done)
		w.grant, w.err = run.s.AwaitLease(ctx, req)
	}()
}

// compare compares the state of the store with that of the model.
func (run *leaseRun) compare(step int) {
	synctest.Wait()
	run.m.advance()
	t := run.t
	for id, w := range run.waits {
		r := run.m.find(run.m.queue, id)
		waits := r != nil && r.awaited
		select {
		case <-w.done:
			delete(run.waits, id)
			if waits || !errors.Is(w.err, w.want) {
				t.Errorf("step %d: the wait of %s has ended: %v, want %v", step, id, w.err, w.want)
			}
			if w.err == nil {
				run.learn(id, w.grant)
			}
		default:
			if !waits {
				t.Errorf("step %d: %s waits", step, id)
			}
		}
	}
	soundLeases(t, run.s)
	state, err := run.s.InspectLease(context.Background(), "n", "k")
	if err != nil || state.InUse != run.m.inUse() || state.Waiting != len(run.m.queue) || len(state.Holders) != len(run.m.holds) {
		t.Errorf("step %d: %+v, %v; the model has %d in use, %d holds, %d waiters",
			step, state, err, run.m.inUse(), len(run.m.holds), len(run.m.queue))
		return
	}
	run.learnPlaces()
	slices.SortStableFunc(run.m.queue, func(a, b *modelLease) int {
		return cmp.Or(cmp.Compare(a.req.Reserve, b.req.Reserve), cmp.Compare(a.req.Place, b.req.Place))
	})
	for i, w := range state.Waiters {
		r := run.m.queue[i]
		if w.Weight != r.req.Weight || w.Reserve != r.req.Reserve || w.Age != time.Since(r.since) {
			t.Errorf("step %d: waiter %d is %+v, want %+v", step, i, w, r)
		}
	}
	for _, h := range state.Holders {
		i := slices.IndexFunc(run.m.holds, func(r *modelLease) bool { return r.fence == h.Fence })
		if i < 0 {
			t.Errorf("step %d: no hold has the fence of %+v", step, h)
		} else if r := run.m.holds[i]; h.Weight != r.req.Weight || h.Age != time.Since(r.since) || h.Remaining != time.Until(r.until) {
			t.Errorf("step %d: %+v, want %+v", step, h, r)
		}
	}
}

// learnPlaces notes the places and fences that the store has given to requests without a reply.
func (run *leaseRun) learnPlaces() {
	shard := shardOf(run.s, run.s.leases.shards, "k")
	shard.mu.Lock()
	defer shard.mu.Unlock()
	for _, r := range slices.Concat(run.m.queue, run.m.holds) {
		known := shard.requests[leaseID{leaseKey{"n", "k"}, r.req.ID}]
		if known == nil {
			run.t.Errorf("the store does not know %s", r.req.ID)
			continue
		}
		r.fence = known.fence
		if known.req.Place != 0 {
			r.req.Place, run.places[r.req.ID] = known.req.Place, known.req.Place
		}
	}
}

// soundLeases checks the invariants of a store's leases.
func soundLeases(t *testing.T, s *Store) {
	t.Helper()
	for i := range s.leases.shards {
		shard := &s.leases.shards[i]
		shard.mu.Lock()
		requests := 0
		for i, l := range shard.order {
			if shard.keys[l.leaseKey] != l || l.index != i || len(shard.keys) != len(shard.order) {
				t.Errorf("%v is number %d of %d in order, number %d of %d keys", l.leaseKey, i, len(shard.order), l.index, len(shard.keys))
			}
			requests += len(l.holds.all) + l.queue.length
			weight := int64(0)
			for i, r := range l.holds.all {
				weight += int64(r.req.Weight)
				if r.index != i || i > 0 && r.until < l.holds.all[(i-1)/2].until {
					t.Errorf("hold %d of %d is out of order in the heap", i, len(l.holds.all))
				}
			}
			if weight != l.holds.weight {
				t.Errorf("the holds weigh %d, not %d", weight, l.holds.weight)
			}
			waiters := 0
			for _, q := range l.queue.tiers {
				weight = 0
				for e := q.places.Front(); e != nil; e = e.Next() {
					weight += int64(e.Value.(*lease).req.Weight)
				}
				if waiters += q.places.Len(); weight != q.weight || weight == 0 {
					t.Errorf("the waiters with reserve %d weigh %d, not %d", q.reserve, weight, q.weight)
				}
			}
			if n := l.queue.awaited.Len() + l.queue.unawaited.Len(); n != l.queue.length || waiters != n {
				t.Errorf("of %d in the queue %d are awaited or not, %d have places", l.queue.length, n, waiters)
			}
		}
		if requests != len(shard.requests) {
			t.Errorf("%d requests of keys, %d are known", requests, len(shard.requests))
		}
		shard.mu.Unlock()
	}
}

// nothingLeft checks that a store keeps nothing of leases that have expired.
func nothingLeft(t *testing.T, s *Store) {
	for i := range s.leases.shards {
		shard := &s.leases.shards[i]
		shard.sweep(len(shard.order), s.now())
		if n := len(shard.keys) + len(shard.order) + len(shard.requests); n != 0 {
			t.Errorf("%d keys, %d in order, and %d requests are kept", len(shard.keys), len(shard.order), len(shard.requests))
		}
	}
	if n := s.leases.requests.Load(); n != 0 {
		t.Errorf("counted %d requests too many", n)
	}
}

// A call after many holds have expired finds exactly those, in little time: less than the calls that
// granted them, if the machine is busy. The test is not parallel, since it measures time.
func TestTenThousandLeasesExpire(t *testing.T) {
	const n = 10_000
	best, control := time.Hour, time.Hour
	for range 5 {
		s := New(WithMaxLeases(4 * n))
		shard := shardOf(s, s.leases.shards, "k")
		acquire := func(id string, weight int, now time.Duration, want store.AcquireOutcome) {
			t.Helper()
			req := store.LeaseRequest{Name: "n", Key: "k", ID: id, Weight: weight, Capacity: 2 * n, TTL: time.Minute}
			l := shard.at("n", "k", now.Microseconds())
			reply, _, err := l.acquire(req, now.Microseconds())
			l.settle()
			if err != nil || reply.Outcome != want {
				t.Fatalf("%s: %+v, %v, want outcome %d", id, reply, err, want)
			}
		}
		at := func(i int) time.Duration { return time.Duration(i*7919%n) * time.Microsecond }
		began := time.Now()
		for i := range n {
			acquire(fmt.Sprint(i), 1, at(i), store.Granted)
		}
		control = min(control, time.Since(began))
		acquire("renewed", n, time.Minute-time.Microsecond, store.Granted)
		acquire("too early", 1, time.Minute-time.Microsecond, store.Taken)
		acquire("one", 1, time.Minute, store.Granted) // since one has ended
		acquire("two", 1, time.Minute, store.Taken)
		start := time.Now()
		acquire("most", n-2, time.Minute+n*time.Microsecond-2*time.Microsecond, store.Granted) // since all but one have
		best = min(best, time.Since(start))
		acquire("late", 1, time.Minute+n*time.Microsecond-2*time.Microsecond, store.Taken)
		soundLeases(t, s)
		if got := s.leases.requests.Load(); got != 4 {
			t.Errorf("%d requests are counted, want the live ones: 4", got)
		}
	}
	t.Logf("the call that found %d holds expired took %v, the calls that granted them %v", n-2, best, control)
	if best > max(50*time.Millisecond, control) { // 2 ms on an idle machine
		t.Errorf("the call that found %d holds expired took %v, the calls that granted them %v", n-2, best, control)
	}
}
