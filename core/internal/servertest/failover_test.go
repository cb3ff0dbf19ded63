package servertest

import (
	"context"
	"errors"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// behindSentinel returns a peer whose client gets the master's address from the sentinel.
func behindSentinel(t *testing.T, sentinel *redistest.Sentinel, opts ...lock.Option) peer {
	t.Helper()
	client := sentinel.Client()
	store := newStore(t, client)
	return peer{newLocker(t, store, opts...), store, client}
}

// A failover to an up-to-date replica costs no lease: it is renewed there, and handed on.
func TestFailover(t *testing.T) {
	t.Parallel()
	sentinel := redistest.StartSentinel(t)
	holder, other := behindSentinel(t, sentinel), behindSentinel(t, sentinel)
	lease := insistOn(t, holder.Locker, "k")
	waiting := make(chan *lock.Lease, 1)
	go func() {
		if lease, err := other.Lock(context.Background(), "k"); err == nil {
			waiting <- lease
		} else {
			t.Errorf("the waiter: %v", err)
			close(waiting)
		}
	}()
	eventually(t, "the other is in the queue", func() bool {
		s, err := holder.Inspect(t.Context(), "k")
		return err == nil && s.Waiting == 1
	})
	if n, err := holder.client.Wait(t.Context(), 1, within).Result(); n != 1 || err != nil {
		t.Fatalf("replicated to %d, %v", n, err)
	}

	sentinel.Failover()
	eventually(t, "the lock is still held, on the new master", func() bool { return lease.Verify(t.Context()) == nil })
	wantValid(t, lease)
	select {
	case <-waiting:
		t.Fatal("the other has it too")
	default:
	}
	mustUnlock(t, lease)
	select {
	case next := <-waiting:
		if next == nil {
			return
		}
		if next.Fence().Number <= lease.Fence().Number {
			t.Errorf("fence %v after %v", next.Fence(), lease.Fence())
		}
		mustUnlock(t, next)
	case <-time.After(within):
		t.Fatalf("the waiter was not granted the lock within %v", within)
	}
}

// A failover to a replica without the last writes loses a lock. The next renewal or Verify reports it
// to its holder; until then there may be two, and the fence of the second is larger.
func TestFailoverThatForgets(t *testing.T) {
	t.Parallel()
	const ttl = 6 * time.Second
	sentinel := redistest.StartSentinel(t)
	holder, other := behindSentinel(t, sentinel, lock.WithTTL(ttl)), behindSentinel(t, sentinel)
	pause(t, sentinel.Replica) // it cannot connect again
	if n, err := sentinel.Master.Client().ClientKillByFilter(t.Context(), "type", "replica").Result(); n != 1 || err != nil {
		t.Fatalf("cut off %d replicas, %v", n, err)
	}
	lease := insistOn(t, holder.Locker, "k")
	sentinel.Master.Stop()
	resume(t, sentinel.Replica)
	sentinel.Failover()

	var next *lock.Lease
	eventually(t, "the other has the lock", func() bool {
		var err error
		next, err = other.TryLock(t.Context(), "k")
		return err == nil
	})
	if next.Fence().Number <= lease.Fence().Number {
		t.Errorf("fence %v after %v", next.Fence(), lease.Fence())
	}
	select {
	case <-lease.Context().Done():
	case <-time.After(ttl + patience):
		t.Fatal("the holder's context did not end within its lease")
	}
	if cause := context.Cause(lease.Context()); !errors.Is(cause, lock.ErrLost) && !errors.Is(cause, lock.ErrExpired) {
		t.Errorf("cause %v", cause)
	}
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
	wantValid(t, next)
	mustUnlock(t, next)
}

func pause(t *testing.T, s *redistest.Server) {
	t.Helper()
	ok(t, s.Process().Signal(syscall.SIGSTOP))
}

func resume(t *testing.T, s *redistest.Server) {
	t.Helper()
	ok(t, s.Process().Signal(syscall.SIGCONT))
}
