package redisstore_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// slack is what a busy machine may add to a deadline.
var slack = testpace.Scale(400 * time.Millisecond)

func TestTheStoresDeadlineHoldsWhereTheClientsIsLonger(t *testing.T) {
	_, proxy, client, s := behindProxy(t, 5*time.Second, redisstore.WithTimeout(100*time.Millisecond))
	l, o := newLimiter(t, s), newOp("deadline")
	o.started(t, newStore(t, client))
	proxy.BlackHole()
	for name, do := range map[string]func() error{
		"take":    func() error { _, err := l.Allow(ctx(), "k"); return err },
		"begin":   func() error { _, err := o.begin(s); return err },
		"settle":  func() error { _, err := o.settle(s, ""); return err },
		"abandon": func() error { _, err := o.abandon(s); return err },
		"renew":   func() error { _, err := o.renew(s); return err },
		"ping":    func() error { return s.Ping(ctx()) },
	} {
		sent := time.Now()
		err := do()
		if took := time.Since(sent); took > 100*time.Millisecond+slack {
			t.Errorf("%s took %v", name, took)
		}
		// Whether the request was written depends on whether it found an open connection.
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestACallersDeadlineIsKept(t *testing.T) {
	_, proxy, _, s := behindProxy(t, 5*time.Second, redisstore.WithTimeout(20*time.Second))
	l := newLimiter(t, s)
	if _, err := l.Allow(ctx(), "k"); err != nil {
		t.Fatal(err)
	}
	proxy.BlackHole()
	sent := time.Now()
	short, cancel := context.WithTimeout(ctx(), 50*time.Millisecond)
	defer cancel()
	_, err := l.Allow(short, "k")
	if took := time.Since(sent); took < 50*time.Millisecond || took > 50*time.Millisecond+slack {
		t.Errorf("took %v of a context's 50ms", took)
	}
	wantUnavailable(t, err, true)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want the context's error in it", err)
	}
}

// A request that was not written by the deadline is not written later: its error does not match
// ErrUnconfirmed.
func TestAChargeThatWasNotSentInTimeIsNeverSent(t *testing.T) {
	testpace.Parallel(t)
	server, proxy, _, s := behindProxy(t, 5*time.Second, redisstore.WithTimeout(100*time.Millisecond))
	l := newLimiter(t, s)
	proxy.Delay(80 * time.Millisecond) // the client's HELLO alone takes longer than the deadline
	_, err := l.Allow(ctx(), "k")
	wantUnavailable(t, err, false)
	<-time.After(300 * time.Millisecond)
	if n := proxy.Seen("evalsha"); n != 0 { // a probe is an EVAL
		t.Errorf("sent %d times after its deadline", n)
	}
	if got := remaining(t, server.Client(), "k"); got != 100 {
		t.Errorf("%d tokens remain of 100", got)
	}
}

func TestConcurrentCallsInABlackHoleLeaveNothing(t *testing.T) {
	_, proxy, client, s := behindProxy(t, 5*time.Second, redisstore.WithTimeout(100*time.Millisecond))
	l := newLimiter(t, s)
	if _, err := newLimiter(t, newStore(t, client)).Allow(ctx(), "k"); err != nil {
		t.Fatal(err)
	}
	base := goroutines()
	proxy.BlackHole()
	var wg sync.WaitGroup
	sent := time.Now()
	for range 200 {
		wg.Go(func() {
			if _, err := l.Allow(ctx(), "k"); !errors.Is(err, store.ErrUnavailable) {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if took := time.Since(sent); took > 100*time.Millisecond+2*slack {
		t.Errorf("took %v", took)
	}
	// Calls without a connection have ended with their callers. There are at most as many others as
	// connections, each with a goroutine of the call, one that watches it, and those of the client.
	eventually(t, 2*time.Second, "three goroutines for each connection at most", func() bool {
		return goroutines() <= base+10*3+5
	})
	_ = s.Close()
	_ = client.Close()
	eventually(t, 3*time.Second, "the goroutines end", func() bool { return goroutines() <= base })
}
