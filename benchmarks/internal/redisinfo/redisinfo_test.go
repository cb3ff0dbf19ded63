package redisinfo_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisinfo"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisserver"
)

func TestScriptsCountOnceAndTheirCommandsNot(t *testing.T) {
	server, err := redisserver.Start(t.Context())
	if err != nil {
		t.Skip(err)
	}
	defer server.Stop()
	client := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = client.Close() }()
	read := func(also ...string) redisinfo.Reading {
		t.Helper()
		r, err := redisinfo.Read(t.Context(), client, also...)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	before := read()
	set := read("set")
	for range 3 {
		if err := client.Eval(t.Context(), "return redis.call('GET', KEYS[1])", []string{"k"}).Err(); err != nil && err != redis.Nil {
			t.Fatal(err)
		}
		if err := client.Set(t.Context(), "k", "v", 0).Err(); err != nil {
			t.Fatal(err)
		}
	}
	if got := read().Sub(before).Sent; got != 3 {
		t.Errorf("%d commands sent, want the 3 scripts", got)
	}
	if got := read("set").Sub(set).Sent; got != 6 {
		t.Errorf("%d commands sent, want the 3 scripts and 3 SETs", got)
	}
	if r := read(); r.Memory == 0 || r.CPU == 0 {
		t.Errorf("memory %d, CPU %v", r.Memory, r.CPU)
	}
}
