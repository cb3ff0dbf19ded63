package statement

import (
	"context"
	"slices"
	"sync"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
)

// shares divides the connections of the pool, so that no kind of call takes all of them from
// others:
//   - A quarter is for renewals, releases and pushes alone. One connection of this quarter, if it
//     has several, is for renewals.
//   - At most half of all is for records, and at most a quarter for the records of one scope.
//
// A call beyond its share waits in the process. A pool of less than four connections has less to
// divide, and a pool of a single connection nothing.
type shares struct {
	ordinary slots // all calls except renewals, releases and pushes
	urgent   slots // all calls except renewals
	records  recordShares
}

func (s *shares) init(connections int) {
	reserved := connections / 4
	if connections > 1 {
		reserved = max(reserved, 1)
	}
	s.ordinary, s.urgent = make(slots, connections-reserved), make(slots, connections-reserved/2)
	s.records.init(max(connections/2, 1), max(connections/4, 1))
}

// admission is a call's share of the connections.
type admission struct {
	of    *shares
	share Share
	flow  *flow // if the call is about a record
}

// Share is a kind of call, by the connections that it may take.
type Share int8

const (
	// OrdinaryShare leaves connections to the calls of the other kinds.
	OrdinaryShare Share = iota
	// ReleaseShare is for releases and pushes, which let waiters continue.
	ReleaseShare
	// RenewalShare is for calls that keep a lease, or a place in a queue.
	RenewalShare
)

// take waits for a share. It returns the error of the context if that ends before.
func (s *shares) take(ctx context.Context, call Call) (a admission, err error) {
	a = admission{of: s, share: call.Operation.Share}
	if a.share == OrdinaryShare && call.Flow != "" {
		if a.flow, err = s.records.take(ctx, call.Flow, call.Urgency == batch.Finishing); err != nil {
			return a, err
		}
	}
	if a.share == OrdinaryShare && !s.ordinary.take(ctx) {
		s.records.give(a.flow)
		return a, ctx.Err()
	}
	if a.share != RenewalShare && !s.urgent.take(ctx) {
		if a.share == OrdinaryShare {
			s.ordinary.give()
		}
		s.records.give(a.flow)
		return a, ctx.Err()
	}
	return a, nil
}

// give gives the share back.
func (a admission) give() {
	if a.share != RenewalShare {
		a.of.urgent.give()
	}
	if a.share == OrdinaryShare {
		a.of.ordinary.give()
	}
	a.of.records.give(a.flow)
}

// recordShares bounds the calls about records in flight, and those of each flow, which is a scope.
// Flows take turns.
type recordShares struct {
	mu      sync.Mutex
	free    int
	perFlow int
	flows   map[string]*flow // with calls
	next    []*flow          // with a call that may be admitted, in their turn
}

type flow struct {
	key     string
	running int
	// finishing has the waiting calls that finish something, and waiting the others. Each has a
	// channel, which is closed when the call is admitted.
	finishing, waiting []chan struct{}
	queued             bool // it is in next
}

func (r *recordShares) init(most, perFlow int) {
	r.free, r.perFlow, r.flows = most, perFlow, make(map[string]*flow)
}

func (r *recordShares) take(ctx context.Context, key string, finishing bool) (*flow, error) {
	r.mu.Lock()
	f := r.flows[key]
	if f == nil {
		f = &flow{key: key}
		r.flows[key] = f
	}
	if r.free > 0 && f.running < r.perFlow { // so no call of the flow waits
		r.free--
		f.running++
		r.mu.Unlock()
		return f, nil
	}
	admitted := make(chan struct{})
	if finishing {
		f.finishing = append(f.finishing, admitted)
	} else {
		f.waiting = append(f.waiting, admitted)
	}
	r.enqueue(f)
	r.mu.Unlock()
	select {
	case <-admitted:
		return f, nil
	case <-ctx.Done():
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	select {
	case <-admitted: // both at once
		return f, nil
	default:
	}
	f.finishing, f.waiting = remove(f.finishing, admitted), remove(f.waiting, admitted)
	r.forget(f)
	return nil, ctx.Err()
}

// give ends a call of a flow, or does nothing for nil.
func (r *recordShares) give(f *flow) {
	if f == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.free++
	f.running--
	r.enqueue(f)
	for r.free > 0 && len(r.next) > 0 {
		f := r.next[0]
		r.next = r.next[1:]
		f.queued = false
		if admitted := f.pop(); admitted != nil {
			r.free--
			f.running++
			close(admitted)
		}
		r.enqueue(f)
	}
	r.forget(f)
}

// enqueue puts a flow behind the others, if one of its calls may be admitted. The caller holds mu.
func (r *recordShares) enqueue(f *flow) {
	if !f.queued && f.running < r.perFlow && len(f.finishing)+len(f.waiting) > 0 {
		f.queued = true
		r.next = append(r.next, f)
	}
}

// forget forgets a flow without calls. The caller holds mu.
func (r *recordShares) forget(f *flow) {
	if f.running == 0 && len(f.finishing)+len(f.waiting) == 0 && r.flows[f.key] == f {
		delete(r.flows, f.key)
	}
}

// pop returns the next call of the flow, or nil.
func (f *flow) pop() (admitted chan struct{}) {
	from := &f.waiting
	if len(f.finishing) > 0 {
		from = &f.finishing
	}
	if len(*from) > 0 {
		admitted, *from = (*from)[0], (*from)[1:]
	}
	return admitted
}

// remove returns the calls without one that no longer waits.
func remove(all []chan struct{}, one chan struct{}) []chan struct{} {
	return slices.DeleteFunc(all, func(c chan struct{}) bool { return c == one })
}
