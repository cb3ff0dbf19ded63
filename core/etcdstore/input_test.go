package etcdstore

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/etcdtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestNewOfBadSettings(t *testing.T) {
	t.Parallel()
	c, nowhere := connect(t, "127.0.0.1:1"), connect(t, "127.0.0.1:1")
	nowhere.SetEndpoints()
	for name, of := range map[string]struct {
		c    *clientv3.Client
		opts []Option
	}{
		"nil client":      {nil, nil},
		"no endpoints":    {nowhere, nil},
		"no prefix":       {c, []Option{WithPrefix("")}},
		"a long prefix":   {c, []Option{WithPrefix(strings.Repeat("x", 257))}},
		"prefix with /":   {c, []Option{WithPrefix("locks/")}},
		"a short timeout": {c, []Option{WithTimeout(time.Millisecond)}},
		"a long timeout":  {c, []Option{WithTimeout(time.Hour)}},
	} {
		if s, err := New(of.c, of.opts...); err == nil || s != nil || !strings.HasPrefix(err.Error(), "etcdstore: New: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	open(t, c, nil, WithLogger(nil), WithMeterProvider(nil))
}

// A server that is not there is an outage within the timeout, and then at once.
func TestWrongPort(t *testing.T) {
	t.Parallel()
	s := open(t, connect(t, "127.0.0.1:1"), WithTimeout(time.Second))
	l := must(lock.New(s, "jobs"))
	for range 3 {
		began := time.Now()
		_, err := l.Lock(t.Context(), "k")
		if !store.Down(err) || errors.Is(err, store.ErrUnconfirmed) || store.CauseOf(err) != store.ConnectionRefused {
			t.Errorf("Lock: %v, cause %s", err, store.CauseOf(err))
		}
		if took := time.Since(began); took > testpace.Scale(2*time.Second) {
			t.Errorf("Lock returned after %v", took)
		}
	}
	testpace.Eventually(t, 5*time.Second, "the breaker opens", s.breaker.IsOpen)
	if _, err := s.Check(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Check: %v", err)
	}
}

// Users with a wrong password, and without rights on the prefix.
func TestRights(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	c := connect(t, server.URL())
	ctx := t.Context()
	for _, err := range []error{
		second(c.UserAdd(ctx, "root", "secret")), second(c.UserGrantRole(ctx, "root", "root")),
		second(c.RoleAdd(ctx, "locks")), second(c.UserAdd(ctx, "other", "secret")),
		second(c.RoleGrantPermission(ctx, "locks", "mine/", clientv3.GetPrefixRangeEnd("mine/"), clientv3.PermissionType(clientv3.PermReadWrite))),
		second(c.UserAdd(ctx, "app", "secret")), second(c.UserGrantRole(ctx, "app", "locks")), second(c.AuthEnable(ctx)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	as := func(user, password string) (*clientv3.Client, error) {
		return clientv3.New(clientv3.Config{
			Endpoints: []string{server.URL()}, Username: user, Password: password, DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
		})
	}
	for name, of := range map[string]struct {
		user, password, prefix string
		want                   error
		cause                  store.Cause
	}{
		"with rights":        {"app", "secret", "mine", nil, ""},
		"another prefix":     {"app", "secret", "others", store.ErrMisconfigured, store.Permission},
		"no rights":          {"other", "secret", "mine", store.ErrMisconfigured, store.Permission},
		"a wrong password":   {"app", "wrong", "mine", store.ErrMisconfigured, store.Authentication},
		"a user without one": {"", "", "mine", store.ErrMisconfigured, store.Authentication},
	} {
		client, err := as(of.user, of.password)
		if err != nil { // clients before 3.7 ask for their token here
			if of.cause != store.Authentication {
				t.Errorf("%s: %v", name, err)
			}
			continue
		}
		s := open(t, client, WithPrefix(of.prefix), WithTimeout(2*time.Second))
		l := must(lock.New(s, "jobs"))
		lease, err := l.Lock(ctx, "k")
		if of.want == nil && err == nil {
			err = lease.Unlock(ctx)
		}
		if !errors.Is(err, of.want) || of.want != nil && (store.CauseOf(err) != of.cause || store.Down(err)) {
			t.Errorf("%s: %v, cause %s", name, err, store.CauseOf(err))
		}
		if of.want == nil {
			if found, err := s.Check(ctx); err != nil {
				t.Errorf("%s: Check: %v, %v", name, found, err)
			}
		}
		_ = client.Close()
	}
}

func second[T any](_ T, err error) error { return err }

func TestAnOldServer(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, func(c *config) { c.oldest = [2]int{99, 0} })
	l := must(lock.New(s, "jobs"))
	_, err := l.Lock(t.Context(), "k")
	if !errors.Is(err, store.ErrMisconfigured) || store.CauseOf(err) != store.WrongServer || !strings.Contains(err.Error(), "update it") {
		t.Errorf("Lock: %v", err)
	}
	if _, err := s.CountDownLatch(t.Context(), store.LatchRequest{Name: "l", Count: 1, TTL: time.Minute}, "a"); !errors.Is(err, store.ErrMisconfigured) {
		t.Errorf("CountDownLatch: %v", err)
	}
}

// A client that is closed under the store is an outage.
func TestClosedClient(t *testing.T) {
	t.Parallel()
	c := connect(t, etcdtest.Shared(t).URL())
	s := open(t, c, WithPrefix(newPrefix()), WithTimeout(time.Second))
	l := must(lock.New(s, "jobs"))
	lease := must(l.Lock(t.Context(), "k"))
	waits := make(chan error, 1)
	go func() {
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		_, err := must(lock.New(s, "jobs", lock.WithFair())).Lock(ctx, "k")
		waits <- err
	}()
	testpace.Eventually(t, 5*time.Second, "a waiter", func() bool {
		state, err := s.InspectLease(t.Context(), store.LockKind+"jobs", "k")
		return err == nil && state.Waiting == 1
	})
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := l.Lock(t.Context(), "other"); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Lock: %v", err)
	}
	if err := lease.Unlock(t.Context()); err != nil && !errors.Is(err, store.ErrUnavailable) && !errors.Is(err, lock.ErrLost) && !errors.Is(err, lock.ErrExpired) {
		t.Errorf("Unlock: %v", err)
	}
	if err := <-waits; !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a waiting Lock: %v", err)
	}
	if err := s.Ping(t.Context()); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("Ping: %v", err)
	}
}

