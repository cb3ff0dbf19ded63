package memstore

import (
	"context"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// modelPermit is a request in the model.
type modelPermit struct {
	req     store.PermitRequest
	stage   stage
	awaited bool
	until   time.Time
}

// permitModel is a semaphore that is simple and slow.
type permitModel struct {
	queue, permits []*modelPermit
}

func (m *permitModel) inUse() (n int) {
	for _, p := range m.permits {
		n += p.req.Weight
	}
	return n
}

func (m *permitModel) known(id string) *modelPermit {
	for _, p := range append(slices.Clone(m.queue), m.permits...) {
		if p.req.ID == id {
			return p
		}
	}
	return nil
}

func (m *permitModel) keep(p *modelPermit) { p.until = time.Now().Add(3 * time.Second) }

func (m *permitModel) hold(p *modelPermit) {
	p.stage, p.until = holding, time.Now().Add(p.req.TTL)
}

// soonest returns when the next lease or place expires.
func (m *permitModel) soonest() (first time.Time) {
	first = time.Now().Add(24 * time.Hour)
	for _, p := range append(slices.Clone(m.queue), m.permits...) {
		if (p.stage != queued || !p.awaited) && p.until.Before(first) {
			first = p.until
		}
	}
	return first
}

func (m *permitModel) advance() {
	over := func(p *modelPermit) bool { return (p.stage != queued || !p.awaited) && !time.Now().Before(p.until) }
	m.permits = slices.DeleteFunc(m.permits, over)
	m.queue = slices.DeleteFunc(m.queue, over)
	blocked := false
	for _, p := range slices.Clone(m.queue) {
		if m.inUse()+p.req.Weight > p.req.Capacity {
			blocked = true
		} else if !blocked || p.req.Barging {
			m.queue = slices.DeleteFunc(m.queue, func(q *modelPermit) bool { return q == p })
			m.permits = append(m.permits, p)
			p.stage, p.until = reserved, time.Now().Add(2*time.Second)
			if p.awaited {
				m.hold(p)
			}
		}
	}
}

func (m *permitModel) acquire(req store.PermitRequest, released bool) store.PermitReply {
	m.advance()
	if released {
		return store.PermitReply{Outcome: store.Withdrawn}
	}
	p := m.known(req.ID)
	if p == nil {
		p = &modelPermit{req: req}
		room := m.inUse()+req.Weight <= req.Capacity && (req.Barging || len(m.queue) == 0)
		full := req.MaxWaiting > 0 && len(m.queue) >= req.MaxWaiting
		if !room && (!req.Queue || full) {
			reply := m.refusal(store.Taken, 0)
			reply.QueueFull = req.Queue
			return reply
		}
		if room {
			m.hold(p)
			m.permits = append(m.permits, p)
		} else {
			m.queue = append(m.queue, p)
		}
	}
	if p.stage == queued {
		p.req.Capacity = req.Capacity
		m.keep(p)
		m.advance()
	}
	if p.stage == queued {
		return m.refusal(store.Queued, 1)
	}
	if p.stage == reserved {
		m.hold(p)
	}
	return store.PermitReply{Outcome: store.Granted}
}

func (m *permitModel) refusal(outcome store.AcquireOutcome, itself int) store.PermitReply {
	reply := store.PermitReply{Outcome: outcome, InUse: m.inUse(), Waiting: len(m.queue) - itself}
	for i, p := range m.permits {
		if left := time.Until(p.until); i == 0 || left < reply.Remaining {
			reply.Remaining = left
		}
	}
	return reply
}

func (m *permitModel) release(id string) (held bool) {
	m.advance()
	p := m.known(id)
	if p == nil {
		return false
	}
	same := func(q *modelPermit) bool { return q == p }
	m.queue, m.permits = slices.DeleteFunc(m.queue, same), slices.DeleteFunc(m.permits, same)
	m.advance()
	return p.stage == holding
}

// sleep lets time pass. A store finds an expiry when it happens only while a call awaits a request.
func (m *permitModel) sleep(d time.Duration) {
	until := time.Now().Add(d)
	for slices.ContainsFunc(m.queue, func(p *modelPermit) bool { return p.awaited }) && m.soonest().Before(until) {
		time.Sleep(max(time.Until(m.soonest()), 0))
		m.advance()
	}
	time.Sleep(time.Until(until))
}

// modelRun makes the same calls of a store and of the model.
type modelRun struct {
	t        *testing.T
	s        *Store
	r        *rand.Rand
	m        permitModel
	reqs     []store.PermitRequest
	released map[string]bool // the reply to the first release
	waits    map[string]*modelWait
}

type modelWait struct {
	cancel context.CancelFunc
	done   chan struct{}
	err    error
}

const mostCapacity = 8

// A semaphore replies as the model does, in any sequence of calls.
func TestPermitsAgainstAModel(t *testing.T) {
	for seed := range uint64(60) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				run := &modelRun{
					t: t, s: New(), r: rand.New(rand.NewPCG(seed, 1)),
					released: map[string]bool{}, waits: map[string]*modelWait{},
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
				nothingLeft(t, run.s, &run.s.permits)
			})
		})
	}
}

