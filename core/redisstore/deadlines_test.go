package redisstore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// Calls with a context that never ends have no goroutine of their own with such a client.
func TestCallsWithoutACancelableContextEndAtTheStoresDeadline(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := obedient(t, proxy.Addr(), 10)
	s, patient := newStore(t, client, redisstore.WithTimeout(100*time.Millisecond)), newStore(t, client)
	c := newClaim("k", "holder")
	c.gets(t, patient, store.Granted)
	proxy.BlackHole()
	for range 3 {
		sent := time.Now()
		_, err := c.release(s)
		if took := time.Since(sent); took < 50*time.Millisecond || took > 100*time.Millisecond+slack {
			t.Errorf("took %v of 100ms", took)
		}
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
	}
	_, err := newClaim("other", "other").acquire(s)
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("got %v", err)
	}
	proxy.Mend()
	eventually(t, 3*time.Second, "it works again", func() bool {
		held, err := c.verify(s)
		return err == nil && held
	})
	c.ends(t, patient, true)
}

// All calls wait for the one connection, which waits for a reply.
func TestCallsThatWaitForAConnectionEndAtTheStoresDeadline(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := obedient(t, proxy.Addr(), 1)
	s := newStore(t, client, redisstore.WithTimeout(100*time.Millisecond))
	c := newClaim("k", "holder")
	c.gets(t, newStore(t, client), store.Granted)
	base := goroutines()
	proxy.BlackHole()
	var wg sync.WaitGroup
	sent := time.Now()
	for range 20 {
		wg.Go(func() {
			if _, err := c.release(s); !errors.Is(err, store.ErrUnavailable) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(sent); took > 100*time.Millisecond+slack {
		t.Errorf("took %v", took)
	}
	eventually(t, 2*time.Second, "the goroutines end", func() bool { return goroutines() <= base+2 })
}

// The timer that such calls share ends each of them at its own deadline.
func TestDeadlinesOfOverlappingCalls(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := obedient(t, proxy.Addr(), 50)
	const timeout = 400 * time.Millisecond
	s := newStore(t, client, redisstore.WithTimeout(timeout))
	c := newClaim("k", "holder")
	c.gets(t, newStore(t, client), store.Granted)
	proxy.BlackHole()
	var wg sync.WaitGroup
	began := time.Now()
	for i := range 30 {
		wg.Go(func() {
			<-time.After(time.Duration(i) * 5 * time.Millisecond)
			sent := time.Now()
			_, err := c.release(s)
			took := time.Since(sent)
			// The first one's end may end others: it shows that the connections are dead.
			if !errors.Is(err, store.ErrUnavailable) || took > timeout+slack || time.Since(began) < timeout*9/10 {
				t.Errorf("%v after %v", err, took)
			}
		})
	}
	wg.Wait()
}

func TestACallThatWaitsForAConnectionEndsWithItsCaller(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := obedient(t, proxy.Addr(), 1)
	s := newStore(t, client, redisstore.WithTimeout(5*time.Second))
	c := newClaim("k", "holder")
	c.gets(t, s, store.Granted)
	proxy.BlackHole()
	var wg sync.WaitGroup
	wg.Go(func() { _, _ = c.release(s) }) // it has the one connection until the proxy is mended
	eventually(t, 5*time.Second, "the connection is in use", func() bool { return client.PoolStats().IdleConns == 0 })
	within, cancel := context.WithCancel(ctx())
	sent := time.Now()
	time.AfterFunc(50*time.Millisecond, cancel)
	_, err := s.AcquireLease(within, newClaim("other", "other").LeaseRequest)
	if took := time.Since(sent); took > 50*time.Millisecond+slack || !errors.Is(err, context.Canceled) {
		t.Errorf("%v after %v", err, took)
	}
	proxy.Mend()
	_ = client.Close()
	wg.Wait()
}
