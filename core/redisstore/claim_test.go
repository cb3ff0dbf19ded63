package redisstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// Helpers of the tests of locks.

// claim is a request for the lock "jobs" of a key.
type claim store.LockRequest

func newClaim(key, id string) claim {
	return claim{Name: "jobs", Key: key, ID: newOp(id).id, TTL: 30 * time.Second, Fences: 16, Holder: id}
}

func (c claim) shared() claim               { c.Shared = true; return c }
func (c claim) queued() claim               { c.Queue = true; return c }
func (c claim) ttl(d time.Duration) claim   { c.TTL = d; return c }
func (c claim) delay(d time.Duration) claim { c.Delay = d; return c }
func (c claim) request() store.LockRequest  { return store.LockRequest(c) }
func (c claim) hold() store.LockRef {
	return store.LockRef{Name: c.Name, Key: c.Key, ID: c.ID, TTL: c.TTL, Delay: c.Delay}
}
func (c claim) acquire(s *redisstore.Store) (store.LockReply, error) {
	return s.AcquireLock(ctx(), c.request())
}
func (c claim) release(s *redisstore.Store) (bool, error) { return s.ReleaseLock(ctx(), c.hold()) }

func (c claim) renew(s *redisstore.Store) (bool, error) {
	held, err := s.RenewLocks(ctx(), []store.LockRef{c.hold()})
	return err == nil && len(held) == 1 && held[0], err
}

// gets fails the test unless an acquire has this outcome.
func (c claim) gets(t testing.TB, s *redisstore.Store, want store.AcquireOutcome) store.LockReply {
	t.Helper()
	reply, err := c.acquire(s)
	if err != nil || reply.Outcome != want {
		t.Fatalf("acquire by %s: %+v, %v; want outcome %d", c.Holder, reply, err, want)
	}
	if want == store.Granted && (reply.Fence <= 0 || reply.LastFence < reply.Fence || reply.Sent.IsZero()) {
		t.Fatalf("acquire by %s: %+v is no grant", c.Holder, reply)
	}
	return reply
}

func (c claim) ends(t testing.TB, s *redisstore.Store, want bool) {
	t.Helper()
	if held, err := c.release(s); err != nil || held != want {
		t.Fatalf("release by %s: %v, %v; want %v", c.Holder, held, err, want)
	}
}

// wait is an AwaitLock in a goroutine.
type wait struct {
	claim
	stop  context.CancelFunc
	grant store.Grant
	err   error
	done  chan struct{}
}

func (c claim) await(t testing.TB, s *redisstore.Store) *wait {
	t.Helper()
	ctx, cancel := context.WithCancel(ctx())
	w := &wait{claim: c, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.grant, w.err = s.AwaitLock(ctx, c.request())
	}()
	t.Cleanup(func() {
		cancel()
		<-w.done
	})
	return w
}

// granted fails the test unless the wait ends with a grant in time.
func (w *wait) granted(t testing.TB, within time.Duration) store.Grant {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(within):
		t.Fatalf("%s: not granted within %v", w.Holder, within)
	}
	if w.err != nil {
		t.Fatalf("%s: %v", w.Holder, w.err)
	}
	return w.grant
}

func (w *wait) waits(t testing.TB) {
	t.Helper()
	select {
	case <-w.done:
		t.Fatalf("%s: %+v, %v; want it to wait", w.Holder, w.grant, w.err)
	default:
	}
}

// onBoth runs a test on a real server and on miniredis.
func onBoth(t *testing.T, test func(*testing.T, redis.UniversalClient)) {
	t.Run("redis", func(t *testing.T) { test(t, redistest.Start(t).Client()) })
	t.Run("miniredis", func(t *testing.T) { test(t, dial(t, miniredis.RunT(t).Addr(), time.Second)) })
}
