package lease

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Request is a call to acquire a lease.
type Request struct {
	Config *Config
	Key    string
	Weight int
	Wait   bool
	Direct bool // the caller has its own place in the store, and nothing is handed on to it

	capacity, reserve int
	traced            telemetry.Acquisition
}

// Acquire returns a lease, or an error:
//   - of the key, the weight or the capacity;
//   - of ctx;
//   - ErrClosed;
//   - of Mechanism.Busy;
//   - one that matches store.ErrUnavailable.
//
// After an error nothing is held, and there is no place in a queue: a late grant is released in the
// background.
func (p *Pool) Acquire(ctx context.Context, r Request) (*Lease, error) {
	r.traced = p.Telemetry.Begin(ctx, r.Wait)
	l, err := p.acquire(ctx, &r)
	result := telemetry.AcquireError
	switch {
	case err == nil:
		result = telemetry.Acquired
	case ctx.Err() != nil:
		result = telemetry.Canceled
	case errors.Is(err, p.ErrNotAcquired):
		result = telemetry.Busy
	}
	p.Telemetry.End(ctx, r.traced, r.Config.Tiered, result, err)
	return l, err
}

// CheckKey returns an error that matches ErrInvalidKey for a key that is not valid.
func (p *Pool) CheckKey(key string) error {
	if err := naming.CheckKey(key); err != nil {
		return fmt.Errorf("%w: %w", p.ErrInvalidKey, err)
	}
	return nil
}

func (p *Pool) acquire(ctx context.Context, r *Request) (*Lease, error) {
	if err := p.CheckKey(r.Key); err != nil {
		return nil, err
	}
	p.calls.Begin() // before checking closing, or a shutdown might not wait for it
	defer p.calls.End()
	var err error
	if r.capacity, r.reserve, err = p.Capacity(r.Config, r.Key, r.Weight); err != nil {
		return nil, err
	}
	if err := p.over(ctx); err != nil {
		return nil, err
	}
	if p.Reenter != nil {
		if l, err := p.Reenter(ctx, r.Key, r.Weight); l != nil || err != nil {
			return l, err
		}
	}
	if r.Direct {
		return p.acquireDirect(ctx, r)
	}
	return p.acquireQueued(ctx, r)
}

// over returns the error of a call whose context, or whose pool, has ended, or nil.
func (p *Pool) over(ctx context.Context) error {
	switch {
	case ctx.Err() != nil:
		return Ended(ctx)
	case p.closing.Err() != nil:
		return store.ErrClosed
	}
	return nil
}

// request returns a request to the store. A hold that may be handed on needs several fences. A hold
// with a reserve is not handed on: the store decides whether a request fits beside those with a
// smaller reserve.
func (p *Pool) request(ctx context.Context, r *Request, key string) store.LeaseRequest {
	c := r.Config
	fences := maxPasses
	if r.Direct || r.reserve > 0 {
		fences = 1
	}
	label := c.Holder
	if p.Kind == store.LockKind {
		label = WithSpan(ctx, label)
	}
	return store.LeaseRequest{
		Name: p.name, Key: key, ID: naming.NewID(), Weight: r.Weight, Capacity: r.capacity, Reserve: r.reserve, Queue: r.Wait,
		MaxWaiting: c.MaxWaiting, TTL: c.TTL + c.Delay, Fences: fences, Label: label, Confirmed: c.Delay > 0,
	}
}

// acquireDirect sends a request to the store, without the local queue.
func (p *Pool) acquireDirect(ctx context.Context, r *Request) (*Lease, error) {
	req := p.request(ctx, r, strings.Clone(r.Key)) // as in queueOf
	reply, err := p.send(ctx, &req)
	if err != nil {
		return nil, err
	}
	grant := reply.Grant
	if reply.Outcome == store.Queued {
		req.Place = reply.Place
		p.behind(r, reply.Holder)
		waiting, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(p.closing, cancel)()
		if grant, err = p.store.AwaitLease(waiting, req); err != nil {
			p.releases.Add(req.Ref(0))
			if over := p.over(ctx); over != nil {
				err = over
			}
			if ctx.Err() != nil {
				err = p.busy(&req, &reply, err)
			}
			return nil, err
		}
	}
	h, err := p.newHold(&req, grant, r.Config)
	if err != nil {
		if grant.Untaken && p.over(ctx) == nil { // the process was too slow for a short grant
			return p.acquireDirect(ctx, r)
		}
		return nil, err
	}
	return p.start(ctx, h)
}

// send sends a request to acquire. Without an error, the request was granted or queued; with one,
// nothing is left of it.
func (p *Pool) send(ctx context.Context, req *store.LeaseRequest) (store.LeaseReply, error) {
	reply, err := p.store.AcquireLease(ctx, *req)
	switch {
	case err != nil && ctx.Err() != nil:
		p.releases.Add(req.Ref(0))
		return reply, Ended(ctx)
	case err != nil:
		if errors.Is(err, store.ErrUnconfirmed) {
			p.releases.Add(req.Ref(0))
		}
		return reply, err
	case reply.Outcome == store.Granted, reply.Outcome == store.Queued && req.Queue:
		return reply, nil
	case reply.Outcome == store.Taken:
		return reply, p.busy(req, &reply, nil)
	}
	p.releases.Add(req.Ref(0))
	return reply, fmt.Errorf("%w: unexpected reply to acquire: %d", store.ErrUnavailable, reply.Outcome)
}

// busy returns the error of a request by the store's reply.
func (p *Pool) busy(req *store.LeaseRequest, reply *store.LeaseReply, cause error) error {
	holder, _ := CutSpan(reply.Holder)
	return p.Busy(Busy{
		Holder: holder, InUse: reply.InUse, Capacity: req.Capacity, Waiting: reply.Waiting, Remaining: reply.Remaining,
		Full: reply.Outcome == store.Taken && reply.QueueFull, Cause: cause,
	})
}

// behind records that a request waits, and on the span of one for a lock which hold it waits for,
// by the label of that hold.
func (p *Pool) behind(r *Request, label string) {
	p.Telemetry.Waits(&r.traced)
	if r.traced.Traced() && p.Kind == store.LockKind {
		r.traced.Behind(CutSpan(label))
	}
}
