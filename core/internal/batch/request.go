package batch

import "time"

// Urgency determines whether a request is sent although the server seems to be down.
type Urgency int

const (
	// Ordinary requests fail at once while the breaker is open.
	Ordinary Urgency = iota
	// Reading requests change nothing. They are also sent if the breaker is open because the server
	// takes no writes.
	Reading
	// Finishing requests end something that was begun. They are always sent.
	Finishing
)

// Request is a request that may be batched: it embeds Queued.
type Request interface {
	queued() *Queued
	// Work returns its share of the maximum work of a batch.
	Work() int
}

// Queued is the state of a request in a Batcher.
type Queued struct {
	failed error // as the sender of the batch reports
	alone  any   // a batch of this request alone, which saves allocations when it is used again

	urgency Urgency
	state   queuedState // guarded by the batcher's mu, as err is until the request has ended
	err     error
	since   time.Time     // of the wait
	sent    time.Time     // when it was sent, or about to be; zero before
	ended   chan struct{} // has room for one
}

func (q *Queued) queued() *Queued { return q }

// Finish records the error of a request, if any. The sender of a batch calls it for each.
func (q *Queued) Finish(err error) { q.failed = err }

// SentAt returns when the request was sent in a batch, or was about to be sent.
func (q *Queued) SentAt() time.Time { return q.sent }

// Failed returns the error that Finish has recorded.
func (q *Queued) Failed() error { return q.failed }

type queuedState int

const (
	stateQueued queuedState = iota
	stateSent               // or about to be sent
	stateEnded              // with a reply, or at its deadline
	stateCanceled
)

// end ends a request. The caller holds the batcher's mu.
func (q *Queued) end(err error) {
	q.state, q.err = stateEnded, err
	q.wake()
}

// wake wakes the caller of a request that has ended. The caller may then use it again.
func (q *Queued) wake() { q.ended <- struct{}{} }
