package redisstore_test

import (
	"context"
	"crypto/rand"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// lockRequest returns a request for a lock.
func lockRequest(key string) store.LeaseRequest {
	return store.LeaseRequest{
		Name: store.LockKind + "test", Key: key, ID: rand.Text()[:22], Weight: store.MaxCapacity, Capacity: store.MaxCapacity,
		Queue: true, TTL: 10 * time.Second, Fences: 1, Label: "test",
	}
}

// acquired acquires a lease, which must be free.
func acquired(t testing.TB, s *redisstore.Store, req store.LeaseRequest) store.LeaseRef {
	t.Helper()
	reply, err := s.AcquireLease(ctx(), req)
	if err != nil || reply.Outcome != store.Granted {
		t.Fatalf("acquire: %+v, %v", reply, err)
	}
	return req.Ref(reply.Fence)
}

func released(t testing.TB, s *redisstore.Store, ref store.LeaseRef, want store.ReleaseOutcome) {
	t.Helper()
	got, err := s.ReleaseLeases(ctx(), []store.LeaseRef{ref})
	if err != nil || got[0] != want {
		t.Fatalf("release: %v, %v, want %v", got, err, want)
	}
}

func wantLease(t testing.TB, s *redisstore.Store, ref store.LeaseRef, want bool) {
	t.Helper()
	held, err := s.VerifyLease(ctx(), ref)
	if err != nil || held != want {
		t.Errorf("held: %v, %v, want %v", held, err, want)
	}
}

// leaseWait is an AwaitLease in a goroutine.
type leaseWait struct {
	store.LeaseRequest
	stop  context.CancelFunc
	grant store.Grant
	at    time.Time
	err   error
	done  chan struct{}
}

// queues queues a request, and awaits it.
func queues(t testing.TB, s *redisstore.Store, req store.LeaseRequest) *leaseWait {
	t.Helper()
	reply, err := s.AcquireLease(ctx(), req)
	if err != nil || reply.Outcome != store.Queued {
		t.Fatalf("acquire: %+v, %v", reply, err)
	}
	req.Place = reply.Place
	ctx, cancel := context.WithCancel(ctx())
	w := &leaseWait{LeaseRequest: req, stop: cancel, done: make(chan struct{})}
	go func() {
		defer close(w.done)
		w.grant, w.err = s.AwaitLease(ctx, req)
		w.at = time.Now()
	}()
	t.Cleanup(func() {
		cancel()
		<-w.done
	})
	return w
}

// granted fails the test unless the wait ends with a grant in time. It returns the hold.
func (w *leaseWait) granted(t testing.TB, within time.Duration) store.LeaseRef {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(within):
		t.Fatalf("not granted within %v", within)
	}
	if w.err != nil {
		t.Fatal(w.err)
	}
	return w.Ref(w.grant.Fence)
}

// listening waits until so many processes have subscribed.
func listening(t testing.TB, server *redis.Client, n int) {
	t.Helper()
	eventually(t, 5*time.Second, "subscriptions", func() bool { return len(server.PubSubChannels(ctx(), "*").Val()) == n })
}