// some returns one of the last requests.
func (run *modelRun) some() store.PermitRequest {
	if len(run.reqs) == 0 {
		return run.fresh()
	}
	return run.reqs[len(run.reqs)-1-run.r.IntN(min(len(run.reqs), 12))]
}

func (run *modelRun) fresh() store.PermitRequest {
	r := run.r
	weight := 1 + r.IntN(3)
	req := store.PermitRequest{
		Name: "n", Key: "k", ID: fmt.Sprint(len(run.reqs)), Weight: weight, Capacity: weight + r.IntN(mostCapacity-weight+1),
		Queue: r.IntN(4) > 0, Barging: r.IntN(5) == 0, MaxWaiting: r.IntN(3) * 4,
		TTL: time.Duration(1+r.IntN(20_000)) * time.Millisecond,
	}
	run.reqs = append(run.reqs, req)
	return req
}

func (run *modelRun) step(step int) {
	ctx, r := context.Background(), run.r
	switch op := r.IntN(12); op {
	case 0, 1, 2, 3, 4: // a new request, or a repeat, also with another capacity
		req := run.some()
		if op < 3 {
			req = run.fresh()
		} else if r.IntN(2) == 0 {
			req.Capacity = req.Weight + r.IntN(mostCapacity-req.Weight+1)
		}
		_, released := run.released[req.ID]
		want := run.m.acquire(req, released)
		got, err := run.s.AcquirePermits(ctx, req)
		if granted := got.Outcome == store.Granted; granted != (got.Fence > 0) || err != nil {
			run.t.Errorf("step %d: %+v, %v", step, got, err)
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
			if p := run.m.known(id); p != nil && p.awaited && p.stage == queued {
				run.m.advance()
				if p.stage == queued {
					p.awaited = false
					run.m.keep(p)
				}
			}
		}
	case 8:
		req := run.some()
		want, again := run.released[req.ID]
		if !again {
			want = run.m.release(req.ID)
			run.released[req.ID] = want
		}
		held, err := run.s.ReleasePermits(ctx, []store.PermitRef{{Name: "n", Key: "k", ID: req.ID}})
		if err != nil || held[0] != want {
			run.t.Errorf("step %d: released %v, %v, want %v", step, held, err, want)
		}
	case 9:
		req := run.some()
		req.TTL = time.Duration(1+r.IntN(5000)) * time.Millisecond
		run.m.advance()
		p := run.m.known(req.ID)
		want := p != nil && p.stage == holding
		if want {
			p.until = time.Now().Add(req.TTL)
		}
		held, err := run.s.RenewPermits(ctx, []store.PermitRef{{Name: "n", Key: "k", ID: req.ID, TTL: req.TTL}})
		if err != nil || held[0] != want {
			run.t.Errorf("step %d: renewed %v, %v, want %v", step, held, err, want)
		}
	default:
		run.m.sleep(time.Duration(r.IntN(1500)) * time.Millisecond)
	}
}

