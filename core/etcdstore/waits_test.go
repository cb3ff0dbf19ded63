package etcdstore

import (
	"context"
	"errors"
	"io"
	"net/http"
	"regexp"
	"strconv"
	"sync"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/testing/etcdtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// newRequest returns a request for the whole of a lock, or for a part of a semaphore of 4.
func newRequest(key string, weight int) store.LeaseRequest {
	req := store.LeaseRequest{
		Name: store.LockKind + "n", Key: key, ID: naming.NewID(), Weight: store.MaxCapacity, Capacity: store.MaxCapacity, Queue: true,
		TTL: 10 * time.Minute, Fences: 1,
	}
	if weight > 0 {
		req.Name, req.Weight, req.Capacity = store.SemaphoreKind+"n", weight, 4
	}
	return req
}

func acquire(t testing.TB, s *Store, req store.LeaseRequest, want store.AcquireOutcome) store.LeaseReply {
	t.Helper()
	reply, err := s.AcquireLease(context.Background(), req)
	if err != nil || reply.Outcome != want {
		t.Fatalf("AcquireLease: %+v, %v, want outcome %d", reply, err, want)
	}
	return reply
}

func release(t testing.TB, s *Store, req store.LeaseRequest) store.ReleaseOutcome {
	t.Helper()
	outcomes, err := s.ReleaseLeases(context.Background(), []store.LeaseRef{req.Ref(0)})
	if err != nil {
		t.Fatalf("ReleaseLeases: %v", err)
	}
	return outcomes[0]
}

type granted struct {
	grant store.Grant
	err   error
	at    time.Time
}

// await awaits a request, which was queued at a place.
func await(ctx context.Context, s *Store, req store.LeaseRequest) <-chan granted {
	done := make(chan granted, 1)
	go func() {
		grant, err := s.AwaitLease(ctx, req)
		done <- granted{grant, err, time.Now()}
	}()
	return done
}

func receive(t testing.TB, done <-chan granted, what string) granted {
	t.Helper()
	select {
	case g := <-done:
		if g.err != nil {
			t.Fatalf("%s: %v", what, g.err)
		}
		return g
	case <-time.After(testpace.Scale(30 * time.Second)):
		t.Fatalf("%s: not granted", what)
		return granted{}
	}
}

// A watch whose events do not arrive costs a beat.
func TestHungWatch(t *testing.T) {
	t.Parallel()
	for name, weight := range map[string]int{"lock": 0, "semaphore": 4} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server, prefix := etcdtest.Shared(t), WithPrefix(newPrefix())
			p := newProxy(t, server.Addr())
			holder, waiter := open(t, connect(t, server.URL()), prefix), open(t, connect(t, p.address), prefix)
			hold := newRequest("k", weight)
			acquire(t, holder, hold, store.Granted)
			for round := range 3 {
				next := newRequest("k", weight)
				next.Place = acquire(t, waiter, next, store.Queued).Place
				done := await(t.Context(), waiter, next)
				testpace.Eventually(t, 10*time.Second, "it watches", func() bool { return p.calls("Watch") > 0 })
				p.dropEvents(round == 0)
				<-time.After(100 * time.Millisecond) // a moment after the last beat
				released := time.Now()
				release(t, map[bool]*Store{true: holder, false: waiter}[round == 0], hold)
				if took := receive(t, done, "a waiter with a hung watch").at.Sub(released); took > testpace.Scale(1500*time.Millisecond) {
					t.Errorf("round %d: the waiter was granted after %v", round, took)
				}
				hold = next
			}
			if p.dropped == 0 && weight == 0 {
				t.Error("no event was dropped")
			}
		})
	}
}

// A compaction of the revision from which a watch is to continue does not delay its waiter.
func TestCompactionDuringAWait(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t) // compaction is of all prefixes
	c := connect(t, server.URL())
	p := newProxy(t, server.Addr())
	prefix := WithPrefix(newPrefix())
	holder, waiter := open(t, c, prefix), open(t, connect(t, p.address), prefix)
	hold, next, last := newRequest("k", 0), newRequest("k", 0), newRequest("k", 0)
	acquire(t, holder, hold, store.Granted)
	next.Place = acquire(t, holder, next, store.Queued).Place
	last.Place = acquire(t, waiter, last, store.Queued).Place
	first := await(t.Context(), holder, next)
	for range 20 { // revisions after what the waiter has read
		if _, err := c.Put(t.Context(), "other", ""); err != nil {
			t.Fatal(err)
		}
	}
	reply, err := c.Get(t.Context(), "other")
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Compact(t.Context(), reply.Header.Revision); err != nil {
		t.Fatal(err)
	}
	second := await(t.Context(), waiter, last) // its watch begins before the compaction
	release(t, holder, hold)
	receive(t, first, "the first waiter")
	released := time.Now()
	release(t, holder, next)
	if took := receive(t, second, "a waiter after a compaction").at.Sub(released); took > testpace.Scale(500*time.Millisecond) {
		t.Errorf("granted after %v", took)
	}
}

var watchers = regexp.MustCompile(`(?m)^etcd_debugging_mvcc_watcher_total (\d+)`)

