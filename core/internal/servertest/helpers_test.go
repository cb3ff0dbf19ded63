// Package servertest tests mechanisms with real servers and processes: crashes, silences and
// failovers of servers, processes that are stopped and killed, clocks that step, and the contention
// of several processes. These tests wait for seconds, and need redis-server. They are apart from the
// mechanisms' own packages, whose tests need no server, and last for a moment.
package servertest

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestMain(m *testing.M) {
	testpace.InShort("^TestShutdownOf")
	leaktest.Main(m, redistest.Redialing)
}

// patience is the timeout of calls to servers that reply, if late: the machine may be busy.
const patience = 10 * time.Second

// connect returns a client with patience.
func connect(t *testing.T, addr string) *redis.Client {
	t.Helper()
	client := redis.NewClient(patiently(addr))
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func patiently(addr string) *redis.Options {
	return &redis.Options{
		ContextTimeoutEnabled: true, Addr: addr, DialTimeout: patience, ReadTimeout: patience, WriteTimeout: patience,
	}
}

// newStore returns a store with patience, unless an option sets another timeout.
func newStore(t *testing.T, client redis.UniversalClient, opts ...redisstore.Option) *redisstore.Store {
	t.Helper()
	st := must(redisstore.New(client, append([]redisstore.Option{redisstore.WithTimeout(patience)}, opts...)...))
	t.Cleanup(func() { _ = st.Close() })
	return st
}

func newLocker(t *testing.T, st store.Leases, opts ...lock.Option) *lock.Locker {
	t.Helper()
	l := must(lock.New(st, "test", opts...))
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// peer is a Locker with its own store and connections, as of another process.
type peer struct {
	*lock.Locker
	store  *redisstore.Store
	client *redis.Client
}

func newPeer(t *testing.T, server *redistest.Server, opts ...lock.Option) peer {
	t.Helper()
	client := connect(t, server.Addr())
	st := newStore(t, client)
	return peer{newLocker(t, st, opts...), st, client}
}

// die ends a peer as the death of its process does: it releases nothing.
func (p peer) die() {
	_ = p.client.Close() // first, so that the store cannot release its leases
	_ = p.store.Close()
}

func mustLock(t *testing.T, l *lock.Locker, key string) *lock.Lease {
	t.Helper()
	lease, err := l.Lock(t.Context(), key)
	if err != nil {
		t.Fatalf("Lock: %v", err)
	}
	return lease
}

// insistOn repeats a request whose timeout or lease is so short that the reply may come too late if
// the machine is busy.
func insistOn(t *testing.T, l *lock.Locker, key string) (lease *lock.Lease) {
	t.Helper()
	eventually(t, "the lock is acquired", func() (acquired bool) {
		var err error
		lease, err = l.Lock(t.Context(), key)
		return err == nil
	})
	return lease
}

func mustUnlock(t *testing.T, lease *lock.Lease) {
	t.Helper()
	ok(t, lease.Unlock(t.Context()))
}

// hold is a lease or a permit.
type hold interface{ Context() context.Context }

// wantEnded checks that the context of a hold has ended, and its cause.
func wantEnded(t *testing.T, h hold, cause error) {
	t.Helper()
	if ctx := h.Context(); ctx.Err() == nil || !errors.Is(context.Cause(ctx), cause) {
		t.Errorf("the context of the hold: %v because of %v, want %v", ctx.Err(), context.Cause(ctx), cause)
	}
}

func wantValid(t *testing.T, h hold) {
	t.Helper()
	if h.Context().Err() != nil {
		t.Errorf("the context of the hold has ended: %v", context.Cause(h.Context()))
	}
}

// within is how long a test waits for an event.
const within = time.Minute

func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	testpace.Eventually(t, within, what, ok)
}

// lateness measures how late the machine is until the test ends: the longest time between two
// replies of a server to this process, less the pause between them. It returns by how much a gap may
// be longer for that: five times as much so far, since a gap is a sequence of calls and wake-ups.
func lateness(t *testing.T, server *redistest.Server) (allowed func() time.Duration) {
	t.Helper()
	const pause = 10 * time.Millisecond
	client := connect(t, server.Addr())
	var longest atomic.Int64
	end, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for last := time.Now(); ; {
			select {
			case <-time.After(pause):
			case <-end:
				return
			}
			_ = client.Ping(context.Background()).Err()
			now := time.Now()
			longest.Store(max(longest.Load(), int64(now.Sub(last)-pause)))
			last = now
		}
	}()
	t.Cleanup(func() {
		close(end)
		<-ended
		t.Logf("the machine was late by up to %v", time.Duration(longest.Load()))
	})
	return func() time.Duration { return time.Duration(5 * longest.Load()) }
}

// must returns v, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// ok fails the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
