// Command client checks a cart out, as a client does that must not pay twice: it sends one idempotency key
// with all of its attempts, comes back when the server asks it to, and sends no faster than it may.
package main

import (
	"context"
	"flag"
	"fmt"
	"log"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/examples/grpc/shop"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/idempotency"
	"github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
)

// retries is a service config by which gRPC sends calls again, when the server says.
const retries = `{"methodConfig": [{"name": [{"service": "shop.Shop"}], "retryPolicy": {
	"maxAttempts": 5, "initialBackoff": "0.2s", "maxBackoff": "5s", "backoffMultiplier": 1.5,
	"retryableStatusCodes": ["RESOURCE_EXHAUSTED", "ABORTED", "UNAVAILABLE"]}}]}`

func main() {
	addr := flag.String("addr", "127.0.0.1:8080", "the server's `address`")
	user := flag.String("user", "alice", "who pays")
	cart := flag.String("cart", "1", "the cart's `id`")
	key := flag.String("key", "", "the idempotency `key` of a checkout to repeat; a new one if not set")
	flag.Parse()
	if err := checkout(*addr, *user, *cart, *key); err != nil {
		log.Fatal(err)
	}
}

func checkout(addr, user, cart, key string) error {
	store := memstore.New()
	defer store.Close()
	pace, err := tokenbucket.New(store, "shop", tokenbucket.PerSecond(10))
	if err != nil {
		return err
	}
	conn, err := grpc.NewClient(addr, grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithDefaultServiceConfig(retries),
		grpc.WithChainUnaryInterceptor(
			idempotency.UnaryClientInterceptor(), // one key for all attempts
			ratelimit.UnaryClientInterceptor(pace, grpcmw.Global()),
		))
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // all is said

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "x-user", user)
	if key != "" {
		ctx = idempotency.WithKey(ctx, key)
	}
	var header metadata.MD
	order, err := shop.NewShopClient(conn).Checkout(ctx, &shop.CheckoutRequest{CartId: cart, Cents: 1999}, grpc.Header(&header))
	if err != nil {
		return err
	}
	fmt.Printf("order %s, replayed: %t\n", order.GetNumber(), len(header.Get("idempotency-replayed")) > 0)
	return nil
}
