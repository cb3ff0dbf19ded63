package etcdstore

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/etcdtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// The reply to each step is lost once, and a store that has only one member to send it to sends it again, or
// cleans up: nothing is granted twice, and nothing is left.
func TestLostReplies(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		for _, call := range []string{"Txn", "Range", "DeleteRange", "LeaseGrant", "LeaseKeepAlive", "Watch"} {
			for n := 1; n <= 3; n++ {
				t.Run(fmt.Sprintf("%s %d, silent %v", call, n, silent), func(t *testing.T) {
					t.Parallel()
					server, prefix := etcdtest.Shared(t), newPrefix()
					p := newProxy(t, server.Addr())
					c := connect(t, server.URL())
					other := open(t, c, WithPrefix(prefix))
					s := open(t, connect(t, p.address), WithPrefix(prefix), WithTimeout(testpace.Scale(500*time.Millisecond)))
					here, there := must(lock.New(s, "jobs")), must(lock.New(other, "jobs"))
					for range 2 { // with a lease that is there, and without
						p.lose(call, n, silent)
						lease, err := here.Lock(t.Context(), "k")
						if err != nil {
							if !errors.Is(err, store.ErrUnavailable) {
								t.Errorf("Lock: %v", err)
							}
							continue
						}
						if _, err := there.TryLock(t.Context(), "k"); !errors.Is(err, lock.ErrNotAcquired) {
							t.Errorf("another process has the lock, too: %v", err)
						}
						waits := make(chan error, 1)
						go func() {
							ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
							defer cancel()
							lease, err := there.Lock(ctx, "k")
							if err == nil {
								err = lease.Unlock(ctx)
							}
							waits <- err
						}()
						p.lose(call, n, silent)
						if err := lease.Unlock(t.Context()); err != nil && !errors.Is(err, store.ErrUnavailable) {
							t.Errorf("Unlock: %v", err)
						}
						if err := <-waits; err != nil {
							t.Errorf("a waiting process: %v", err)
						}
					}
					p.lose(call, 0, false)
					testpace.Eventually(t, 10*time.Second, "no entry is left", func() bool {
						reply, err := c.Get(t.Context(), prefix+"/l/", clientv3.WithPrefix(), clientv3.WithCountOnly())
						return err == nil && reply.Count == 0
					})
				})
			}
		}
	}
}

// A late acquire does nothing after the release of its request.
func TestLateAcquire(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), newPrefix()
	p := newProxy(t, server.Addr())
	c := connect(t, server.URL())
	s, other := open(t, connect(t, p.address), WithPrefix(prefix)), open(t, c, WithPrefix(prefix))
	warm := newRequest("k", 0)
	acquire(t, s, warm, store.Granted)
	release(t, s, warm)

	req := newRequest("k", 0)
	p.lose("Txn", 1, true)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.AcquireLease(ctx, req); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("AcquireLease without a reply: %v", err)
	}
	p.lose("Txn", 0, false)
	release(t, s, req)
	// What was sent arrives now, once more.
	path := s.path(req.Name, req.Key)
	e := newEntry(&req)
	e.at, e.base = path+req.ID, s.base.Load()
	late := &acquisition{store: other, op: opAcquire, path: path, req: &req, of: &request{}}
	on, err := other.leases.get(t.Context(), waits)
	if err != nil {
		t.Fatal(err)
	}
	found, err := late.put(t.Context(), &e, on, clientv3.Compare(clientv3.CreateRevision(e.at), "=", 0))
	if err != nil || found.wrote || !found.tombstone {
		t.Errorf("a late acquire after the release: %+v, %v", found, err)
	}
	if reply, err := s.AcquireLease(t.Context(), req); err != nil || reply.Outcome != store.Withdrawn {
		t.Errorf("an acquire after the release: %+v, %v", reply, err)
	}
	acquire(t, other, newRequest("k", 0), store.Granted)
}

// A process that gives up an acquire whose outcome it does not know, and does not even release it, leaves
// nothing behind.
func TestAnAbandonedAcquire(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), newPrefix()
	p := newProxy(t, server.Addr())
	c := connect(t, server.URL())
	s := open(t, connect(t, p.address), WithPrefix(prefix))
	warm := newRequest("k", 0)
	acquire(t, s, warm, store.Granted)
	release(t, s, warm)
	p.lose("Txn", 1, true)
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := s.AcquireLease(ctx, newRequest("k", 0)); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("AcquireLease without a reply: %v", err)
	}
	p.lose("Txn", 0, false)
	acquire(t, s, newRequest("other", 0), store.Granted) // keeps the process's lease alive
	testpace.Eventually(t, placeFor+2*time.Second, "it is gone", func() bool {
		reply, err := c.Get(t.Context(), s.path(store.LockKind+"n", "k"), clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && reply.Count == 0
	})
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
