package zkstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/internal/testing/zktest"
)

// pair are the stores of two processes with the same nodes. The first one's connection goes through a
// proxy.
type pair struct {
	t             *testing.T
	server        string
	proxy         *faultproxy.Proxy
	behind, other *Store
}

func newPair(t *testing.T, opts ...Option) *pair {
	t.Helper()
	t.Parallel()
	p := &pair{t: t, server: zktest.Shared(t).Addr()}
	p.proxy = zktest.NewProxy(t, p.server)
	opts = append(opts, WithChroot(zktest.NewChroot()))
	p.behind, p.other = open(t, []string{p.proxy.Addr()}, opts...), open(t, []string{p.server}, opts...)
	for _, s := range []*Store{p.behind, p.other} {
		testpace.Eventually(t, patience, "the store is connected", func() bool { return s.Ping(t.Context()) == nil })
	}
	return p
}

// locker returns a locker on one of the stores.
func locker(t testing.TB, s *Store, opts ...lock.Option) *lock.Locker {
	t.Helper()
	l, err := lock.New(s, "locks", opts...)
	must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	return l
}

// state is the state of a key as the other store sees it.
func (p *pair) state(key string) store.LeaseState {
	p.t.Helper()
	state, err := p.other.InspectLease(p.t.Context(), store.LockKind+"locks", key)
	must(p.t, err)
	return state
}

// awaits waits until so many calls of a store await their requests.
func (p *pair) awaits(s *Store, n int) {
	p.t.Helper()
	testpace.Eventually(p.t, patience, "requests wait", func() bool {
		s.entries.mu.Lock()
		defer s.entries.mu.Unlock()
		waits := 0
		for _, k := range s.entries.keys {
			waits += len(k.awaited())
		}
		return waits == n
	})
}

// empty waits until nothing holds or waits for a key.
func (p *pair) empty(key string, within time.Duration) {
	p.t.Helper()
	testpace.Eventually(p.t, within, "nothing is left", func() bool {
		state := p.state(key)
		return state.InUse == 0 && state.Waiting == 0
	})
}

// patience is how long a test waits for what happens at once on an idle machine.
const patience = 30 * time.Second

// A holder whose session expires knows it before another process holds.
func TestSessionExpiresWhileHolding(t *testing.T) {
	p := newPair(t, WithSession(2*time.Second), WithTimeout(300*time.Millisecond))
	lease, err := locker(t, p.behind, lock.WithTTL(1600*time.Millisecond)).Lock(t.Context(), "k")
	must(t, err)
	next := make(chan time.Time, 1)
	go func() {
		lease, err := locker(t, p.other, lock.WithTTL(1600*time.Millisecond)).Lock(t.Context(), "k")
		next <- time.Now()
		if err != nil {
			t.Error(err)
			return
		}
		_ = lease.Unlock(context.Background())
	}()
	p.awaits(p.other, 1)
	p.proxy.BlackHole()
	p.proxy.CutAll()
	<-lease.Context().Done()
	ended, wall := time.Now(), time.Now().Round(0)
	if cause := context.Cause(lease.Context()); !errors.Is(cause, lock.ErrExpired) && !errors.Is(cause, lock.ErrLost) {
		t.Errorf("ended with %v", cause)
	}
	got := <-next
	if until := lease.ValidUntil(); !ended.Before(got) || !wall.Before(got.Round(0)) || !until.Before(got) {
		t.Errorf("the lease was valid until %v, its context ended at %v, and another process held at %v", until, ended, got)
	}
	if took := got.Sub(ended); took > testpace.Scale(5*time.Second) {
		t.Errorf("nothing held for %v", took)
	}
}

// A session that ends, while its connection works, ends the contexts of its holds at once.
func TestHoldsOfAnEndedSession(t *testing.T) {
	p := newPair(t)
	// Neither a renewal nor the end of its TTL ends it.
	lease, err := locker(t, p.behind, lock.WithoutRenewal(), lock.WithTTL(patience+time.Second)).Lock(t.Context(), "k")
	must(t, err)
	endSession(t, p.behind, p.server)
	select {
	case <-lease.Context().Done():
	case <-time.After(patience):
		t.Fatal("the lease has not ended")
	}
	if err := lease.Unlock(t.Context()); !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock: %v, want lock.ErrLost", err)
	}
	var again *lock.Lease
	testpace.Eventually(t, patience, "another session begins", func() bool {
		again, err = locker(t, p.behind).Lock(t.Context(), "k")
		return err == nil
	})
	if again.Fence().Number <= lease.Fence().Number {
		t.Errorf("fence %d after %d", again.Fence().Number, lease.Fence().Number)
	}
	must(t, again.Unlock(t.Context()))
}

