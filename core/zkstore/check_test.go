package zkstore

import (
	"context"
	"errors"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/internal/testing/zktest"
)

// found reports whether Check finds something with these words.
func found(t *testing.T, s *Store, words string) (store.Finding, bool) {
	t.Helper()
	findings, err := s.Check(t.Context())
	must(t, err)
	for _, f := range findings {
		if strings.Contains(f.Found, words) && f.Weakens != "" && f.Remedy != "" {
			return f, true
		}
	}
	return store.Finding{}, false
}

func TestCheck(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	if _, ok := found(t, s, "single server"); !ok {
		t.Error("a single server is not found")
	}
	if f, ok := found(t, s, "session"); ok {
		t.Errorf("found %v", f)
	}
	if f, ok := found(t, newTestStore(t, WithSession(5*time.Minute)), "4m0s"); !ok || !strings.Contains(f.Remedy, "maxSessionTimeout") {
		t.Errorf("a session below what was asked for: %v", f)
	}
	if _, ok := found(t, s, "containers"); ok {
		t.Error("containers are not found on a server that has them")
	}
}

// A server that does not know containers is found, and named by the first call.
func TestNoContainers(t *testing.T) {
	t.Parallel()
	s := open(t, []string{oldServer(t, zktest.Shared(t).Addr())}, WithChroot(zktest.NewChroot()))
	if f, ok := found(t, s, "containers"); !ok || f.Refused != store.WrongServer || !strings.Contains(f.Remedy, "3.5.3") {
		t.Errorf("found %+v", f)
	}
	_, err := locker(t, s).Lock(t.Context(), "k")
	if !errors.Is(err, store.ErrMisconfigured) || store.CauseOf(err) != store.WrongServer || !strings.Contains(err.Error(), "3.5.3") {
		t.Errorf("Lock: %v", err)
	}
}

// Stores that reach no server, or one that refuses them, say so in time.
func TestBadServers(t *testing.T) {
	t.Parallel()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	refusing := closed.Addr().String()
	must(t, closed.Close())
	other, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = other.Close() })
	go func() {
		for {
			conn, err := other.Accept()
			if err != nil {
				return
			}
			_, _ = fmt.Fprint(conn, "HTTP/1.0 400 Bad Request\r\n\r\n")
			_ = conn.Close()
		}
	}()
	silent, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	t.Cleanup(func() { _ = silent.Close() })
	real := zktest.Shared(t).Addr()
	for name, c := range map[string]struct {
		servers []string
		opts    []Option
		want    error
		text    string
	}{
		"refused":       {[]string{refusing}, nil, store.ErrUnavailable, "refused"},
		"unknown host":  {[]string{"no-such-host.invalid:2181"}, nil, store.ErrUnavailable, "no-such-host"},
		"silent":        {[]string{silent.Addr().String()}, nil, store.ErrUnavailable, "no connection"},
		"another kind":  {[]string{other.Addr().String()}, nil, store.ErrMisconfigured, "no ZooKeeper server"},
		"unknown login": {[]string{real}, []Option{WithAuth("no-such-scheme", []byte("x"))}, store.ErrMisconfigured, "WithAuth"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			const timeout = 500 * time.Millisecond
			s, err := New(c.servers, append([]Option{WithTimeout(timeout)}, c.opts...)...)
			must(t, err)
			defer func() { _ = s.Close() }()
			if name == "another kind" { // the first attempt may not be over
				testpace.Eventually(t, patience, "the first connection has failed", func() bool { return s.link.lastFailure() != nil })
			}
			l, err := lock.New(s, "locks")
			must(t, err)
			began := time.Now()
			_, err = l.Lock(t.Context(), "k")
			if took := time.Since(began); took > testpace.Scale(4*timeout) {
				t.Errorf("it took %v", took)
			}
			if !errors.Is(err, c.want) || !strings.Contains(err.Error(), c.text) {
				t.Errorf("Lock: %v", err)
			}
			if err := s.Ping(t.Context()); !errors.Is(err, c.want) {
				t.Errorf("Ping: %v", err)
			}
			if _, err := s.Check(t.Context()); !errors.Is(err, c.want) {
				t.Errorf("Check: %v", err)
			}
		})
	}
}

