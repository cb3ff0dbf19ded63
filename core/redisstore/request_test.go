package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Helpers of the tests of semaphores.

// request is one for a permit of the semaphore "pool" of a key.
type request store.PermitRequest

func newRequest(key, id string, weight, capacity int) request {
	return request{Name: "pool", Key: key, ID: newOp(id).id, Weight: weight, Capacity: capacity, TTL: 30 * time.Second, Holder: id}
}

func (r request) queued() request             { r.Queue = true; return r }
func (r request) ttl(d time.Duration) request { r.TTL = d; return r }
func (r request) ask() store.PermitRequest    { return store.PermitRequest(r) }
func (r request) permit() store.PermitRef {
	return store.PermitRef{Name: r.Name, Key: r.Key, ID: r.ID, TTL: r.TTL}
}

func (r request) acquire(s *redisstore.Store) (store.PermitReply, error) {
	return s.AcquirePermits(ctx(), r.ask())
}

func (r request) renew(s *redisstore.Store) (bool, error) {
	held, err := s.RenewPermits(ctx(), []store.PermitRef{r.permit()})
	return err == nil && len(held) == 1 && held[0], err
}

func (r request) release(s *redisstore.Store) (bool, error) {
	held, err := s.ReleasePermits(ctx(), []store.PermitRef{r.permit()})
	return err == nil && len(held) == 1 && held[0], err
}

// gets fails the test unless an acquire has this outcome.
func (r request) gets(t testing.TB, s *redisstore.Store, want store.AcquireOutcome) store.PermitReply {
	t.Helper()
	reply, err := r.acquire(s)
	if err != nil || reply.Outcome != want {
		t.Fatalf("acquire by %s: %+v, %v; want outcome %d", r.Holder, reply, err, want)
	}
	if want == store.Granted && (reply.Fence <= 0 || reply.Sent.IsZero()) {
		t.Fatalf("acquire by %s: %+v is no grant", r.Holder, reply)
	}
	return reply
}

func (r request) ends(t testing.TB, s *redisstore.Store, want bool) {
	t.Helper()
	if held, err := r.release(s); err != nil || held != want {
		t.Fatalf("release by %s: %v, %v; want %v", r.Holder, held, err, want)
	}
}

// permitWait is an AwaitPermits in a goroutine.
type permitWait struct {
	request
	stop  context.CancelFunc
	grant store.Grant
	err   error
	done  chan struct{}
}

func (r request) await(t testing.TB, s *redisstore.Store) *permitWait {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx())
	w := &permitWait{request: r, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.grant, w.err = s.AwaitPermits(ctx, r.ask())
	}()
	t.Cleanup(func() {
		cancel()
		<-w.done
	})
	return w
}

// granted fails the test unless the wait ends with a grant in time.
func (w *permitWait) granted(t testing.TB, within time.Duration) {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(within):
		t.Fatalf("%s: not granted within %v", w.Holder, within)
	}
	if w.err != nil {
		t.Fatalf("%s: %v", w.Holder, w.err)
	}
}

func (w *permitWait) waits(t testing.TB) {
	t.Helper()
	select {
	case <-w.done:
		t.Fatalf("%s: ended with %v; want it to wait", w.Holder, w.err)
	default:
	}
}

// inUse fails the test unless the permits in use have this weight.
func inUse(t testing.TB, s *redisstore.Store, key string, want int) {
	t.Helper()
	if state, err := s.InspectPermits(ctx(), "pool", key); err != nil || state.InUse != want {
		t.Fatalf("inspect: %+v, %v; want %d in use", state, err, want)
	}
}
