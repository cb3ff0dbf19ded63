package redisstore_test

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// durable are settings of a server in which Check finds nothing.
var durable = []string{"--appendonly", "yes", "--appendfsync", "always"}

// wantFindings checks that Check finds these, in this order.
func wantFindings(t testing.TB, s *redisstore.Store, texts ...string) []store.Finding {
	t.Helper()
	found, err := s.Check(ctx())
	if err != nil || len(found) != len(texts) {
		t.Fatalf("found %v, %v; want %q", found, err, texts)
	}
	for i, text := range texts {
		if f := found[i]; !strings.Contains(f.String(), text) || f.Weakens == "" || f.Remedy == "" {
			t.Errorf("%v does not say %q", f, text)
		}
	}
	return found
}

// wantTasks checks that findings name what happens to tasks.
func wantTasks(t testing.TB, found []store.Finding) {
	t.Helper()
	for _, f := range found {
		if !strings.Contains(f.Weakens, "task") {
			t.Errorf("%v does not name tasks", f)
		}
	}
}

func TestCheck(t *testing.T) {
	server := redistest.Start(t, durable...)
	proxy := redistest.NewProxy(t, server.Addr())
	client := func(addr string, idle int) *redis.Client {
		c := redis.NewClient(&redis.Options{Addr: addr, MinIdleConns: idle, ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	near, far := client(server.Addr(), 0), client(proxy.Addr(), 0)
	wantFindings(t, newStore(t, near))
	proxy.Delay(100 * time.Millisecond)
	found := wantFindings(t, newStore(t, far, hasty), "Set redisstore.WithTimeout to ", "MinIdleConns")
	_, advice, _ := strings.Cut(found[0].String(), "Set redisstore.WithTimeout to ")
	advice, _, _ = strings.Cut(advice, " ")
	if timeout, err := time.ParseDuration(advice); err != nil || timeout < 400*time.Millisecond {
		t.Errorf("%v advises %q, want at least four times the 100 ms", found[0], advice)
	}
	wantFindings(t, newStore(t, client(proxy.Addr(), 2), redisstore.WithTimeout(900*time.Millisecond)))
	configure(t, server.Client(), "appendfsync", "everysec")
	wantTasks(t, wantFindings(t, newStore(t, near), "appendfsync of "+server.Addr()+" is everysec"))
	configure(t, server.Client(), "appendonly", "no")
	wantTasks(t, wantFindings(t, newStore(t, near), "no append-only file"))
	configure(t, server.Client(), "appendonly", "yes")
	configure(t, server.Client(), "appendfsync", "always")
	configure(t, server.Client(), "maxmemory-policy", "volatile-lru")
	if found := wantFindings(t, newStore(t, near), "noeviction"); found[0].Refused != store.Eviction {
		t.Errorf("%v is no misconfiguration", found)
	}
	wantFindings(t, newStore(t, near, redisstore.AllowEviction()))
	must(t, server.Client().Do(ctx(), "replicaof", "127.0.0.1", "1").Err())
	if found := wantFindings(t, newStore(t, near, redisstore.AllowEviction()), "takes no writes"); found[0].Refused != store.ReadOnly {
		t.Errorf("%v is no misconfiguration", found)
	}
	server.Stop()
	short, cancel := context.WithTimeout(ctx(), time.Second)
	defer cancel()
	if _, err := newStore(t, near).Check(short); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
}

// The error for a server that the store cannot use says what to do.
func TestCheckSaysTheRemedy(t *testing.T) {
	t.Parallel()
	locked, stopped := redistest.Start(t), redistest.Start(t)
	configure(t, locked.Client(), "requirepass", "secret")
	stopped.Stop()
	for _, c := range []struct {
		addr, password, remedy string
		is                     error
	}{
		{locked.Addr(), "", "Set Username and Password", store.ErrMisconfigured},
		{locked.Addr(), "wrong", "Set Username and Password", store.ErrMisconfigured},
		{stopped.Addr(), "", "Start the server", store.ErrUnavailable},
	} {
		client := redis.NewClient(&redis.Options{Addr: c.addr, Password: c.password, ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = client.Close() })
		if _, err := newStore(t, client).Check(ctx()); !errors.Is(err, c.is) || !strings.Contains(err.Error(), c.remedy) {
			t.Errorf("%s, password %q: %v; want %v, and %q", c.addr, c.password, err, c.is, c.remedy)
		}
	}
}

func TestCheckACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t, durable...)
	s := newStore(t, cluster.Client())
	wantFindings(t, s)
	configure(t, cluster.Servers[1].Client(), "maxmemory-policy", "volatile-lru")
	wantTasks(t, wantFindings(t, s, "noeviction"))
	configure(t, cluster.Servers[1].Client(), "maxmemory-policy", "noeviction")
	cluster.AddReplicas()
	wantTasks(t, wantFindings(t, s, "replicas", "replicas", "replicas"))
	wantFindings(t, newStore(t, cluster.Client(), redisstore.WithReplicaAcks(1, 50*time.Millisecond)))
}

func TestCheckAClock(t *testing.T) {
	t.Parallel()
	server, clock := redistest.StartWithClock(t, durable...)
	s := newStore(t, server.Client())
	wantFindings(t, s)
	clock.Step(-time.Minute)
	wantFindings(t, s, "behind this machine's")
}

// A user who may do only what steps need learns what can be found without more rights.
func TestCheckWithoutRights(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	must(t, server.Client().Do(ctx(), "acl", "setuser", "app", "on", ">secret", "~*", "&*", "+@all", "-role", "-config", "-info", "-time").Err())
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "app", Password: "secret", ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	wantFindings(t, newStore(t, client))
}
