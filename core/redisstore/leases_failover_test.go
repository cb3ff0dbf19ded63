package redisstore_test

import (
	"context"
	"net"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// After a failover the subscription of a waiting process is left on the old master, which is now a
// replica: pushes arrive, and the master counts no receiver. The lock has one holder at a time, and
// the process gets its turns.
func TestASubscriptionOnAReplica(t *testing.T) {
	t.Parallel()
	old, promoted := redistest.Start(t), redistest.Start(t)
	s := moved(t, old, promoted)
	host, port, _ := net.SplitHostPort(promoted.Addr())
	must(t, old.Client().ReplicaOf(ctx(), host, port).Err())
	eventually(t, 10*time.Second, "the old master is a replica", func() bool {
		return strings.Contains(old.Client().Info(ctx(), "replication").Val(), "master_link_status:up") && s.Ping(ctx()) == nil
	})
	if n := len(old.Client().PubSubChannels(ctx(), "*").Val()); n != 1 {
		t.Skipf("%d subscriptions on the replica", n)
	}

	direct := newStore(t, promoted.Client())
	turns := take(t, 2*time.Second, s, direct)
	t.Logf("%d turns with the subscription on the replica, %d of the other", turns[0], turns[1])
	if turns[0] == 0 || turns[1] == 0 {
		t.Errorf("turns %v", turns)
	}
}

// After a failover the subscription of a waiting process is left on the old master, which says nothing
// any more: it is renewed soon.
func TestASubscriptionOnASilentServer(t *testing.T) {
	t.Parallel()
	old, promoted := redistest.Start(t), redistest.Start(t)
	s := moved(t, old, promoted)
	stopped(t, old)
	acquired(t, newStore(t, promoted.Client()), lockRequest("k"))
	queues(t, s, lockRequest("k"))
	began := time.Now()
	listening(t, promoted.Client(), 2)
	if took := time.Since(began); took > 2500*time.Millisecond {
		t.Errorf("it took %v", took)
	}
}

// moved returns a store whose calls go to a server, and whose subscription is left on another one.
func moved(t *testing.T, from, to *redistest.Server) *redisstore.Store {
	t.Helper()
	var addr atomic.Value
	addr.Store(from.Addr())
	client := redis.NewClient(&redis.Options{
		ContextTimeoutEnabled: true, ReadTimeout: 500 * time.Millisecond,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr.Load().(string))
		},
	})
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client)
	released(t, s, acquired(t, s, lockRequest("warm")), store.Released)
	listening(t, from.Client(), 1)
	addr.Store(to.Addr())
	must(t, from.Client().ClientKillByFilter(ctx(), "type", "normal").Err())
	return s
}

// take has two waiters of each store take turns at one lock for some time, and checks that no two hold
// it at a time. It returns the number of turns of each store.
func take(t *testing.T, during time.Duration, stores ...*redisstore.Store) []int64 {
	t.Helper()
	var (
		turns   = make([]atomic.Int64, len(stores))
		holders atomic.Int64
		end     = time.Now().Add(during)
		done    = make(chan struct{})
	)
	taker := func(i int, s *redisstore.Store) {
		defer func() { done <- struct{}{} }()
		for time.Now().Before(end) {
			req := lockRequest("turns")
			reply, err := s.AcquireLease(ctx(), req)
			grant := reply.Grant
			if err == nil && reply.Outcome == store.Queued {
				req.Place = reply.Place
				grant, err = s.AwaitLease(ctx(), req)
			}
			if err != nil {
				_, _ = s.ReleaseLeases(ctx(), []store.LeaseRef{req.Ref(0)})
				continue
			}
			if n := holders.Add(1); n > 1 {
				t.Errorf("%d holders", n)
			}
			<-time.After(2 * time.Millisecond)
			holders.Add(-1)
			turns[i].Add(1)
			if _, err := s.ReleaseLeases(ctx(), []store.LeaseRef{req.Ref(grant.Fence)}); err != nil {
				t.Errorf("release: %v", err)
			}
		}
	}
	for i, s := range stores {
		go taker(i, s)
		go taker(i, s)
	}
	counts := make([]int64, len(stores))
	for range 2 * len(stores) {
		<-done
	}
	for i := range turns {
		counts[i] = turns[i].Load()
	}
	return counts
}

