package quorum_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/quorum"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Locks on five Redis servers that know nothing of each other: no replicas, no Cluster, no shared
// machine. Two of them may fail.
func ExampleNew() {
	var members []quorum.Member
	for _, address := range []string{"a:6379", "b:6379", "c:6379", "d:6379", "e:6379"} {
		member, err := redisstore.New(redis.NewClient(&redis.Options{Addr: address, ContextTimeoutEnabled: true}))
		if err != nil {
			panic(err)
		}
		members = append(members, member)
	}
	servers, err := quorum.New(members...)
	if err != nil {
		panic(err)
	}
	payouts, err := lock.New(servers, "payouts")
	if err != nil {
		panic(err)
	}
	err = payouts.Do(context.Background(), "2026-11", func(ctx context.Context) error {
		lease, _ := lock.FromContext(ctx)
		return pay(ctx, lease.Fence().Number) // a quorum makes locks available; the fence excludes
	})
	if errors.Is(err, store.ErrUnavailable) {
		fmt.Println("three servers do not reply, or have been up for less than a lease: try again later")
	}
}

func pay(context.Context, int64) error { return nil }
