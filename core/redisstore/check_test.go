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
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

func TestCheck(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := func(addr string, idle int) *redis.Client {
		c := redis.NewClient(&redis.Options{Addr: addr, MinIdleConns: idle, ContextTimeoutEnabled: true})
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	want := func(s *redisstore.Store, texts ...string) {
		t.Helper()
		err := s.Check(ctx())
		if err == nil && len(texts) == 0 {
			return
		}
		if err == nil || len(texts) == 0 || strings.Count(err.Error(), "\n") != len(texts)-1 {
			t.Fatalf("got %v; want %q", err, texts)
		}
		for _, text := range texts {
			if !strings.Contains(err.Error(), text) {
				t.Errorf("%v does not say %q", err, text)
			}
		}
	}
	near, far := client(server.Addr(), 0), client(proxy.Addr(), 0)
	want(newStore(t, near))
	proxy.Delay(100 * time.Millisecond)
	want(newStore(t, far, hasty), "set WithTimeout to 4", "MinIdleConns")
	want(newStore(t, client(proxy.Addr(), 2), redisstore.WithTimeout(900*time.Millisecond)))
	configure(t, server.Client(), "maxmemory-policy", "volatile-lru")
	want(newStore(t, near), "volatile-lru")
	want(newStore(t, near, redisstore.AllowEviction()))
	must(t, server.Client().Do(ctx(), "replicaof", "127.0.0.1", "1").Err())
	want(newStore(t, near, redisstore.AllowEviction()), "takes no writes")
	if err := newStore(t, near).Check(ctx()); !errors.Is(err, store.ErrMisconfigured) {
		t.Errorf("%v is no misconfiguration", err)
	}
	server.Stop()
	short, cancel := context.WithTimeout(ctx(), time.Second)
	defer cancel()
	if err := newStore(t, near).Check(short); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("without a server: %v", err)
	}
}

func TestCheckACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	s := newStore(t, cluster.Client())
	must(t, s.Check(ctx()))
	configure(t, cluster.Servers[1].Client(), "maxmemory-policy", "volatile-lru")
	if err := s.Check(ctx()); err == nil || !strings.Contains(err.Error(), "volatile-lru") {
		t.Errorf("one master evicts: %v", err)
	}
}
