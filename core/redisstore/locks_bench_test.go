package redisstore_test

import (
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// Nobody else wants the lock.
func BenchmarkLock(b *testing.B) {
	server := redistest.Start(b)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	b.Cleanup(func() { _ = client.Close() })
	locker, err := lock.New(newStore(b, client), "bench")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = locker.Close() })
	b.ReportAllocs()
	for b.Loop() {
		lease, err := locker.Lock(ctx(), "k")
		if err != nil {
			b.Fatal(err)
		}
		if err := lease.Unlock(ctx()); err != nil {
			b.Fatal(err)
		}
	}
}
