package redisstore_test

import (
	"context"
	"crypto/rand"
	"fmt"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// handOver passes a lock from one store to a waiter in another, and returns how long that took.
func handOver(t *testing.T, from, to *redisstore.Store, key string) time.Duration {
	t.Helper()
	holder := newClaim(key, "h"+rand.Text())
	holder.gets(t, from, store.Granted)
	next := newClaim(key, "n"+rand.Text()).waitsIn(t, to)
	began := time.Now()
	holder.ends(t, from, true)
	next.granted(t, 5*time.Second)
	took := time.Since(began)
	next.ends(t, to, true)
	return took
}

// beatEvery is the time between heartbeats, and so the delay without pushes.
const beatEvery = time.Second

func TestPushesAcrossACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	a, b := newStore(t, cluster.Client()), newStore(t, cluster.Client())
	handOver(t, a, b, "first")
	handOver(t, b, a, "second")
	eventually(t, 5*time.Second, "subscriptions", func() bool {
		n := 0
		for _, server := range cluster.Servers {
			n += len(server.Client().PubSubChannels(ctx(), "*").Val())
		}
		return n == 2
	})
	var sum time.Duration
	const n = 30
	for i := range n {
		sum += handOver(t, a, b, fmt.Sprint("k", i))
	}
	t.Logf("%v on average", sum/n)
	if sum/n > beatEvery/4 {
		t.Errorf("%v on average: pushes do not arrive", sum/n)
	}
}

// app returns a client of a user who may do everything except what the rules forbid.
func app(t *testing.T, rules ...string) *redis.Client {
	t.Helper()
	args := append([]string{"--user", "app", "on", ">secret", "~*", "&*", "+@all"}, rules...)
	server := redistest.Start(t, args...)
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: server.Addr(), Username: "app", Password: "secret"})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func TestLocksWorkWithoutPushes(t *testing.T) {
	t.Parallel()
	for name, rule := range map[string]string{
		"PUBLISH forbidden": "-publish", "SUBSCRIBE forbidden": "-subscribe", "channels forbidden": "resetchannels",
		"PUBSUB forbidden": "-pubsub",
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			client := app(t, rule)
			log := new(logbook)
			s := newStore(t, client, log.option())
			for range 2 {
				if took := handOver(t, s, s, "k"); took > 3*time.Second {
					t.Errorf("took %v", took)
				}
			}
			// Those at the end of the queue are granted the lock as soon as those at its front.
			holder := newClaim("many", "holder")
			holder.gets(t, s, store.Granted)
			var waits []*wait
			for i := range 8 {
				waits = append(waits, newClaim("many", fmt.Sprint("w", i)).waitsIn(t, s))
			}
			holder.ends(t, s, true)
			for _, w := range waits {
				w.granted(t, 4*time.Second)
				w.ends(t, s, true)
			}
			if rule == "-subscribe" || rule == "resetchannels" {
				eventually(t, 5*time.Second, "a warning", func() bool { return log.has("cannot subscribe") })
			}
			if log.has(tripped) {
				t.Error("the breaker opened")
			}
		})
	}
}

// The client connects to another master, while the connection of the subscription still works.
func TestTheInboxFollowsTheMaster(t *testing.T) {
	t.Parallel()
	old, promoted := redistest.Start(t), redistest.Start(t)
	var addr atomic.Value
	addr.Store(old.Addr())
	client := redis.NewClient(&redis.Options{
		ContextTimeoutEnabled: true,
		Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, network, addr.Load().(string))
		},
		ReadTimeout: 500 * time.Millisecond,
	})
	t.Cleanup(func() { _ = client.Close() })
	s := newStore(t, client)
	handOver(t, s, s, "k")
	subscribed(t, client, 1)
	addr.Store(promoted.Addr())
	must(t, old.Client().ClientKillByFilter(ctx(), "type", "normal").Err())
	eventually(t, 5*time.Second, "the other master answers", func() bool {
		return s.Ping(ctx()) == nil && len(client.PubSubChannels(ctx(), "*").Val()) == 0
	})
	newClaim("waited", "holder").gets(t, s, store.Granted)
	newClaim("waited", "next").waitsIn(t, s)
	eventually(t, 15*time.Second, "a subscription on the new master", func() bool {
		return len(promoted.Client().PubSubChannels(ctx(), "*").Val()) == 1
	})
	handOver(t, s, s, "again")
	if n := len(old.Client().PubSubChannels(ctx(), "*").Val()); n != 0 {
		t.Errorf("%d subscriptions on the old master", n)
	}
}

func TestNothingIsSentWithoutWaiters(t *testing.T) {
	t.Parallel()
	_, proxy, _, s := behindProxy(t, time.Second)
	handOver(t, s, s, "k")
	seen := func() int { return proxy.Seen("evalsha") + proxy.Seen("publish") }
	sent := seen()
	<-time.After(1500 * time.Millisecond)
	if seen() != sent { // requests that were in flight when the lock was handed over
		sent = seen()
		<-time.After(1500 * time.Millisecond)
	}
	if got := seen(); got != sent {
		t.Errorf("%d commands without waiters", got-sent)
	}
}

// A push for a request that no call awaits any more, or that holds another lease, is answered with
// a release of that lease.
func TestAPushThatNobodyAwaitsIsReleased(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	s, gone := newStore(t, client), newStore(t, client)
	newClaim("k", "knock").gets(t, gone, store.Granted) // so that it subscribes
	subscribed(t, client, 1)
	channel := client.PubSubChannels(ctx(), "*").Val()[0]
	newClaim("k", "knock").ends(t, gone, true)
	ghost, next := newClaim("k", "ghost"), newClaim("k", "next")
	grant := ghost.gets(t, s, store.Granted)
	w := next.waitsIn(t, s)
	record := stemOf(t, client, "k") + ":ljobs"
	push := func(id string, fence int64) {
		text := fmt.Sprintf("lease %s %d %d %d %d %d %s", id, fence, fence, 1, 2_000_000, 1, record)
		if n := client.Publish(ctx(), channel, text).Val(); n != 1 {
			t.Fatalf("%d received the push", n)
		}
	}
	push(ghost.ID, grant.Fence-1) // another lease
	handOver(t, s, gone, "so that the message has been handled")
	ghost.held(t, s, true)
	w.waits(t)
	push(ghost.ID, grant.Fence)
	w.granted(t, 5*time.Second)
	ghost.held(t, s, false)
}