// Nodes belong to the store's credentials: others have no rights.
func TestRights(t *testing.T) {
	t.Parallel()
	chroot := WithChroot(zktest.NewChroot())
	addresses := []string{zktest.Shared(t).Addr()}
	s := open(t, addresses, chroot, WithAuth("digest", []byte("app:secret")))
	lease, err := locker(t, s).Lock(t.Context(), "k")
	must(t, err)
	same := open(t, addresses, chroot, WithAuth("digest", []byte("app:secret")))
	if _, err := locker(t, same).TryLock(t.Context(), "k"); !errors.Is(err, lock.ErrNotAcquired) {
		t.Errorf("with the same credentials: %v", err)
	}
	for name, opts := range map[string][]Option{"none": nil, "wrong": {WithAuth("digest", []byte("app:wrong"))}} {
		other := open(t, addresses, append(opts, chroot)...)
		_, err := locker(t, other).TryLock(t.Context(), "k")
		if !errors.Is(err, store.ErrMisconfigured) || store.CauseOf(err) != store.Permission || !strings.Contains(err.Error(), "WithAuth") {
			t.Errorf("%s: %v", name, err)
		}
	}
	_ = s.link.present().Close() // the client sends the credentials again
	must(t, lease.Verify(t.Context()))
	must(t, lease.Unlock(t.Context()))
}

func TestBadOptions(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		servers []string
		opts    []Option
	}{
		"no server":     {nil, nil},
		"no address":    {[]string{"zk:21:81"}, nil},
		"short session": {[]string{"zk:2181"}, []Option{WithSession(time.Millisecond)}},
		"long session":  {[]string{"zk:2181"}, []Option{WithSession(time.Hour)}},
		"timeout":       {[]string{"zk:2181"}, []Option{WithTimeout(0)}},
		"chroot":        {[]string{"zk:2181"}, []Option{WithChroot("apps")}},
		"chroot's end":  {[]string{"zk:2181"}, []Option{WithChroot("/apps/")}},
		"chroot's dots": {[]string{"zk:2181"}, []Option{WithChroot("/apps/../x")}},
		"no prefix":     {[]string{"zk:2181"}, []Option{WithPrefix("")}},
		"prefix":        {[]string{"zk:2181"}, []Option{WithPrefix("a/b")}},
		"scheme":        {[]string{"zk:2181"}, []Option{WithAuth("", nil)}},
	} {
		if s, err := New(c.servers, c.opts...); err == nil || !strings.HasPrefix(err.Error(), "zkstore: New: ") {
			t.Errorf("%s: %v", name, err)
			if s != nil {
				_ = s.Close()
			}
		}
	}
}

// A TTL that the session does not cover is refused with the session's length, and a reserve is not
// supported.
func TestUnsupportedRequests(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, WithSession(10*time.Second))
	for _, opts := range [][]lock.Option{{lock.WithTTL(9 * time.Second)}, {lock.WithTTL(7 * time.Second), lock.WithLockDelay(2 * time.Second)}} {
		_, err := locker(t, s, opts...).Lock(t.Context(), "k")
		if !errors.Is(err, store.ErrMisconfigured) || !strings.Contains(err.Error(), "session of 10s") {
			t.Errorf("%v", err)
		}
	}
	lease, err := locker(t, s, lock.WithTTL(8*time.Second)).Lock(t.Context(), "k")
	must(t, err)
	must(t, lease.Unlock(t.Context()))
	sem, err := semaphore.New(s, "permits", 4, semaphore.WithTTL(time.Second), semaphore.WithReserve(1))
	must(t, err)
	if _, err := sem.Acquire(t.Context(), "k"); !errors.Is(err, store.ErrNotSupported) || !errors.Is(err, errors.ErrUnsupported) {
		t.Errorf("a request with a reserve: %v", err)
	}
}

