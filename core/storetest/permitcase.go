package storetest

import (
	"context"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// permitCase is the semaphore of a test.
type permitCase struct {
	t         *testing.T
	h         Harness[store.Permits]
	store     store.Permits
	name, key string
	capacity  int // of every request without another one
	since     time.Time
}

func newPermits(t *testing.T, h Harness[store.Permits], capacity int) permitCase {
	return permitCase{t, h, h.Store, unique("semaphore"), "k", capacity, time.Now()}
}

// request is a new request that queues.
func (p permitCase) request(weight int) store.PermitRequest {
	return store.PermitRequest{
		Name: p.name, Key: p.key, ID: newOwner(), Weight: weight, Capacity: p.capacity, Queue: true, TTL: longLease,
		Holder: "a label",
	}
}

// tries returns the same request without queueing.
func tries(req store.PermitRequest) store.PermitRequest {
	req.Queue = false
	return req
}

func barges(req store.PermitRequest) store.PermitRequest {
	req.Barging = true
	return req
}

// dies returns the same request for a permit that is not renewed.
func dies(req store.PermitRequest) store.PermitRequest {
	req.TTL = shortLease
	return req
}

// of returns the same request with another capacity.
func of(capacity int, req store.PermitRequest) store.PermitRequest {
	req.Capacity = capacity
	return req
}

func permitOf(req store.PermitRequest) store.PermitRef {
	return store.PermitRef{Name: req.Name, Key: req.Key, ID: req.ID, TTL: req.TTL}
}

func (p permitCase) acquire(req store.PermitRequest, want store.AcquireOutcome) store.PermitReply {
	p.t.Helper()
	reply := p.acquireAny(req)
	if reply.Outcome != want {
		p.t.Fatalf("AcquirePermits: outcome %d, want %d: %+v", reply.Outcome, want, reply)
	}
	return reply
}

func (p permitCase) acquireAny(req store.PermitRequest) store.PermitReply {
	p.t.Helper()
	reply, err := p.store.AcquirePermits(background(), req)
	if err != nil {
		p.t.Fatalf("AcquirePermits: %v", err)
	}
	return reply
}

func (p permitCase) granted(req store.PermitRequest) store.Grant {
	p.t.Helper()
	before := time.Now()
	grant := p.acquire(req, store.Granted).Grant
	p.checkGrant(req, grant, before)
	return grant
}

// same repeats a request that was granted.
func (p permitCase) same(req store.PermitRequest, grant store.Grant) {
	p.t.Helper()
	again := p.acquire(req, store.Granted).Grant
	p.checkGrant(req, again, p.since)
	if again.Fence != grant.Fence {
		p.t.Errorf("granted %+v, then %+v", grant, again)
	}
}

func (p permitCase) queued(req store.PermitRequest) store.PermitReply {
	p.t.Helper()
	return p.acquire(req, store.Queued)
}

func (p permitCase) taken(req store.PermitRequest) {
	p.t.Helper()
	if reply := p.acquire(tries(req), store.Taken); reply.QueueFull {
		p.t.Errorf("a request that does not queue got QueueFull: %+v", reply)
	}
}

// checkGrant checks a grant of a request that was sent at before or later.
func (p permitCase) checkGrant(req store.PermitRequest, grant store.Grant, before time.Time) {
	p.t.Helper()
	if grant.Sent.Before(before.Add(-time.Millisecond)) || grant.Sent.After(time.Now()) {
		p.t.Errorf("a request of %v was sent at %v", before, grant.Sent)
	}
	if grant.Fence <= 0 {
		p.t.Errorf("the fence is %d", grant.Fence)
	}
	if req.TTL != longLease {
		return
	}
	state, err := p.store.InspectPermits(background(), req.Name, req.Key)
	if err != nil {
		p.t.Fatalf("InspectPermits: %v", err)
	}
	found := 0
	for _, holder := range state.Holders {
		if holder.Fence != grant.Fence {
			continue
		}
		found++
		if holder.Weight != req.Weight || holder.Meta != req.Holder {
			p.t.Errorf("the permit is %+v, the request was %+v", holder, req)
		}
		// The holder's deadline must not be after the store's.
		if ends := grant.Sent.Add(req.TTL); holder.Remaining < time.Until(ends)-clocks {
			p.t.Errorf("the permit ends in %v, for its holder in %v", holder.Remaining, time.Until(ends))
		}
	}
	if found != 1 {
		p.t.Errorf("%d permits have fence %d, which was granted: %+v", found, grant.Fence, state)
	}
}

func (p permitCase) release(req store.PermitRequest, want bool) {
	p.t.Helper()
	p.checkAll("ReleasePermits", []store.PermitRef{permitOf(req)}, []bool{want})
}

// renew renews a permit, which shows whether it is held: a renewal of others has no effect.
func (p permitCase) renew(req store.PermitRequest, want bool) {
	p.t.Helper()
	p.checkAll("RenewPermits", []store.PermitRef{permitOf(req)}, []bool{want})
}

func (p permitCase) renews(req store.PermitRequest) bool {
	p.t.Helper()
	held, err := p.store.RenewPermits(background(), []store.PermitRef{permitOf(req)})
	if err != nil || len(held) != 1 {
		p.t.Fatalf("RenewPermits of one answered for %d: %v", len(held), err)
	}
	return held[0]
}

func (p permitCase) checkAll(method string, reqs []store.PermitRef, want []bool) {
	p.t.Helper()
	call := p.store.RenewPermits
	if method == "ReleasePermits" {
		call = p.store.ReleasePermits
	}
	got, err := call(background(), reqs)
	if err != nil || len(got) != len(want) {
		p.t.Fatalf("%s of %d: %d answers, %v", method, len(want), len(got), err)
	}
	for i := range want {
		if got[i] != want[i] {
			p.t.Fatalf("%s: number %d of %d is %v, want %v", method, i+1, len(want), got[i], want[i])
		}
	}
}

func (p permitCase) inspect() store.SemaphoreState {
	p.t.Helper()
	state, err := p.store.InspectPermits(background(), p.name, p.key)
	if err != nil {
		p.t.Fatalf("InspectPermits: %v", err)
	}
	if state.Key != p.key {
		p.t.Fatalf("InspectPermits of %q answered for %q", p.key, state.Key)
	}
	return state
}

// state checks the weight in use of claimed permits, and the number of waiters.
func (p permitCase) state(inUse, waiting int) store.SemaphoreState {
	p.t.Helper()
	state := p.inspect()
	weights := 0
	for _, holder := range state.Holders {
		weights += holder.Weight
	}
	if state.InUse != inUse || weights != inUse || state.Waiting != waiting {
		p.t.Fatalf("want %d in use and %d waiting: %+v", inUse, waiting, state)
	}
	return state
}

// permitWaiter is an awaited request.
type permitWaiter struct {
	*call
	p   permitCase
	req store.PermitRequest
}

// await awaits a request until the test ends.
func (p permitCase) await(req store.PermitRequest) *permitWaiter {
	await := func(ctx context.Context) (store.Grant, error) { return p.store.AwaitPermits(ctx, req) }
	return &permitWaiter{begin(p.t, p.h.Advance, "AwaitPermits", func() any { return p.inspect() }, await), p, req}
}

// waits queues and awaits a request.
func (p permitCase) waits(req store.PermitRequest) *permitWaiter {
	p.t.Helper()
	p.queued(req)
	return p.await(req)
}

func (w *permitWaiter) granted() store.Grant {
	w.p.t.Helper()
	w.fails(nil)
	w.p.checkGrant(w.req, w.grant, w.p.since)
	if w.req.TTL == longLease {
		w.p.renew(w.req, true)
	}
	return w.grant
}

// waiting checks that exactly these waiters still wait, with this weight in use.
func (p permitCase) waiting(inUse int, ws ...*permitWaiter) {
	p.t.Helper()
	for _, w := range ws {
		p.renew(w.req, false)
	}
	p.state(inUse, len(ws))
	for _, w := range ws {
		w.waits()
	}
}