// Names and keys of any bytes, with and without a secret, which hides them.
func TestNamesAndKeys(t *testing.T) {
	t.Parallel()
	server := etcdtest.Shared(t)
	for _, secret := range []string{"", "secret"} {
		prefix := newPrefix()
		c := connect(t, server.URL())
		s := open(t, c, WithPrefix(prefix), WithSecret([]byte(secret)))
		name := "n/\x00\xff" + strings.Repeat("n", 1000)
		key := "customer/\x00\xff" + strings.Repeat("k", 1000)
		req := newRequest(key, 0)
		req.Name = store.LockKind + name
		reply := acquire(t, s, req, store.Granted)
		found := 0
		for state, err := range s.ListLeases(t.Context(), req.Name) {
			if found++; err != nil || (state.Key == key) != (secret == "") || state.Holders[0].Fence != reply.Fence {
				t.Errorf("secret %q: %+v, %v", secret, state, err)
			}
		}
		if found != 1 {
			t.Errorf("%d keys", found)
		}
		all, err := c.Get(t.Context(), prefix, clientv3.WithPrefix())
		if err != nil {
			t.Fatal(err)
		}
		for _, kv := range all.Kvs {
			if has := strings.Contains(string(kv.Value)+string(kv.Key), "customer"); has && secret != "" {
				t.Errorf("the key is in etcd: %q", kv.Value)
			}
		}
		release(t, s, req)
	}
}

// Semaphores with reserves, between processes.
func TestReserves(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), WithPrefix(newPrefix())
	one := must(semaphore.New(open(t, connect(t, server.URL()), prefix), "calls", 4))
	two := must(semaphore.New(open(t, connect(t, server.URL()), prefix), "calls", 4))
	low := must(two.With(semaphore.WithReserve(2)))
	ctx := t.Context()
	all := must(one.AcquireN(ctx, "k", 4))
	done := make(chan string, 2)
	var permits [2]*semaphore.Permit
	go func() { permits[0] = must(low.AcquireN(context.Background(), "k", 1)); done <- "low" }()
	waiting := func(n int) {
		testpace.Eventually(t, 5*time.Second, "they wait", func() bool {
			state, err := one.Inspect(ctx, "k")
			return err == nil && state.Waiting == n
		})
	}
	waiting(1)
	go func() { permits[1] = must(one.AcquireN(context.Background(), "k", 2)); done <- "high" }()
	waiting(2)
	if err := all.Release(ctx); err != nil {
		t.Fatal(err)
	}
	if first := <-done; first != "high" {
		t.Errorf("%s is first", first)
	}
	if err := permits[1].Release(ctx); err != nil {
		t.Error(err)
	}
	if second := <-done; second != "low" {
		t.Errorf("%s is second", second)
	}
	if err := permits[0].Release(ctx); err != nil {
		t.Error(err)
	}
}

// Entries with a reserve stay as short as they are, however many are granted while others of them hold.
func TestEntriesWithReservesStayShort(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), newPrefix()
	c := connect(t, server.URL())
	s := open(t, c, WithPrefix(prefix))
	size := func(req store.LeaseRequest) int {
		t.Helper()
		reply, err := c.Get(t.Context(), s.path(req.Name, req.Key)+req.ID)
		if err != nil || len(reply.Kvs) != 1 {
			t.Fatalf("%+v, %v", reply, err)
		}
		return len(reply.Kvs[0].Value)
	}
	var before store.LeaseRequest
	first := 0
	for n := range 100 {
		req := newRequest("k", 1)
		req.Reserve = 1
		acquire(t, s, req, store.Granted)
		switch now := size(req); {
		case n == 1:
			first = now
		case n > 1 && now > first+4: // a number in it may have got longer
			t.Fatalf("entry %d has %d bytes, and the second one %d", n, now, first)
		}
		if n > 0 {
			release(t, s, before)
		}
		before = req
	}
	release(t, s, before)
}