// A queue has at most as many requests as one of them says, of several processes too.
func TestQueueIsBounded(t *testing.T) {
	p := newPair(t)
	held, err := locker(t, p.other).Lock(t.Context(), "k")
	must(t, err)
	request := func(s *Store, id string, most int) store.AcquireOutcome {
		t.Helper()
		reply, err := s.AcquireLease(t.Context(), store.LeaseRequest{
			Name: store.LockKind + "locks", Key: "k", ID: id, Weight: store.MaxCapacity, Capacity: store.MaxCapacity, Queue: true,
			MaxWaiting: most, TTL: time.Second, Fences: 1,
		})
		must(t, err)
		if reply.QueueFull != (reply.Outcome == store.Taken) {
			t.Errorf("%+v", reply)
		}
		return reply.Outcome
	}
	for i, want := range []store.AcquireOutcome{store.Queued, store.Queued, store.Taken} {
		if got := request([]*Store{p.behind, p.other}[i%2], fmt.Sprint("id", i), 2); got != want {
			t.Errorf("request %d: outcome %d, want %d", i, got, want)
		}
	}
	if n := p.state("k").Waiting; n != 2 {
		t.Errorf("%d wait", n)
	}
	must(t, held.Unlock(t.Context()))
}

// A connection that the caller has closed under the store makes calls fail, and no more.
func TestClosedConnection(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, WithTimeout(300*time.Millisecond))
	testpace.Eventually(t, patience, "the store is connected", func() bool { return s.Ping(t.Context()) == nil })
	l := locker(t, s)
	lease, err := l.Lock(t.Context(), "k")
	must(t, err)
	s.Conn().Close()
	for range 3 {
		if _, err := l.Lock(t.Context(), "other"); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("Lock: %v", err)
		}
	}
	if err := lease.Unlock(t.Context()); err != nil && !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, lock.ErrLost) {
		t.Errorf("Unlock: %v", err)
	}
}

// Close ends the session, so that nothing of the process is left, unless a lease is held: that lasts
// as long as its session.
func TestClose(t *testing.T) {
	p := newPair(t, WithSession(3*time.Second))
	ttl := lock.WithTTL(2 * time.Second)
	l, err := lock.New(p.behind, "locks", ttl)
	must(t, err)
	lease, err := l.Lock(t.Context(), "k")
	must(t, err)
	if err := p.behind.Close(); err == nil {
		t.Error("Close of a store whose lease is held")
	}
	began := time.Now()
	next, err := locker(t, p.other, ttl).Lock(t.Context(), "k")
	must(t, err)
	if now := time.Now(); now.Before(lease.ValidUntil()) {
		t.Errorf("granted again after %v, and valid until %v", now.Sub(began), lease.ValidUntil().Sub(began))
	}
	must(t, next.Unlock(t.Context()))
	_, err = l.Lock(context.Background(), "k")
	if !errors.Is(err, store.ErrClosed) {
		t.Errorf("Lock on a closed store: %v", err)
	}
}

// Nodes do not show keys if there is a secret, which listings then do not, either.
func TestSecret(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, WithSecret([]byte("a secret")))
	lease, err := locker(t, s).Lock(t.Context(), "user@example.com")
	must(t, err)
	listed := 0
	for state, err := range s.ListLeases(t.Context(), store.LockKind+"locks") {
		must(t, err)
		if listed++; strings.Contains(state.Key, "user") || state.InUse == 0 {
			t.Errorf("%+v", state)
		}
	}
	data, _, err := s.Conn().Get(s.placeOf(store.LockKind+"locks", "user@example.com").path)
	if err != nil || len(data) != 0 || listed != 1 {
		t.Errorf("%q, %v, %d listed", data, err, listed)
	}
	must(t, lease.Unlock(t.Context()))
}
