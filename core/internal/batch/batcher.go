// Package batch batches concurrent requests to a server.
package batch

import (
	"context"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Requests to one server are batched while other calls to it are in flight: a request in a batch
// costs the server, and the client, a fraction of a call of its own. A request without concurrent
// ones is sent at once, by its caller.

const (
	// MinInFlight is the number of calls in flight from which on requests are usually batched: one
	// that the server is working on, and one on its way, at least.
	MinInFlight = 2
	// patience is how long a request waits for an in-flight call before another call is started,
	// plus the estimated server time of the work in flight, slowWork per unit. Another call saves a
	// round trip to a distant server; it does not make a busy one faster.
	patience = time.Millisecond
	slowWork = 10 * time.Microsecond
	// maxQueued bounds the number of queued requests.
	maxQueued = 1 << 16
)

var errQueueFull = fmt.Errorf("%w: too many queued requests", store.ErrOverloaded)

// Server is the server of a Batcher, and its client.
type Server interface {
	// Start starts a background call, and returns true. It returns false after the end of the
	// client, which waits for started calls.
	Start(call func()) bool
	// Refuses returns the reason not to send requests of this urgency, or nil.
	Refuses(Urgency) error
	// Late returns the error of a request that had no reply in time.
	Late(why error, sent bool) error
	// Missed records that a request could not be sent in time, or that its caller has given up.
	Missed()
	// Batched records the size of a batch.
	Batched(requests int)
}

// Config is the configuration of a Batcher. Send sends a batch, calls Finish for each request, and
// reports whether the server has replied.
type Config[R Request] struct {
	Server  Server
	Send    func(context.Context, []R) (replied bool)
	Few     int // calls in flight from which on requests are batched
	Most    int // calls in flight
	MaxWork int // maximum of a batch, since others wait for it
	// A request is queued for Limit at most, and for half of Silence while the server has not
	// replied for Silence. Zero is no bound.
	Silence, Limit time.Duration
}

// Batcher batches requests to one server, and limits the calls in flight.
type Batcher[R Request] struct {
	Config[R]

	mu       sync.Mutex
	inFlight int // calls
	working  int // their work
	queue    []R
	heard    time.Time   // last reply of the server, or the first call without one
	timer    *time.Timer // for the first queued request
	timed    bool        // it runs
}

// New returns a batcher.
func New[R Request](c Config[R]) *Batcher[R] { return &Batcher[R]{Config: c} }

// Do sends a request, alone in the caller's goroutine, or in a batch if enough calls are in flight.
// It returns when there is a reply, when the request was not sent in time, or when ctx ends.
// Afterwards the request may be used again if there was no error.
func (b *Batcher[R]) Do(ctx context.Context, r R, u Urgency) error {
	if b.begin() {
		defer b.end()
		q := r.queued()
		q.failed, q.state = nil, stateEnded
		alone, _ := q.alone.([]R)
		if alone == nil {
			alone = []R{r}
			q.alone = alone
		}
		if b.Send(ctx, alone) {
			b.hear()
		}
		return q.failed
	}
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err := b.Server.Refuses(u); err != nil {
		return err
	}
	r.queued().urgency = u
	return b.wait(ctx, r)
}

// wait queues a request, and waits for its end.
func (b *Batcher[R]) wait(ctx context.Context, r R) error {
	q := r.queued()
	if q.ended == nil {
		q.ended = make(chan struct{}, 1)
	}
	q.state, q.failed, q.err, q.since, q.sent = stateQueued, nil, nil, time.Now(), time.Time{}
	if !b.add(r) {
		return errQueueFull
	}
	if done := ctx.Done(); done == nil { // a select takes twice as long
		<-q.ended
	} else {
		select {
		case <-q.ended:
		case <-done:
			if b.cancel(r, context.Cause(ctx)) {
				b.Server.Missed()
				return q.err
			}
			<-q.ended // both at once: the reply counts
		}
	}
	if q.sent.IsZero() {
		b.Server.Missed()
	}
	return q.err
}

// begin reports whether a caller may make a call of its own, which it then ends with end.
func (b *Batcher[R]) begin() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.inFlight >= b.Few {
		return false
	}
	b.count()
	return true
}

// count counts one more call in flight. Without calls in flight, the server is not silent. The
// caller holds mu.
func (b *Batcher[R]) count() {
	if b.inFlight == 0 && b.Silence > 0 {
		b.heard = time.Now()
	}
	b.inFlight++
}

// end ends a call. If requests are queued, the call continues with a batch of them in the
// background.
func (b *Batcher[R]) end() {
	if batch, work := b.next(0); batch != nil {
		b.sendAll(batch, work)
	}
}

// hear records a reply of the server.
func (b *Batcher[R]) hear() {
	if b.Silence > 0 {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.heard = time.Now()
	}
}

// sendAll sends batches in the background, until none is left.
func (b *Batcher[R]) sendAll(batch []R, work int) {
	all := func() {
		for ; batch != nil; batch, work = b.next(work) {
			b.Server.Batched(len(batch))
			b.finish(batch, b.Send(context.Background(), batch))
			runtime.Gosched() // callers with a reply may be about to send again
		}
	}
	if !b.Server.Start(all) { // the client is closed: the calls return ErrClosed
		all()
	}
}

