// A program outside of the repository, with locks on a Redis that is not there.
package main

import (
	"context"
	"errors"
	"log"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

func main() {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ContextTimeoutEnabled: true})
	st, err := redisstore.New(client) // with its scripts
	if err != nil {
		log.Fatal(err)
	}
	carts, err := lock.New(st, "carts")
	if err != nil {
		log.Fatal(err)
	}
	if _, err := carts.Lock(context.Background(), "42"); !errors.Is(err, store.ErrUnavailable) {
		log.Fatal("a lock without a store: ", err)
	}
}