func (run *modelRun) await(req store.PermitRequest) {
	if _, released := run.released[req.ID]; released || run.waits[req.ID] != nil {
		return
	}
	run.m.advance()
	known := req
	known.Queue, known.MaxWaiting = true, 0
	if p := run.m.known(req.ID); p != nil {
		known.Capacity = p.req.Capacity // an await does not change it
	}
	run.m.acquire(known, false)
	if p := run.m.known(req.ID); p.stage == queued {
		p.awaited = true
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &modelWait{cancel: cancel, done: make(chan struct{})}
	run.waits[req.ID] = w
	go func() {
		defer close(w.done)
		_, w.err = run.s.AwaitPermits(ctx, req)
	}()
}

// compare compares the state of the store with that of the model.
func (run *modelRun) compare(step int) {
	synctest.Wait()
	run.m.advance()
	t := run.t
	for id, w := range run.waits {
		p := run.m.known(id)
		waits := p != nil && p.stage == queued && p.awaited
		select {
		case <-w.done:
			err := w.err
			delete(run.waits, id)
			_, released := run.released[id]
			if waits || (err == nil && released) || (err != nil && !released && err != context.Canceled) {
				t.Errorf("step %d: the wait of %s has ended: %v", step, id, err)
			}
		default:
			if !waits {
				t.Errorf("step %d: %s waits", step, id)
			}
		}
	}
	holders := 0
	for _, p := range run.m.permits {
		if p.stage == holding {
			holders++
		}
	}
	state, err := run.s.InspectPermits(context.Background(), "n", "k")
	if err != nil || state.InUse != run.m.inUse() || state.Waiting != len(run.m.queue) || len(state.Holders) != holders {
		t.Errorf("step %d: %+v, %v, want %d in use, %d holders, %d waiting", step, state, err, run.m.inUse(), holders, len(run.m.queue))
	}
	if state.InUse > mostCapacity {
		t.Errorf("step %d: %d in use", step, state.InUse)
	}
	sound(t, run.s)
}

// sound checks the invariants of a store's semaphores.
func sound(t *testing.T, s *Store) {
	t.Helper()
	for i := range s.permits.shards {
		shard := &s.permits.shards[i]
		shard.mu.Lock()
		requests := 0
		for _, named := range shard.order {
			l := named.resource
			requests += len(l.permits.all) + l.queue.len()
			weight, barging, most := 0, 0, 0
			for i, p := range l.permits.all {
				weight += p.req.Weight
				if p.index != i || i > 0 && p.until < l.permits.all[(i-1)/2].until {
					t.Errorf("permit %d of %d is out of order in the heap", i, len(l.permits.all))
				}
			}
			for e := l.queue.places.Front(); e != nil; e = e.Next() {
				p := e.Value.(*permit)
				most = max(most, p.req.Capacity)
				if p.barge != nil {
					barging++
				}
			}
			if weight != l.permits.weight {
				t.Errorf("the permits weigh %d, not %d", weight, l.permits.weight)
			}
			if n := l.queue.awaited.Len() + l.queue.unawaited.Len(); n != l.queue.len() || barging != l.barging.Len() || most > l.maxCapacity {
				t.Errorf("of %d in the queue %d are awaited or not, %d barge, not %d; the largest capacity is %d, not %d",
					l.queue.len(), n, barging, l.barging.Len(), most, l.maxCapacity)
			}
		}
		if requests != len(shard.requests) {
			t.Errorf("%d requests in semaphores, %d are known", requests, len(shard.requests))
		}
		shard.mu.Unlock()
	}
}