// watchersOf returns how many watches a server has.
func watchersOf(t testing.TB, server *etcdtest.Server) int {
	t.Helper()
	reply, err := http.Get(server.URL() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = reply.Body.Close() }()
	text, err := io.ReadAll(reply.Body)
	if err != nil {
		t.Fatal(err)
	}
	found := watchers.FindSubmatch(text)
	if found == nil {
		t.Fatal("the server has no metric of watches")
	}
	n, _ := strconv.Atoi(string(found[1]))
	return n
}

// Waits that were given up leave nothing behind, and the waiting requests of a process for a key share a
// watch.
func TestGivenUpWaits(t *testing.T) {
	t.Parallel()
	waits, together := 500*rounds(), 500
	server, prefix := etcdtest.Start(t), newPrefix() // one whose watches are counted
	c := connect(t, server.URL())
	s := open(t, c, WithPrefix(prefix))
	l, err := lock.New(s, "jobs", lock.WithFair())
	if err != nil {
		t.Fatal(err)
	}
	hold, err := l.Lock(t.Context(), "k")
	if err != nil {
		t.Fatal(err)
	}
	most := 0
	for left := waits; left > 0; left -= together {
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for range together {
			all.Go(func() {
				if lease, err := l.Lock(ctx, "k"); err == nil {
					t.Error("a lock that is held was granted")
					_ = lease.Unlock(context.Background())
				}
			})
		}
		testpace.Eventually(t, 20*time.Second, "all wait", func() bool {
			state, err := s.InspectLease(t.Context(), store.LockKind+"jobs", "k")
			return err == nil && state.Waiting == together
		})
		most = max(most, watchersOf(t, server))
		cancel()
		all.Wait()
		testpace.Eventually(t, 20*time.Second, "all have left", func() bool {
			state, err := s.InspectLease(t.Context(), store.LockKind+"jobs", "k")
			return err == nil && state.Waiting == 0
		})
	}
	if most > 4 { // with that of the inbox, and one that is replaced by another
		t.Errorf("%d watches for the waiting requests of a process", most)
	}
	testpace.Eventually(t, 10*time.Second, "no watch is left but that of the inbox", func() bool { return watchersOf(t, server) <= 1 })
	if err := hold.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	reply, err := c.Get(t.Context(), prefix, clientv3.WithPrefix(), clientv3.WithKeysOnly())
	if err != nil || len(reply.Kvs) != 1 { // the base of fences
		t.Errorf("%d keys are left, %v: %v", len(reply.Kvs), err, reply.Kvs)
	}
}

// Waiting requests of one process for one key share one watch, also of locks that are awaited one by one.
func TestOneWatchForAKey(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	s := open(t, connect(t, server.URL()))
	for name, weight := range map[string]int{"lock": 0, "semaphore": 1} {
		hold := newRequest("k", weight)
		if weight > 0 {
			hold.Weight = hold.Capacity
		}
		reply := acquire(t, s, hold, store.Granted)
		if held, err := s.RenewLeases(t.Context(), []store.LeaseRef{hold.Ref(reply.Fence)}); err != nil || !held[0] {
			t.Fatal(held, err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var all []<-chan granted
		for range 1000 {
			req := newRequest("k", weight)
			req.Place = acquire(t, s, req, store.Queued).Place
			all = append(all, await(ctx, s, req))
		}
		before := watchersOf(t, server)
		if before > 3 { // and that of the inbox
			t.Errorf("%s: %d watches for 1,000 waiters", name, before)
		}
		cancel()
		for _, done := range all {
			if g := <-done; !errors.Is(g.err, context.Canceled) {
				t.Fatalf("%+v", g)
			}
		}
		testpace.Eventually(t, 10*time.Second, "the watch has ended", func() bool { return watchersOf(t, server) < before || before == 1 })
	}
}

// Two goroutines of one process exclude each other, and a place that the server has lost is queued anew at
// its number.
func TestALostPlace(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), newPrefix()
	c := connect(t, server.URL())
	s := open(t, c, WithPrefix(prefix))
	hold, first, second := newRequest("k", 0), newRequest("k", 0), newRequest("k", 0)
	acquire(t, s, hold, store.Granted)
	first.Place = acquire(t, s, first, store.Queued).Place
	second.Place = acquire(t, s, second, store.Queued).Place
	one, two := await(t.Context(), s, first), await(t.Context(), s, second)
	path := s.path(first.Name, first.Key)
	if _, err := c.Delete(t.Context(), path+first.ID); err != nil { // as the end of a lease does
		t.Fatal(err)
	}
	testpace.Eventually(t, 10*time.Second, "it is queued anew", func() bool {
		reply, err := c.Get(t.Context(), path+first.ID)
		return err == nil && len(reply.Kvs) == 1
	})
	release(t, s, hold)
	if g := receive(t, one, "a request that was queued anew"); g.grant.Place != first.Place {
		t.Errorf("place %d, granted %+v", first.Place, g.grant)
	}
	select {
	case g := <-two:
		t.Fatalf("granted beside the first: %+v", g)
	default:
	}
	last := acquire(t, s, first, store.Granted).LastFence
	release(t, s, first)
	if g := receive(t, two, "the second request"); g.grant.Fence <= last {
		t.Errorf("fence %d after %d, of a request that was queued anew before it", g.grant.Fence, last)
	}
}