// A process that may not subscribe gets its turns beside others that may.
func TestAProcessWithoutASubscription(t *testing.T) {
	t.Parallel()
	client := app(t, "-subscribe")
	full := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: client.Options().Addr})
	t.Cleanup(func() { _ = full.Close() })
	turns := take(t, 2500*time.Millisecond, newStore(t, client), newStore(t, full))
	t.Logf("%d turns without a subscription, %d with one", turns[0], turns[1])
	if turns[0] < 2 || turns[1] < 2 {
		t.Errorf("turns %v", turns)
	}
}

// A failover loses a grant, and the same request is granted again, with another fence: the first
// lease ends, and what was granted again is free at once.
func TestAFailoverThatLosesAGrant(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct := newStore(t, server.Client())
	s := newStore(t, server.Client())
	req := lockRequest("k")
	req.TTL = 3 * time.Second
	holder := acquired(t, direct, req)
	w := queues(t, s, lockRequest("k"))
	listening(t, server.Client(), 2)
	before := imageOf(t, server.Client())
	released(t, direct, holder, store.Released)
	lost := w.granted(t, 5*time.Second)
	before.restore(t, server.Client())
	released(t, direct, holder, store.Released) // which grants the request again
	held, err := s.RenewLeases(ctx(), []store.LeaseRef{lost})
	if err != nil || held[0] {
		t.Errorf("the lost lease was renewed: %v, %v", held, err)
	}
	next := lockRequest("k")
	eventually(t, time.Second, "the second grant is given back", func() bool {
		reply, err := direct.AcquireLease(ctx(), next)
		return err == nil && reply.Outcome == store.Granted
	})
	wantLease(t, s, lost, false)
}

// A failover loses the last waiter, who is served at its number.
func TestAFailoverThatLosesAWaiter(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct, s := newStore(t, server.Client()), newStore(t, server.Client())
	holder := acquired(t, direct, lockRequest("k"))
	first := queues(t, direct, lockRequest("k"))
	before := imageOf(t, server.Client())
	second := queues(t, s, lockRequest("k"))
	before.restore(t, server.Client())
	third := queues(t, direct, lockRequest("k"))
	eventually(t, 5*time.Second, "all wait again", func() bool {
		state, err := s.InspectLease(ctx(), first.Name, "k")
		return err == nil && state.Waiting == 3
	})
	ref := holder
	for i, w := range []*leaseWait{first, second, third} {
		released(t, direct, ref, store.Released)
		select {
		case <-w.done:
		case <-time.After(time.Second):
			t.Fatalf("waiter %d is not next", i)
		}
		ref = w.granted(t, time.Second)
	}
}

// A server that stands still for longer than a heartbeat may take, while a lease of a dead process
// ends, continues with its waiters.
func TestWaitersOutliveAStandstill(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	req := lockRequest("k")
	req.TTL = time.Second
	acquired(t, newStore(t, server.Client()), req)
	var waits []*leaseWait
	var stores []*redisstore.Store
	for range 3 {
		s := newStore(t, server.Client())
		stores, waits = append(stores, s), append(waits, queues(t, s, lockRequest("k")))
	}
	listening(t, server.Client(), 4)
	stopped(t, server)
	<-time.After(4 * time.Second)
	goesOn(t, server)
	began := time.Now()
	served := make(chan struct{})
	for i, w := range waits { // one whose heartbeat comes late may be passed over
		go func() {
			defer func() { served <- struct{}{} }()
			select {
			case <-w.done:
			case <-time.After(10 * time.Second):
				w.err = context.DeadlineExceeded
			}
			if w.err != nil {
				t.Errorf("waiter %d: %v", i, w.err)
				return
			}
			t.Logf("waiter %d after %v", i, w.at.Sub(began))
			_, _ = stores[i].ReleaseLeases(ctx(), []store.LeaseRef{w.Ref(w.grant.Fence)})
		}()
	}
	for range waits {
		<-served
	}
	if took := time.Since(began); took > 2*time.Second {
		t.Errorf("all were served after %v", took)
	}
}
