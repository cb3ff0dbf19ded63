package redisserver

import (
	"context"
	"os"
	"os/exec"
	"syscall"
	"testing"

	"github.com/redis/go-redis/v9"
)

func installed(t *testing.T) {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("LOCKKEEPER_REQUIRE_REDIS") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
}

func TestServer(t *testing.T) {
	installed(t)
	ctx := context.Background()
	s, err := Start(ctx, "--maxmemory", "64mb")
	if err != nil {
		t.Fatal(err)
	}
	defer s.Stop()
	client := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer func() { _ = client.Close() }()
	if got, err := client.ConfigGet(ctx, "maxmemory").Result(); err != nil || got["maxmemory"] != "67108864" {
		t.Errorf("the argument has not arrived: %v, %v", got, err)
	}
	cpu, err := s.CPU(ctx)
	if err != nil || cpu <= 0 {
		t.Errorf("CPU %v, %v", cpu, err)
	}
	before, err := s.UsedMemory(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := client.Set(ctx, "key", make([]byte, 1<<20), 0).Err(); err != nil {
		t.Fatal(err)
	}
	after, err := s.UsedMemory(ctx)
	if err != nil || after-before < 1<<20 {
		t.Errorf("a key of 1 MiB takes %d bytes, %v", after-before, err)
	}
	if version, err := s.Version(ctx); err != nil || version == "" {
		t.Errorf("version %q, %v", version, err)
	}

	old := s.PID()
	if err := s.Restart(ctx); err != nil {
		t.Fatal(err)
	}
	if s.PID() == old || syscall.Kill(old, 0) == nil {
		t.Errorf("process %d still runs, beside %d", old, s.PID())
	}
	if n, err := client.DBSize(ctx).Result(); err != nil || n != 0 {
		t.Errorf("after a restart: %d keys, %v", n, err)
	}
	pid := s.PID()
	s.Stop()
	s.Stop()
	if s.PID() != 0 || syscall.Kill(pid, 0) == nil {
		t.Errorf("process %d runs after Stop", pid)
	}
	if _, err := os.Stat(s.dir); err == nil {
		t.Error("its directory is left")
	}
}

func TestErrorOfTheServer(t *testing.T) {
	installed(t)
	if _, err := Start(context.Background(), "--no-such-option", "1"); err == nil {
		t.Error("a server has started")
	}
}

func TestCluster(t *testing.T) {
	installed(t)
	ctx := context.Background()
	servers, err := StartCluster(ctx)
	if err != nil {
		t.Fatal(err)
	}
	var addrs []string
	for _, s := range servers {
		defer s.Stop()
		addrs = append(addrs, s.Addr())
	}
	client := redis.NewClusterClient(&redis.ClusterOptions{Addrs: addrs})
	defer func() { _ = client.Close() }()
	for _, key := range []string{"a", "b", "c", "d", "e", "f"} {
		if err := client.Set(ctx, key, 1, 0).Err(); err != nil {
			t.Errorf("%s: %v", key, err)
		}
	}
	for _, s := range servers {
		if n, err := s.client.DBSize(ctx).Result(); err != nil || n == 0 {
			t.Errorf("%s has %d keys, %v", s.Addr(), n, err)
		}
	}
}