// A request whose session has ended is queued anew at its place, and is not granted by what was
// learned before.
func TestSessionExpiresWhileWaiting(t *testing.T) {
	p := newPair(t)
	held, err := locker(t, p.other).Lock(t.Context(), "k")
	must(t, err)
	granted := make(chan *lock.Lease, 2)
	wait := func(s *Store) {
		lease, err := locker(t, s).Lock(t.Context(), "k")
		if err != nil {
			t.Error(err)
		}
		granted <- lease
	}
	go wait(p.behind)
	p.awaits(p.behind, 1)
	go wait(p.other)
	p.awaits(p.other, 1)
	before := p.behind.link.session()
	endSession(t, p.behind, p.server)
	testpace.Eventually(t, 5*time.Second, "the request is queued anew", func() bool { // on an idle machine in 0.2 s
		now := p.behind.link.session()
		state := p.state("k")
		return now != nil && now.id != before.id && state.Waiting == 2 && len(state.Holders) == 1
	})
	must(t, held.Unlock(t.Context()))
	first := <-granted
	if first.Fence().Number <= held.Fence().Number {
		t.Errorf("fence %d after %d", first.Fence().Number, held.Fence().Number)
	}
	must(t, first.Verify(t.Context()))
	must(t, first.Unlock(t.Context()))
	second := <-granted
	if second.Fence().Number <= first.Fence().Number {
		t.Errorf("fence %d after %d", second.Fence().Number, first.Fence().Number)
	}
	must(t, second.Unlock(t.Context()))
	p.empty("k", patience)
}

// A request that is queued anew leaves no second node behind if the reply to the creation of the first one
// is lost with its connection, after the call was given up.
func TestLostReplyWhileQueuedAnew(t *testing.T) {
	p := newPair(t, WithTimeout(testpace.Scale(time.Second)))
	held, err := locker(t, p.other).Lock(t.Context(), "k")
	must(t, err)
	granted := make(chan *lock.Lease, 1)
	go func() {
		lease, err := locker(t, p.behind).Lock(t.Context(), "k")
		if err != nil {
			t.Error(err)
		}
		granted <- lease
	}()
	p.awaits(p.behind, 1)
	created := p.proxy.Seen("create")
	p.proxy.LoseReplies("create", 1, faultproxy.Silence)
	endSession(t, p.behind, p.server)
	testpace.Eventually(t, patience, "the request is queued anew", func() bool {
		return p.proxy.Seen("create") > created && p.behind.Ping(t.Context()) == nil && p.state("k").Waiting > 0
	})
	must(t, held.Unlock(t.Context()))
	select {
	case lease := <-granted:
		must(t, lease.Unlock(t.Context()))
	case <-time.After(patience):
		t.Fatalf("a request waits for its own node: %+v", p.state("k"))
	}
	p.empty("k", patience)
}

// What waits in a process without a connection for longer than its session fails.
func TestWaitWithoutAConnection(t *testing.T) {
	p := newPair(t, WithSession(time.Second), WithTimeout(200*time.Millisecond))
	held, err := locker(t, p.other, lock.WithTTL(800*time.Millisecond)).Lock(t.Context(), "k")
	must(t, err)
	failed := make(chan error, 1)
	go func() {
		_, err := locker(t, p.behind, lock.WithTTL(800*time.Millisecond)).Lock(t.Context(), "k")
		failed <- err
	}()
	p.awaits(p.behind, 1)
	p.proxy.BlackHole()
	p.proxy.CutAll()
	select {
	case err := <-failed:
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%v, want store.ErrUnavailable", err)
		}
	case <-time.After(patience):
		t.Fatal("it waits for ever")
	}
	must(t, held.Unlock(t.Context()))
	p.proxy.Mend()
	p.empty("k", patience)
}

// A reconnection within the session loses nothing.
func TestReconnect(t *testing.T) {
	p := newPair(t)
	l, other := locker(t, p.behind), locker(t, p.other)
	held, err := l.Lock(t.Context(), "held")
	must(t, err)
	before, err := other.Lock(t.Context(), "k")
	must(t, err)
	granted := make(chan error, 1)
	go func() {
		lease, err := l.Lock(t.Context(), "k")
		if err == nil {
			err = lease.Unlock(context.Background())
		}
		granted <- err
	}()
	p.awaits(p.behind, 1)
	session := p.behind.link.session()
	for range 5 {
		p.proxy.CutAll()
		must(t, held.Verify(t.Context()))
		if now := p.behind.link.session(); now != session {
			t.Fatalf("session %x instead of %x", now.id, session.id)
		}
		if state := p.state("k"); state.Waiting != 1 || len(state.Holders) != 1 {
			t.Fatalf("%+v", state)
		}
	}
	p.proxy.BlackHole() // the event of the release is lost with the connection
	p.proxy.CutAll()
	must(t, before.Unlock(t.Context()))
	p.proxy.Mend()
	must(t, <-granted)
	must(t, held.Unlock(t.Context()))
	p.empty("k", patience)
	p.empty("held", patience)
}

// A connection whose server does not reply is given up for another server's after the timeout, and
// not after two thirds of the session.
func TestSilentServer(t *testing.T) {
	p := newPair(t)
	s := open(t, []string{p.proxy.Addr(), p.server}, WithTimeout(500*time.Millisecond), WithChroot(zktest.NewChroot()))
	testpace.Eventually(t, patience, "the store is connected", func() bool { return s.Ping(t.Context()) == nil })
	for range 2 { // whichever server it has
		p.proxy.Strand()
		began := time.Now()
		testpace.Eventually(t, 5*time.Second, "the next server replies", func() bool { return s.Ping(t.Context()) == nil })
		if took := time.Since(began); took > testpace.Scale(5*time.Second) {
			t.Errorf("it took %v", took)
		}
		p.proxy.Mend()
	}
}
