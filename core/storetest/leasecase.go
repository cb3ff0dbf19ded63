package storetest

import (
	"context"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// leaseKind is what a test of Leases runs on.
type leaseKind struct {
	name     string
	prefix   string // of the names
	capacity int
}

var (
	aLock      = leaseKind{"lock", store.LockKind, store.MaxCapacity}
	aSemaphore = leaseKind{"semaphore", store.SemaphoreKind, 4}
)

// leaseTest is a test of Leases.
type leaseTest struct {
	name string
	test func(leaseCase)
}

// on returns tests as those of each kind.
func on(tests []leaseTest, kinds ...leaseKind) (cases []testCase[store.Leases]) {
	for _, kind := range kinds {
		for _, c := range tests {
			cases = append(cases, testCase[store.Leases]{kind.name + ": " + c.name, func(t *testing.T, h Harness[store.Leases]) {
				c.test(newLease(t, h, kind))
			}})
		}
	}
	return cases
}

// leaseCase is the key of a test.
type leaseCase struct {
	t         *testing.T
	h         Harness[store.Leases]
	store     store.Leases
	kind      leaseKind
	name, key string
	capacity  int       // of every request without another one
	fences    *sync.Map // the first fence of every grant, by the request's ID
	since     time.Time
}

func newLease(t *testing.T, h Harness[store.Leases], kind leaseKind) leaseCase {
	return leaseCase{t, h, h.Store, kind, kind.prefix + unique(kind.name), "k", kind.capacity, new(sync.Map), time.Now()}
}

// another returns a case of the same kind with a name of its own.
func (l leaseCase) another() leaseCase { return newLease(l.t, l.h, l.kind) }

// of returns the case with another capacity, which only a semaphore has.
func (l leaseCase) of(capacity int) leaseCase {
	l.capacity = capacity
	return l
}

// request is a new request that queues.
func (l leaseCase) request(weight int) store.LeaseRequest {
	return store.LeaseRequest{
		Name: l.name, Key: l.key, ID: newOwner(), Weight: weight, Capacity: l.capacity, Queue: true, TTL: longLease,
		Fences: 1, Label: "a label",
	}
}

// whole is a request for the whole capacity: an exclusive one.
func (l leaseCase) whole() store.LeaseRequest { return l.request(l.capacity) }

// light is a request that is granted beside three others of its weight: a shared one.
func (l leaseCase) light() store.LeaseRequest { return l.request(1) }

// trying returns the same request without queueing.
func trying(req store.LeaseRequest) store.LeaseRequest {
	req.Queue = false
	return req
}

// lasting returns the same request with another TTL.
func lasting(ttl time.Duration, req store.LeaseRequest) store.LeaseRequest {
	req.TTL = ttl
	return req
}

// dying returns the same request for a hold that is not renewed.
func dying(req store.LeaseRequest) store.LeaseRequest { return lasting(shortLease, req) }

// ref returns the reference to a request, or to its hold.
func (l leaseCase) ref(req store.LeaseRequest) store.LeaseRef {
	if fence, ok := l.fences.Load(req.ID); ok {
		return req.Ref(fence.(int64))
	}
	return req.Ref(0)
}

// learn notes a grant, and renews it if it is untaken.
func (l leaseCase) learn(req store.LeaseRequest, grant store.Grant) {
	l.fences.Store(req.ID, grant.Fence)
	if grant.Untaken {
		_, _ = l.store.RenewLeases(background(), []store.LeaseRef{req.Ref(grant.Fence)})
	}
}

func (l leaseCase) acquireAny(req store.LeaseRequest) store.LeaseReply {
	l.t.Helper()
	reply, err := l.store.AcquireLease(background(), req)
	if err != nil {
		l.t.Fatalf("AcquireLease: %v", err)
	}
	if reply.Outcome == store.Granted {
		l.learn(req, reply.Grant)
	}
	return reply
}

func (l leaseCase) acquire(req store.LeaseRequest, want store.AcquireOutcome) store.LeaseReply {
	l.t.Helper()
	reply := l.acquireAny(req)
	if reply.Outcome != want {
		l.t.Fatalf("AcquireLease: outcome %d, want %d: %+v", reply.Outcome, want, reply)
	}
	return reply
}

func (l leaseCase) granted(req store.LeaseRequest) store.Grant {
	l.t.Helper()
	before := time.Now()
	grant := l.acquire(req, store.Granted).Grant
	l.checkGrant(req, grant, before)
	return grant
}

// same repeats a request that was granted.
func (l leaseCase) same(req store.LeaseRequest, grant store.Grant) {
	l.t.Helper()
	again := l.acquire(req, store.Granted).Grant
	l.checkGrant(req, again, l.since)
	if again.Fence != grant.Fence || again.LastFence != grant.LastFence {
		l.t.Errorf("granted %+v, then %+v", grant, again)
	}
}

func (l leaseCase) queued(req store.LeaseRequest) store.LeaseReply {
	l.t.Helper()
	return l.acquire(req, store.Queued)
}

// refused checks that a request is refused if it does not queue.
func (l leaseCase) refused(req store.LeaseRequest) store.LeaseReply {
	l.t.Helper()
	reply := l.acquire(trying(req), store.Taken)
	if reply.QueueFull {
		l.t.Errorf("a request that does not queue got QueueFull: %+v", reply)
	}
	return reply
}

// long reports whether the holds of a refusal last for a long time.
func (leaseCase) long(reply store.LeaseReply) bool {
	return reply.Remaining > longLease-eventually && reply.Remaining <= longLease
}

// checkGrant checks a grant of a request that was sent at before or later.
func (l leaseCase) checkGrant(req store.LeaseRequest, grant store.Grant, before time.Time) {
	l.t.Helper()
	if grant.Sent.Before(before.Add(-time.Millisecond)) || grant.Sent.After(time.Now()) {
		l.t.Errorf("a request of %v was sent at %v", before, grant.Sent)
	}
	if n := grant.LastFence - grant.Fence + 1; grant.Fence <= 0 || n < 1 || n > int64(req.Fences) {
		l.t.Errorf("fences %d to %d, want 1 to %d of them", grant.Fence, grant.LastFence, req.Fences)
	}
	if grant.TTL == 0 {
		grant.TTL = req.TTL
	}
	lister, ok := l.store.(store.LeaseLister)
	if req.TTL != longLease || !ok {
		return
	}
	state, err := lister.InspectLease(background(), req.Name, req.Key)
	if err != nil {
		l.t.Fatalf("InspectLease: %v", err)
	}
	found := 0
	for _, holder := range state.Holders {
		if holder.Fence != grant.Fence {
			continue
		}
		found++
		if holder.Weight != req.Weight || holder.Label != req.Label || holder.LastFence != grant.LastFence {
			l.t.Errorf("the hold is %+v, the request was %+v", holder, req)
		}
		// The holder's deadline must not be after the store's.
		if ends := grant.Sent.Add(grant.TTL); holder.Remaining < time.Until(ends)-clocks {
			l.t.Errorf("the lease ends in %v, for its holder in %v", holder.Remaining, time.Until(ends))
		}
	}
	if found != 1 && len(state.Holders) < store.MaxListed {
		l.t.Errorf("%d holds have fence %d, which was granted: %+v", found, grant.Fence, state)
	}
}

// end releases a request or its hold, which has to be one of these.
func (l leaseCase) end(req store.LeaseRequest, want ...store.ReleaseOutcome) {
	l.t.Helper()
	l.endRef(l.ref(req), want...)
}

func (l leaseCase) endRef(ref store.LeaseRef, want ...store.ReleaseOutcome) {
	l.t.Helper()
	outcomes, err := l.store.ReleaseLeases(background(), []store.LeaseRef{ref})
	if err != nil || len(outcomes) != 1 || !slices.Contains(want, outcomes[0]) {
		l.t.Fatalf("ReleaseLeases: %v, %v, want one of %v", outcomes, err, want)
	}
}

// release ends a hold.
func (l leaseCase) release(req store.LeaseRequest) {
	l.t.Helper()
	l.end(req, store.Released)
}

// withdraw ends a request that waits.
func (l leaseCase) withdraw(req store.LeaseRequest) {
	l.t.Helper()
	l.end(req, store.NotHeld)
}

// releaseLate releases what is not held, and does not wait.
func (l leaseCase) releaseLate(req store.LeaseRequest) {
	l.t.Helper()
	l.end(req, store.NotHeld, store.ReleaseUnknown)
}

// releaseAgain repeats the release of a hold.
func (l leaseCase) releaseAgain(req store.LeaseRequest) {
	l.t.Helper()
	ref := l.ref(req)
	ref.Repeated = true
	l.endRef(ref, store.Released, store.ReleaseUnknown)
}

func (l leaseCase) verify(req store.LeaseRequest, want bool) {
	l.t.Helper()
	held, err := store.Verify(background(), l.store, l.ref(req))
	l.check("VerifyLease", held, err, want)
}

func (l leaseCase) renew(req store.LeaseRequest, want bool) {
	l.t.Helper()
	l.check("RenewLeases", l.renews(req), nil, want)
}

func (l leaseCase) renews(req store.LeaseRequest) bool {
	l.t.Helper()
	return l.renewAll(l.ref(req))[0]
}

func (l leaseCase) renewAll(refs ...store.LeaseRef) []bool {
	l.t.Helper()
	held, err := l.store.RenewLeases(background(), refs)
	if err != nil || len(held) != len(refs) {
		l.t.Fatalf("RenewLeases of %d: %d answers, %v", len(refs), len(held), err)
	}
	return held
}

func (l leaseCase) downgrade(req store.LeaseRequest, weight int, want bool) {
	l.t.Helper()
	held, err := able[store.LeaseDowngrader](l.t, l.store).DowngradeLease(background(), l.ref(req), weight)
	l.check("DowngradeLease", held, err, want)
}

func (l leaseCase) revoke(fence int64, want bool) {
	l.t.Helper()
	ended, err := able[store.LeaseRevoker](l.t, l.store).RevokeLease(background(), l.name, l.key, fence)
	l.check("RevokeLease", ended, err, want)
}

func (l leaseCase) check(method string, got bool, err error, want bool) {
	l.t.Helper()
	if err != nil {
		l.t.Fatalf("%s: %v", method, err)
	}
	if got != want {
		l.t.Fatalf("%s: %v, want %v", method, got, want)
	}
}

func (l leaseCase) inspect() store.LeaseState {
	l.t.Helper()
	state, err := able[store.LeaseLister](l.t, l.store).InspectLease(background(), l.name, l.key)
	if err != nil {
		l.t.Fatalf("InspectLease: %v", err)
	}
	if state.Key != l.key {
		l.t.Fatalf("InspectLease of %q answered for %q", l.key, state.Key)
	}
	return state
}

// state checks the weight in use, and the number of waiters.
func (l leaseCase) state(inUse, waiting int) store.LeaseState {
	l.t.Helper()
	state := l.inspect()
	weights := 0
	for _, holder := range state.Holders {
		weights += holder.Weight
	}
	if state.InUse != inUse || weights != inUse || state.Waiting != waiting {
		l.t.Fatalf("want %d in use and %d waiting: %+v", inUse, waiting, state)
	}
	return state
}

// list returns the states of all keys.
func (l leaseCase) list() map[string]store.LeaseState {
	l.t.Helper()
	found := map[string]store.LeaseState{}
	for state, err := range able[store.LeaseLister](l.t, l.store).ListLeases(background(), l.name) {
		if err != nil {
			l.t.Fatalf("ListLeases: %v", err)
		}
		found[state.Key] = state
	}
	return found
}

// leaseWait is an awaited request.
type leaseWait struct {
	*call
	l   leaseCase
	req store.LeaseRequest
}

// await awaits a request until the test ends.
func (l leaseCase) await(req store.LeaseRequest) *leaseWait {
	await := func(ctx context.Context) (store.Grant, error) {
		grant, err := l.store.AwaitLease(ctx, req)
		if err == nil {
			l.learn(req, grant)
		}
		return grant, err
	}
	return &leaseWait{begin(l.t, l.h.Advance, "AwaitLease", func() any { return l.inspect() }, await), l, req}
}

// waits queues and awaits a request.
func (l leaseCase) waits(req store.LeaseRequest) *leaseWait {
	l.t.Helper()
	req.Place = l.queued(req).Place
	return l.await(req)
}

func (w *leaseWait) granted() store.Grant {
	w.l.t.Helper()
	w.fails(nil)
	w.l.checkGrant(w.req, w.grant, w.l.since)
	if w.req.TTL == longLease {
		w.l.verify(w.req, true)
	}
	return w.grant
}

// waiting checks that exactly these waiters still wait, with this weight in use.
func (l leaseCase) waiting(inUse int, ws ...*leaseWait) {
	l.t.Helper()
	l.state(inUse, len(ws))
	for _, w := range ws {
		w.waits()
	}
}