// next returns the next batch, in memory of the queue, and its work. done is the work of the call
// that has ended. Without queued requests it returns nil, and the call has ended.
func (b *Batcher[R]) next(done int) (batch []R, work int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.queue) == 0 {
		b.inFlight--
		b.working -= done
		return nil, 0
	}
	n, now, down := 0, time.Now(), b.Server.Refuses(Ordinary)
	batch = b.queue[:0]
	for ; n < len(b.queue); n++ {
		r := b.queue[n]
		q := r.queued()
		if q.state != stateQueued {
			continue
		}
		if down != nil && q.urgency != Finishing {
			if why := b.Server.Refuses(q.urgency); why != nil {
				q.end(why)
				continue
			}
		}
		if b.silent(now) && now.Sub(q.since) >= b.Silence/2 { // a reply would be too late
			q.end(b.late(context.DeadlineExceeded, false))
			continue
		}
		if work+r.Work() > b.MaxWork && len(batch) > 0 {
			break
		}
		work += r.Work()
		q.state, q.sent = stateSent, now
		batch = append(batch, r)
	}
	clear(b.queue[len(batch):n])
	if b.queue = b.queue[n:]; len(b.queue) == 0 {
		b.queue = make([]R, 0, len(batch)) // the next one is probably as large
	}
	b.working += work - done
	if len(batch) == 0 {
		b.inFlight--
		return nil, 0
	}
	return slices.Clip(batch), work
}

// patience returns how long a request waits for a call to end: at most a part of its limit. The
// caller holds mu.
func (b *Batcher[R]) patience() time.Duration {
	busy := patience + time.Duration(b.working)*slowWork
	if b.Limit > 0 {
		return min(busy, max(patience, b.Limit/4), b.Limit)
	}
	return busy
}

// add queues a request for the next batch. It returns false if too many are queued. If fewer calls
// than few are in flight, it starts one.
func (b *Batcher[R]) add(r R) bool {
	b.mu.Lock()
	if len(b.queue) >= maxQueued {
		b.mu.Unlock()
		return false
	}
	b.queue = append(b.queue, r)
	idle := b.inFlight < b.Few
	if idle {
		b.count()
	} else {
		b.watch(b.patience())
	}
	b.mu.Unlock()
	if idle {
		b.end()
	}
	return true
}

// watch starts the timer that checks queued requests. The caller holds mu.
func (b *Batcher[R]) watch(in time.Duration) {
	switch {
	case b.timed:
		return
	case b.timer == nil:
		b.timer = time.AfterFunc(in, b.check)
	default:
		b.timer.Reset(in)
	}
	b.timed = true
}

// check starts another call if a request has waited for too long, and ends requests that have
// reached their limit.
func (b *Batcher[R]) check() {
	b.mu.Lock()
	b.timed = false
	now, begin := time.Now(), false
	for len(b.queue) > 0 {
		q := b.queue[0].queued()
		waited := now.Sub(q.since)
		if q.state == stateQueued && (b.Limit == 0 || waited < b.Limit) {
			next := b.patience()
			if waited < next {
				next -= waited
			} else if begin = b.inFlight < b.Most; begin {
				b.count()
			}
			if b.Limit > 0 {
				next = min(next, b.Limit-waited)
			}
			b.watch(next)
			break
		}
		if q.state == stateQueued {
			q.end(b.late(context.DeadlineExceeded, false))
		}
		clear(b.queue[:1])
		b.queue = b.queue[1:]
	}
	b.mu.Unlock()
	if begin {
		b.end()
	}
}

// silent reports whether calls have been in flight without any reply for too long.
func (b *Batcher[R]) silent(now time.Time) bool {
	return b.Silence > 0 && now.Sub(b.heard) >= b.Silence
}

// finish ends the requests of a batch that were not canceled.
func (b *Batcher[R]) finish(batch []R, replied bool) {
	b.mu.Lock()
	if replied {
		b.heard = time.Now()
	}
	ended := batch[:0]
	for _, r := range batch {
		if q := r.queued(); q.state == stateSent {
			q.state, q.err = stateEnded, q.failed
			ended = append(ended, r)
		}
	}
	b.mu.Unlock() // to wake many callers takes a while
	for _, r := range ended {
		r.queued().wake()
	}
}

// cancel cancels a request for its caller. It returns false if the request has ended.
func (b *Batcher[R]) cancel(r R, why error) bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	q := r.queued()
	if q.state == stateEnded {
		return false
	}
	q.err = b.late(why, q.state == stateSent)
	q.state = stateCanceled
	return true
}

// InFlight returns the number of calls in flight, and their maximum.
func (b *Batcher[R]) InFlight() (now, most int) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.inFlight, b.Most
}

func (b *Batcher[R]) late(why error, sent bool) error {
	return b.Server.Late(fmt.Errorf("no reply in time: %w", why), sent)
}
