package redisstore_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Helpers of the tests of leases.

// claim is a request for a lease, and its hold once it is granted.
type claim struct {
	store.LeaseRequest
	fence *atomic.Int64 // of its hold
}

// newClaim returns an exclusive request for the lock "jobs" of a key.
func newClaim(key, id string) claim {
	return claim{store.LeaseRequest{
		Name: store.LockKind + "jobs", Key: key, ID: newOp(id).id, Weight: store.MaxCapacity,
		Capacity: store.MaxCapacity, TTL: 30 * time.Second, Fences: 16, Label: id,
	}, new(atomic.Int64)}
}

// newPermit returns a request for a permit of the semaphore "jobs" of a key.
func newPermit(key, id string, weight, capacity int) claim {
	c := newClaim(key, id)
	c.Name, c.Weight, c.Capacity, c.Fences = store.SemaphoreKind+"jobs", weight, capacity, 1
	return c
}

func (c claim) shared() claim             { c.Weight = 1; return c }
func (c claim) queued() claim             { c.Queue = true; return c }
func (c claim) ttl(d time.Duration) claim { c.TTL = d; return c }
func (c claim) ref() store.LeaseRef       { return c.Ref(c.fence.Load()) }

func (c claim) acquire(s *redisstore.Store) (store.LeaseReply, error) {
	reply, err := s.AcquireLease(ctx(), c.LeaseRequest)
	if err == nil && reply.Outcome == store.Granted {
		c.fence.Store(reply.Fence)
	}
	return reply, err
}

// release reports whether it was held until now.
func (c claim) release(s *redisstore.Store) (bool, error) {
	outcomes, err := s.ReleaseLeases(ctx(), []store.LeaseRef{c.ref()})
	return len(outcomes) == 1 && outcomes[0] == store.Released, err
}

func (c claim) renew(s *redisstore.Store) (bool, error) {
	held, err := s.RenewLeases(ctx(), []store.LeaseRef{c.ref()})
	return err == nil && len(held) == 1 && held[0], err
}

func (c claim) verify(s *redisstore.Store) (bool, error) { return s.VerifyLease(ctx(), c.ref()) }

// held fails the test unless the hold is held, or not, as wanted.
func (c claim) held(t testing.TB, s *redisstore.Store, want bool) {
	t.Helper()
	if held, err := c.verify(s); err != nil || held != want {
		t.Fatalf("verify by %s: %v, %v; want %v", c.Label, held, err, want)
	}
}

// gets fails the test unless an acquire has this outcome.
func (c claim) gets(t testing.TB, s *redisstore.Store, want store.AcquireOutcome) store.LeaseReply {
	t.Helper()
	reply, err := c.acquire(s)
	if err != nil || reply.Outcome != want {
		t.Fatalf("acquire by %s: %+v, %v; want outcome %d", c.Label, reply, err, want)
	}
	if want == store.Granted && (reply.Fence <= 0 || reply.LastFence < reply.Fence || reply.Sent.IsZero()) {
		t.Fatalf("acquire by %s: %+v is no grant", c.Label, reply)
	}
	return reply
}

// ends releases it, and fails the test unless it was held until now, or not, as wanted.
func (c claim) ends(t testing.TB, s *redisstore.Store, want bool) {
	t.Helper()
	if held, err := c.release(s); err != nil || held != want {
		t.Fatalf("release by %s: %v, %v; want %v", c.Label, held, err, want)
	}
}

// wait is an AwaitLease in a goroutine.
type wait struct {
	claim
	stop  context.CancelFunc
	grant store.Grant
	err   error
	done  chan struct{}
}

// watched is a context that reports when something waits for its end.
type watched struct {
	context.Context
	report func()
}

func (w watched) Done() <-chan struct{} {
	w.report()
	return w.Context.Done()
}

// await returns when the request is awaited.
func (c claim) await(t testing.TB, s *redisstore.Store) *wait {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx())
	w := &wait{claim: c, stop: cancel, done: make(chan struct{})}
	begun := make(chan struct{})
	go func() {
		defer close(w.done)
		if w.grant, w.err = s.AwaitLease(watched{ctx, sync.OnceFunc(func() { close(begun) })}, c.LeaseRequest); w.err == nil {
			c.fence.Store(w.grant.Fence)
		}
	}()
	select {
	case <-begun:
	case <-w.done:
	}
	t.Cleanup(func() {
		cancel()
		<-w.done
	})
	return w
}

// waitsIn queues a request and awaits it.
func (c claim) waitsIn(t testing.TB, s *redisstore.Store) *wait {
	t.Helper()
	c = c.queued()
	c.Place = c.gets(t, s, store.Queued).Place
	return c.await(t, s)
}

func (w *wait) returned() bool {
	select {
	case <-w.done:
		return true
	default:
		return false
	}
}

// granted fails the test unless the wait ends with a grant in time.
func (w *wait) granted(t testing.TB, within time.Duration) store.Grant {
	t.Helper()
	eventually(t, within, w.Label+": granted", w.returned)
	if w.err != nil {
		t.Fatalf("%s: %v", w.Label, w.err)
	}
	return w.grant
}

func (w *wait) waits(t testing.TB) {
	t.Helper()
	if w.returned() {
		t.Fatalf("%s: %+v, %v; want it to wait", w.Label, w.grant, w.err)
	}
}
