package guard

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/background"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

const (
	// maxPendingBytes bounds the memory of unconfirmed completions: their results, and
	// background.TaskBytes for each. Results leave a quarter of it to completions without one, so that
	// at least 16,384 of those are not dropped.
	maxPendingBytes = 64 << 20
	withoutResults  = 4 // the divisor of that part
	// maxAbandonBytes bounds the memory of abandoned attempts, so that many of them in an outage do
	// not use the room of completions.
	maxAbandonBytes = 16 << 20
)

// pending are the completions that the store has not confirmed. They are retried for as long as
// their records would be kept, and Begin returns their results.
type pending struct {
	queue background.RetryQueue
	any   atomic.Bool // lets Begin skip the mutex while there are none

	mu      sync.Mutex
	byID    map[string]*store.SettleRequest // immutable
	dropped int

	abandonsDropped int // abandoned attempts that were dropped
}

// get returns the pending completion of an operation, or nil.
func (p *pending) get(id string) *store.SettleRequest {
	if !p.any.Load() {
		return nil
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.byID[id]
}

func (p *pending) put(req *store.SettleRequest) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID == nil {
		p.byID = make(map[string]*store.SettleRequest)
	}
	p.byID[req.ID] = req
	p.any.Store(true)
}

func (p *pending) remove(req *store.SettleRequest) {
	if !p.any.Load() {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.byID[req.ID] == req {
		delete(p.byID, req.ID)
		p.any.Store(len(p.byID) > 0)
	}
}

// replyOf returns the reply to a Begin from a completion that the store has not confirmed.
func replyOf(req *store.SettleRequest, fingerprint string) store.BeginReply {
	if fingerprint != req.Fingerprint {
		return store.BeginReply{Outcome: store.Mismatched, Number: req.Number}
	}
	return store.BeginReply{
		Outcome: store.Settled, Number: req.Number, State: req.State, Status: req.Status, Data: bytes.Clone(req.Data),
	}
}

// settleLater retries a completion that failed with err in the background. If there is no room for
// its result, the operation is settled as not retained. The lease is renewed during the retries, so
// that no other attempt takes over.
func (a *Attempt) settleLater(req *store.SettleRequest, err error) telemetry.IdempotencyResult {
	g := a.guard
	g.telemetry.Unconfirmed(a.ctx, err)
	q := &g.pending.queue
	fits := len(req.Data) == 0 || q.Free() >= len(req.Data)+q.MaxBytes/withoutResults
	if fits && g.retryCompletion(a, req) {
		return telemetry.Unconfirmed
	}
	if len(req.Data) > 0 {
		small := *req
		small.State, small.Data = store.NotRetained, nil
		if g.retryCompletion(a, &small) {
			return telemetry.Unconfirmed
		}
	}
	g.dropCompletion(a, err)
	return telemetry.Dropped
}

// retryCompletion retries a completion in the background for as long as its record, or the
// attempt's, is kept: the outcome would otherwise become unknown. It returns false if there is no
// room for it.
func (g *Guard) retryCompletion(a *Attempt, req *store.SettleRequest) bool {
	owned := false
	task := background.Task{
		Until: time.Now().Add(max(req.Retention, a.req.Retention)),
		Bytes: len(req.Data),
		Try: func(ctx context.Context) (err error) {
			owned, err = g.store.SettleOperation(ctx, *req)
			return err
		},
		After: func(err error) {
			g.pending.remove(req)
			if err != nil {
				g.dropCompletion(a, err)
				g.telemetry.End(a.ctx, a.telemetry, telemetry.Dropped, nil)
				return
			}
			a.forget()
			if !owned {
				a.recordLoss(true)
			}
			g.telemetry.Confirmed(a.ctx)
		},
	}
	g.pending.put(req)
	if g.pending.queue.Add(task) {
		return true
	}
	g.pending.remove(req)
	return false
}

// dropCompletion gives up on a completion.
func (g *Guard) dropCompletion(a *Attempt, err error) {
	a.forget()
	g.pending.mu.Lock()
	g.pending.dropped++
	g.pending.mu.Unlock()
	g.telemetry.Dropped(a.ctx, err)
}

// abandonLater abandons an attempt in the background. It retries for as long as the record is kept,
// since the outcome would otherwise become unknown. If there is no room to retry, it logs err.
func (g *Guard) abandonLater(ctx context.Context, ref store.AttemptRef, err error, after func()) {
	queued := g.abandons.Add(background.Task{
		Until: time.Now().Add(g.config.retention),
		Try: func(ctx context.Context) error {
			_, err := g.store.AbandonOperation(ctx, ref)
			return err
		},
		After: func(error) { after() },
	})
	if queued {
		return
	}
	after()
	g.pending.mu.Lock()
	g.pending.abandonsDropped++
	g.pending.mu.Unlock()
	g.telemetry.Unconfirmed(ctx, err)
	g.telemetry.Dropped(ctx, err)
}

// noteReply records a reply of the store: retries run at once.
func (g *Guard) noteReply() {
	g.pending.queue.Hurry()
	g.abandons.Hurry()
}

// shutdown refuses further operations, and waits until ctx ends for attempts to be settled and for
// the store to confirm that. Its error has the numbers of attempts and completions that are left
// or were dropped before.
func (g *Guard) shutdown(ctx context.Context) error {
	g.closed.Store(true)
	g.close()
	g.noteReply()
	_ = g.calls.Wait(ctx)
	var drained sync.WaitGroup
	drained.Go(func() { _ = g.abandons.Drain(ctx) })
	_ = g.pending.queue.Drain(ctx)
	drained.Wait()

	p := &g.pending
	p.mu.Lock()
	defer p.mu.Unlock()
	running, unconfirmed, undo := g.calls.Running(), p.queue.Left(), g.abandons.Left()
	var left []string
	for _, x := range []struct {
		n    int
		what string
	}{
		{running, "attempts are not settled"},
		{unconfirmed, "completions are not confirmed"},
		{undo, "abandoned attempts are not confirmed"},
		{p.dropped, "completions were dropped"},
		{p.abandonsDropped, "abandoned attempts were dropped"},
	} {
		if x.n > 0 {
			left = append(left, fmt.Sprintf("%d %s", x.n, x.what))
		}
	}
	switch {
	case left == nil:
		return nil
	case running+unconfirmed+undo > 0 && ctx.Err() != nil:
		return fmt.Errorf("guard: %s: %s: %w", g.name, strings.Join(left, ", "), context.Cause(ctx))
	}
	return fmt.Errorf("guard: %s: %s", g.name, strings.Join(left, ", "))
}
