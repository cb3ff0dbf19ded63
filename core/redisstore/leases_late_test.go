package redisstore_test

import (
	"errors"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// A waiter asks for its lease, the command is on its way, and the caller gives up and withdraws: the
// command finds a tombstone.
func TestALateAskFindsATombstone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct := newStore(t, server.Client())
	client := server.Client()
	asks, goOn := make(chan struct{}), make(chan struct{})
	var calls int
	client.AddHook(processHook(func(cmd redis.Cmder) {
		if cmd.Name() == "evalsha" {
			if calls++; calls == 1 {
				close(asks)
				<-goOn
			}
		}
	}))
	s := newStore(t, client)
	req := lockRequest("k")
	req.Place = 1 // the store has lost it: the first call asks
	ask := make(chan error, 1)
	go func() {
		_, err := s.AwaitLease(ctx(), req)
		ask <- err
	}()
	<-asks
	if _, err := s.ReleaseLeases(ctx(), []store.LeaseRef{req.Ref(0)}); err != nil {
		t.Fatal(err)
	}
	close(goOn)
	if err := <-ask; !errors.Is(err, store.ErrWithdrawn) {
		t.Errorf("the ask: %v", err)
	}
	released(t, direct, acquired(t, direct, lockRequest("k")), store.Released)
}

// The reply to a release is lost, and the client library sends it again: it is known that the lease
// was held until then.
func TestAReleaseThatIsSentAgain(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct := newStore(t, server.Client())
	proxy := redistest.NewProxy(t, server.Addr())
	s := newStore(t, dial(t, proxy.Addr(), time.Second))
	for _, waiting := range []bool{false, true} {
		ref := acquired(t, s, lockRequest("k"))
		var next *leaseWait
		if waiting {
			next = queues(t, direct, lockRequest("k"))
		}
		proxy.LoseReplies("evalsha", 1, redistest.Cut)
		got, err := s.ReleaseLeases(ctx(), []store.LeaseRef{ref})
		if err != nil || got[0] == store.NotHeld {
			t.Errorf("with a waiter: %v: release: %v, %v", waiting, got, err)
		}
		if waiting {
			released(t, direct, next.granted(t, 2*time.Second), store.Released)
		}
	}
}
