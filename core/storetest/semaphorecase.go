package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/semaphore"
)

// semaphoreCase is a semaphore that a test asks for permits.
type semaphoreCase struct {
	t         *testing.T
	h         Harness
	store     semaphore.Store
	name, key string
}

func newSemaphore(t *testing.T, h Harness) semaphoreCase {
	return semaphoreCase{t, h, h.Store, unique("semaphore"), "k"}
}

// asks is a new request that queues.
func (s semaphoreCase) asks(weight, capacity int) semaphore.AcquireRequest {
	return semaphore.AcquireRequest{
		Name: s.name, Key: s.key, ID: newOwner(), Weight: weight, Capacity: capacity, Queue: true, TTL: longLease, Holder: "somebody",
	}
}

func permitOf(req semaphore.AcquireRequest) semaphore.PermitRequest {
	return semaphore.PermitRequest{Name: req.Name, Key: req.Key, ID: req.ID, TTL: req.TTL}
}

func permitsOf(reqs ...semaphore.AcquireRequest) []semaphore.PermitRequest {
	permits := make([]semaphore.PermitRequest, len(reqs))
	for i, req := range reqs {
		permits[i] = permitOf(req)
	}
	return permits
}

func (s semaphoreCase) acquire(req semaphore.AcquireRequest, want semaphore.AcquireOutcome) semaphore.AcquireReply {
	s.t.Helper()
	before := time.Now()
	reply, err := s.store.AcquirePermits(background(), req)
	if err != nil {
		s.t.Fatalf("AcquirePermits: %v", err)
	}
	if reply.Outcome != want {
		s.t.Fatalf("AcquirePermits: outcome %d, want %d: %+v", reply.Outcome, want, reply)
	}
	if want == semaphore.Granted && (reply.Fence <= 0 || reply.Sent.After(time.Now()) || before.Sub(reply.Sent) > longLease) {
		s.t.Errorf("%+v is no grant", reply.Grant)
	}
	return reply
}

func (s semaphoreCase) granted(req semaphore.AcquireRequest) semaphore.Grant {
	s.t.Helper()
	return s.acquire(req, semaphore.Granted).Grant
}

func (s semaphoreCase) queued(req semaphore.AcquireRequest) semaphore.AcquireReply {
	s.t.Helper()
	return s.acquire(req, semaphore.Queued)
}

// taken tries a request without having it queued.
func (s semaphoreCase) taken(req semaphore.AcquireRequest) semaphore.AcquireReply {
	s.t.Helper()
	req.Queue = false
	return s.acquire(req, semaphore.Taken)
}

func (s semaphoreCase) release(want bool, reqs ...semaphore.AcquireRequest) {
	s.t.Helper()
	held, err := s.store.ReleasePermits(background(), permitsOf(reqs...))
	s.check("ReleasePermits", held, err, len(reqs), want)
}

func (s semaphoreCase) renew(want bool, reqs ...semaphore.AcquireRequest) {
	s.t.Helper()
	held, err := s.store.RenewPermits(background(), permitsOf(reqs...))
	s.check("RenewPermits", held, err, len(reqs), want)
}

func (s semaphoreCase) check(method string, got []bool, err error, n int, want bool) {
	s.t.Helper()
	if err != nil {
		s.t.Fatalf("%s: %v", method, err)
	}
	if len(got) != n {
		s.t.Fatalf("%s of %d answered for %d", method, n, len(got))
	}
	for i := range got {
		if got[i] != want {
			s.t.Fatalf("%s: %v, want %v", method, got, want)
		}
	}
}

func (s semaphoreCase) inspect() semaphore.State {
	s.t.Helper()
	state, err := s.store.InspectPermits(background(), s.name, s.key)
	if err != nil {
		s.t.Fatalf("InspectPermits: %v", err)
	}
	if state.Key != s.key {
		s.t.Fatalf("InspectPermits of %q answered for %q", s.key, state.Key)
	}
	return state
}

// stands checks what is in use, and how many wait.
func (s semaphoreCase) stands(inUse, waiting int) {
	s.t.Helper()
	if state := s.inspect(); state.InUse != inUse || state.Waiting != waiting {
		s.t.Fatalf("%+v, want %d in use and %d waiting", state, inUse, waiting)
	}
}

// permitWaiter is a request that somebody awaits.
type permitWaiter struct {
	s      semaphoreCase
	req    semaphore.AcquireRequest
	cancel context.CancelFunc
	done   chan struct{}
	grant  semaphore.Grant
	err    error
}

// await has a request awaited until the test ends. Where time is faked, AwaitPermits sleeps by the
// time that await returns; elsewhere it may.
func (s semaphoreCase) await(req semaphore.AcquireRequest) *permitWaiter {
	ctx, cancel := context.WithCancel(background())
	w := &permitWaiter{s: s, req: req, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.grant, w.err = s.store.AwaitPermits(ctx, req)
	}()
	s.t.Cleanup(func() {
		cancel()
		<-w.done
	})
	s.h.Advance(2 * time.Millisecond)
	return w
}

// waits queues a request and has it awaited.
func (s semaphoreCase) waits(req semaphore.AcquireRequest) *permitWaiter {
	s.t.Helper()
	s.queued(req)
	return s.await(req)
}

func (w *permitWaiter) ended() {
	w.s.t.Helper()
	select {
	case <-w.done:
	case <-time.After(eventually):
		w.s.t.Fatalf("AwaitPermits did not return within %v; the semaphore: %+v", eventually, w.s.inspect())
	}
}

func (w *permitWaiter) granted() semaphore.Grant {
	w.s.t.Helper()
	w.ended()
	if w.err != nil {
		w.s.t.Fatalf("AwaitPermits: %v", w.err)
	}
	if w.grant.Fence <= 0 || w.grant.Sent.After(time.Now()) {
		w.s.t.Errorf("%+v is no grant", w.grant)
	}
	return w.grant
}

func (w *permitWaiter) fails(want error) {
	w.s.t.Helper()
	w.ended()
	if !errors.Is(w.err, want) {
		w.s.t.Fatalf("AwaitPermits: %+v, %v, want %v", w.grant, w.err, want)
	}
}

// still checks that all of them wait.
func (s semaphoreCase) still(ws ...*permitWaiter) {
	s.t.Helper()
	if got := s.inspect().Waiting; got != len(ws) {
		s.t.Fatalf("%d wait, want %d", got, len(ws))
	}
	for _, w := range ws {
		select {
		case <-w.done:
			s.t.Fatalf("AwaitPermits: %+v, %v, without room for it", w.grant, w.err)
		default:
		}
	}
}
