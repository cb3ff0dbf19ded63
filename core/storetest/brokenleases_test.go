package storetest_test

import (
	"context"
	"iter"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// badLeases is a store with leases that breaks a promise in the functions that it has.
type badLeases struct {
	store.Store
	memo *sync.Map // by ID

	request   func(s *badLeases, req *store.LeaseRequest)             // before AcquireLease and AwaitLease
	acquired  func(*badLeases, store.LeaseRequest, *store.LeaseReply) // after AcquireLease
	awaited   func(context.Context, *badLeases, store.LeaseRequest, *store.Grant)
	reference func(*badLeases, *store.LeaseRef) // before the methods with references
	renewed   func(*badLeases, []store.LeaseRef, []bool)
	released  func(*badLeases, []store.LeaseRef, []store.ReleaseOutcome)
	inspected func(*badLeases, *store.LeaseState)
	listed    func(*badLeases, string) iter.Seq2[store.LeaseState, error]
	silent    bool // notifies no holder
}

func (b badLeases) AcquireLease(ctx context.Context, req store.LeaseRequest) (store.LeaseReply, error) {
	if b.request != nil {
		b.request(&b, &req)
	}
	reply, err := b.Store.AcquireLease(ctx, req)
	if err == nil && b.acquired != nil {
		b.acquired(&b, req, &reply)
	}
	return reply, err
}

func (b badLeases) AwaitLease(ctx context.Context, req store.LeaseRequest) (store.Grant, error) {
	if b.request != nil {
		b.request(&b, &req)
	}
	grant, err := b.Store.AwaitLease(ctx, req)
	if b.awaited != nil {
		b.awaited(ctx, &b, req, &grant)
	}
	return grant, err
}

func (b badLeases) refs(refs []store.LeaseRef) []store.LeaseRef {
	refs = slices.Clone(refs)
	for i := range refs {
		if b.reference != nil {
			b.reference(&b, &refs[i])
		}
	}
	return refs
}

func (b badLeases) RenewLeases(ctx context.Context, refs []store.LeaseRef) ([]bool, error) {
	held, err := b.Store.RenewLeases(ctx, b.refs(refs))
	if err == nil && b.renewed != nil {
		b.renewed(&b, refs, held)
	}
	return held, err
}

func (b badLeases) ReleaseLeases(ctx context.Context, refs []store.LeaseRef) ([]store.ReleaseOutcome, error) {
	outcomes, err := b.Store.ReleaseLeases(ctx, b.refs(refs))
	if err == nil && b.released != nil {
		b.released(&b, refs, outcomes)
	}
	return outcomes, err
}

func (b badLeases) InspectLease(ctx context.Context, name, key string) (store.LeaseState, error) {
	state, err := b.Store.InspectLease(ctx, name, key)
	if b.inspected != nil {
		b.inspected(&b, &state)
	}
	return state, err
}

func (b badLeases) ListLeases(ctx context.Context, name string) iter.Seq2[store.LeaseState, error] {
	if b.listed != nil {
		return b.listed(&b, name)
	}
	return b.Store.ListLeases(ctx, name)
}

func (b badLeases) NotifyLost(f func(string)) (remove func()) {
	if b.silent {
		return func() {}
	}
	return b.Store.NotifyLost(f)
}

// state returns the state of a request's key.
func (b badLeases) state(name, key string) store.LeaseState {
	state, _ := b.Store.InspectLease(context.Background(), name, key)
	return state
}

// again makes a request of the wrapped store.
func (b badLeases) again(req store.LeaseRequest) store.LeaseReply {
	reply, _ := b.Store.AcquireLease(context.Background(), req)
	return reply
}

type (
	halfDowngrades struct{ store.Store }
	revokesAny     struct{ store.Store }
)

func (s halfDowngrades) DowngradeLease(ctx context.Context, ref store.LeaseRef, _ int) (bool, error) {
	held, err := s.RenewLeases(ctx, []store.LeaseRef{ref})
	return err == nil && held[0], err
}

func (s revokesAny) RevokeLease(ctx context.Context, name, key string, fence int64) (bool, error) {
	state, err := s.InspectLease(ctx, name, key)
	if err == nil && len(state.Holders) > 0 {
		fence = state.Holders[0].Fence
	}
	return s.Store.RevokeLease(ctx, name, key, fence)
}

func init() {
	broken["leases: keeps others out after a downgrade"] = func(s store.Store) store.Store { return halfDowngrades{s} }
	broken["leases: revokes whatever the fence"] = func(s store.Store) store.Store { return revokesAny{s} }
	for name, b := range badOnes {
		broken["leases: "+name] = func(s store.Store) store.Store {
			b.Store, b.memo = s, new(sync.Map)
			return b
		}
	}
}

func ofRequest(f func(req *store.LeaseRequest)) badLeases {
	return badLeases{request: func(_ *badLeases, req *store.LeaseRequest) { f(req) }}
}

func ofState(f func(state *store.LeaseState)) badLeases {
	return badLeases{inspected: func(_ *badLeases, state *store.LeaseState) { f(state) }}
}

func ofGrant(f func(grant *store.Grant)) badLeases {
	return badLeases{
		acquired: func(_ *badLeases, _ store.LeaseRequest, reply *store.LeaseReply) {
			if reply.Outcome == store.Granted {
				f(&reply.Grant)
			}
		},
		awaited: func(_ context.Context, _ *badLeases, _ store.LeaseRequest, grant *store.Grant) { f(grant) },
	}
}

var badOnes = map[string]badLeases{
	"has room for one more":             ofRequest(func(req *store.LeaseRequest) { req.Capacity++ }),
	"takes every request to weigh one":  ofRequest(func(req *store.LeaseRequest) { req.Weight = 1 }),
	"has no bound for the queue":        ofRequest(func(req *store.LeaseRequest) { req.MaxWaiting = 0 }),
	"grants more fences than requested": ofRequest(func(req *store.LeaseRequest) { req.Fences = store.MaxFences }),
	"has no tiers":                      ofRequest(func(req *store.LeaseRequest) { req.Reserve = 0 }),
	"has one queue for all tiers": ofRequest(func(req *store.LeaseRequest) {
		req.Capacity -= req.Reserve
		req.Reserve = 0
	}),
	"has tiers by capacity": ofRequest(func(req *store.LeaseRequest) {
		if req.Capacity < 1000 {
			req.Reserve, req.Capacity = 1000-req.Capacity+req.Reserve, 1000
		}
	}),
	"counts the waiters before a request": {request: func(b *badLeases, req *store.LeaseRequest) {
		for _, waiter := range b.state(req.Name, req.Key).Waiters {
			if req.MaxWaiting > 0 && waiter.Reserve > req.Reserve {
				req.MaxWaiting++
			}
		}
	}},
	"queues anew at the end": ofRequest(func(req *store.LeaseRequest) { req.Place = 0 }),
	"has no labels":          ofRequest(func(req *store.LeaseRequest) { req.Label = "" }),

	"gives all holds one fence": ofGrant(func(grant *store.Grant) { grant.Fence, grant.LastFence = 7, 7 }),
	"promises twice the TTL":    ofGrant(func(grant *store.Grant) { grant.TTL *= 2 }),
	"tells no place":            ofGrant(func(grant *store.Grant) { grant.Place = 0 }),
	"returns untaken grants in spite of Confirmed": {
		awaited: func(_ context.Context, _ *badLeases, _ store.LeaseRequest, grant *store.Grant) { grant.Untaken = true },
	},
	"does not extend an untaken grant": {
		awaited: func(ctx context.Context, b *badLeases, req store.LeaseRequest, grant *store.Grant) {
			if !req.Confirmed && ctx.Err() == nil && grant.Fence > 0 {
				ref := req.Ref(grant.Fence)
				ref.TTL = min(ref.TTL, time.Second)
				_, _ = b.Store.RenewLeases(ctx, []store.LeaseRef{ref})
				grant.Untaken, grant.TTL = true, ref.TTL
				b.memo.Store(req.ID, ref.TTL)
			}
		},
		reference: func(b *badLeases, ref *store.LeaseRef) {
			if ttl, ok := b.memo.Load(ref.ID); ok {
				ref.TTL = ttl.(time.Duration)
			}
		},
	},

	"has no ages of holds": ofState(func(state *store.LeaseState) {
		for i := range state.Holders {
			state.Holders[i].Age = 0
		}
	}),
	"has no ages of waiters": ofState(func(state *store.LeaseState) {
		for i := range state.Waiters {
			state.Waiters[i].Age = 0
		}
	}),
	"lists the last waiter only": ofState(func(state *store.LeaseState) { state.Waiters = state.Waiters[max(len(state.Waiters)-1, 0):] }),
	"lists waiters in no order":  ofState(func(state *store.LeaseState) { slices.Reverse(state.Waiters) }),
	"counts the listed holds": ofState(func(state *store.LeaseState) {
		state.InUse = 0
		for _, holder := range state.Holders {
			state.InUse += holder.Weight
		}
	}),
	"lists the names that begin alike": {listed: func(b *badLeases, name string) iter.Seq2[store.LeaseState, error] {
		return func(yield func(store.LeaseState, error) bool) {
			for _, n := range []string{name, name + "x"} {
				for state, err := range b.Store.ListLeases(context.Background(), n) {
					state.Key += strings.Repeat("x", len(n)-len(name))
					if !yield(state, err) {
						return
					}
				}
			}
		}
	}},

	"notifies no holder": {silent: true},
	"ignores the fence of a reference": {
		acquired: func(b *badLeases, req store.LeaseRequest, reply *store.LeaseReply) {
			if reply.Outcome == store.Granted {
				b.memo.Store(req.ID, reply.Fence)
			}
		},
		reference: func(b *badLeases, ref *store.LeaseRef) {
			if fence, ok := b.memo.Load(ref.ID); ok {
				ref.Fence = fence.(int64)
			}
		},
	},
	"knows no hold by its ID alone": {reference: func(_ *badLeases, ref *store.LeaseRef) {
		if ref.Fence == 0 {
			ref.Fence = 1
		}
	}},
	"revives what has expired": {renewed: func(_ *badLeases, _ []store.LeaseRef, held []bool) {
		for i := range held {
			held[i] = true
		}
	}},
	"renews together or not": {renewed: func(_ *badLeases, _ []store.LeaseRef, held []bool) {
		for i := range held {
			held[i] = held[0]
		}
	}},
	"counts a renewed hold again": {renewed: func(b *badLeases, refs []store.LeaseRef, held []bool) {
		for i, ref := range refs {
			if held[i] {
				b.again(store.LeaseRequest{
					Name: ref.Name, Key: ref.Key, ID: ref.ID + "-", Weight: 1, Capacity: 2 * store.MaxCapacity, TTL: ref.TTL,
				})
			}
		}
	}},
	"releases together or not": {released: func(_ *badLeases, _ []store.LeaseRef, outcomes []store.ReleaseOutcome) {
		for i := range outcomes {
			outcomes[i] = outcomes[0]
		}
	}},
	"ignores that a release is repeated": {reference: func(_ *badLeases, ref *store.LeaseRef) { ref.Repeated = false }},
	"releases the hold with the fence only": {
		acquired: func(b *badLeases, req store.LeaseRequest, reply *store.LeaseReply) {
			if reply.Outcome == store.Granted {
				b.memo.Store(req.ID, reply.Fence)
			}
		},
		reference: func(b *badLeases, ref *store.LeaseRef) {
			if fence, ok := b.memo.Load(ref.ID); ok && ref.Fence != 0 && ref.Fence != fence {
				ref.ID += "-"
			}
		},
	},
	"never knows what it released": {released: func(_ *badLeases, _ []store.LeaseRef, outcomes []store.ReleaseOutcome) { clear(outcomes) }},
	"takes withdrawals for releases": {released: func(_ *badLeases, _ []store.LeaseRef, outcomes []store.ReleaseOutcome) {
		for i := range outcomes {
			outcomes[i] = store.Released
		}
	}},

	"queues a repeat again": {acquired: func(b *badLeases, req store.LeaseRequest, reply *store.LeaseReply) {
		if reply.Outcome == store.Queued {
			req.ID += "-"
			*reply = b.again(req)
		}
	}},
	"refuses queued requests if full": {acquired: func(_ *badLeases, req store.LeaseRequest, reply *store.LeaseReply) {
		if reply.Outcome == store.Queued && req.MaxWaiting > 0 && reply.Waiting >= req.MaxWaiting {
			reply.Outcome, reply.QueueFull = store.Taken, true
		}
	}},
	"queues what can never be granted": {acquired: func(_ *badLeases, req store.LeaseRequest, reply *store.LeaseReply) {
		if reply.Outcome == store.Taken && req.Queue && req.MaxWaiting == 0 {
			reply.Outcome = store.Queued
		}
	}},
	"says when the first hold expires": {acquired: func(b *badLeases, req store.LeaseRequest, reply *store.LeaseReply) {
		for _, holder := range b.state(req.Name, req.Key).Holders {
			reply.Remaining = min(reply.Remaining, holder.Remaining)
		}
	}},
	"says when the last hold expires": {acquired: func(b *badLeases, req store.LeaseRequest, reply *store.LeaseReply) {
		for _, holder := range b.state(req.Name, req.Key).Holders {
			reply.Remaining = max(reply.Remaining, holder.Remaining)
		}
	}},
	"keeps the weight of released holds": {
		acquired: func(b *badLeases, req store.LeaseRequest, reply *store.LeaseReply) {
			if reply.Outcome == store.Granted {
				b.memo.Store(req.ID, req)
			}
		},
		released: func(b *badLeases, refs []store.LeaseRef, outcomes []store.ReleaseOutcome) {
			for i, ref := range refs {
				found, ok := b.memo.LoadAndDelete(ref.ID)
				if old, _ := found.(store.LeaseRequest); ok && outcomes[i] == store.Released && old.Weight > 1 {
					old.ID += "-"
					old.Weight--
					b.again(old)
				}
			}
		},
	},
	"keeps the first capacity": {request: func(b *badLeases, req *store.LeaseRequest) {
		first, _ := b.memo.LoadOrStore(req.ID, req.Capacity)
		req.Capacity = first.(int)
	}},
	"ends the place with the wait": {awaited: func(ctx context.Context, b *badLeases, req store.LeaseRequest, _ *store.Grant) {
		if ctx.Err() != nil {
			_, _ = b.Store.ReleaseLeases(context.WithoutCancel(ctx), []store.LeaseRef{req.Ref(0)})
		}
	}},
	"lets readers pass a writer": {request: func(b *badLeases, req *store.LeaseRequest) {
		if req.Weight == 1 && req.Capacity == store.MaxCapacity {
			req.Reserve, req.Capacity = -1, req.Capacity-1
		}
	}},
	"looks at the sum alone": {request: func(b *badLeases, req *store.LeaseRequest) {
		state := b.state(req.Name, req.Key)
		sum := state.InUse + req.Weight
		for _, waiter := range state.Waiters {
			if waiter.Reserve <= req.Reserve {
				sum += waiter.Weight
			}
		}
		if room := req.Capacity - req.Reserve; sum <= room {
			req.Reserve, req.Capacity = -1, room-1
		}
	}},
	"grants one too many in a storm": {request: func(b *badLeases, req *store.LeaseRequest) {
		if state := b.state(req.Name, req.Key); state.Waiting == 0 && state.InUse+req.Weight <= req.Capacity {
			time.Sleep(time.Nanosecond) // until all concurrent calls have read the state
			req.Capacity++
		}
	}},
}
