package redisstore_test

import (
	"net"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// Readers that renew their leases for longer than the keys of the queue are kept keep a writer out,
// who has the lock after them.
func TestLeasesOutliveTheKeys(t *testing.T) {
	t.Parallel()
	server, clock := redistest.StartWithClock(t)
	s := newStore(t, server.Client())
	var readers []store.LeaseRef
	for range 2 {
		req := lockRequest("k")
		req.Weight, req.TTL = 1, 20*time.Second
		readers = append(readers, acquired(t, s, req))
	}
	writer := lockRequest("k")
	writer.Queue = false
	for range 30 {
		clock.Step(10 * time.Second)
		if held, err := s.RenewLeases(ctx(), readers); err != nil || !held[0] || !held[1] {
			t.Fatalf("renewed: %v, %v", held, err)
		}
		if reply, err := s.AcquireLease(ctx(), writer); err != nil || reply.Outcome != store.Taken {
			t.Fatalf("a writer: %+v, %v", reply, err)
		}
	}
	released(t, s, readers[0], store.Released)
	released(t, s, readers[1], store.Released)
	released(t, s, acquired(t, s, writer), store.Released)
}

// With replica acknowledgements a waiter begins only when its grant is confirmed: a master that dies
// after the push takes nothing with it.
func TestAPushIsConfirmedByTheReplica(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	host, port, _ := net.SplitHostPort(master.Addr())
	replica := redistest.Start(t, "--replicaof", host+" "+port)
	direct := master.Client()
	eventually(t, 20*time.Second, "the replica is in step", func() bool {
		return direct.Set(ctx(), "probe", 1, time.Minute).Err() == nil && direct.Wait(ctx(), 1, 200*time.Millisecond).Val() == 1
	})
	s := newStore(t, dial(t, master.Addr(), 4*time.Second), redisstore.WithReplicaAcks(1, 300*time.Millisecond))
	plain := newStore(t, direct)
	holder := acquired(t, plain, lockRequest("k"))
	confirmed := queues(t, s, lockRequest("k"))
	listening(t, direct, 2)
	released(t, plain, holder, store.Released)
	ref := confirmed.granted(t, 5*time.Second)
	if confirmed.grant.Untaken {
		t.Error("it began on a push")
	}
	w := queues(t, s, lockRequest("k"))
	stopped(t, replica)
	released(t, plain, ref, store.Released)
	<-w.done
	wantNotReplicated(t, w.err)
	acquired(t, plain, lockRequest("k"))
}
