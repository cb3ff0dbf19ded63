package redisstore_test

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

func TestKeysOfBuckets(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct := server.Client()
	s := newStore(t, server.Client())
	keyOf := func(r store.TokenRequest) string {
		t.Helper()
		must(t, direct.FlushAll(ctx()).Err())
		takes(t, s, r)
		return onlyKey(t, direct)
	}
	within := func(key string, home store.BucketHome) store.TokenRequest {
		r := hourly(key, 1)
		r.Home = &home
		return r
	}
	plain := hourly("ann", 1)
	team, other := store.BucketHome{Limiter: plain.Limiter, Key: "team"}, store.BucketHome{Limiter: plain.Limiter, Key: "other"}
	home, own := keyOf(hourly("team", 1)), keyOf(plain)
	if len(own) != len("lk:t:{PP}")+21 {
		t.Errorf("%q has %d bytes", own, len(own))
	}
	if got := keyOf(within("ann", store.BucketHome{Limiter: plain.Limiter, Key: "ann"})); got != own {
		t.Errorf("in a home of its own, a key's bucket is %q, otherwise %q", got, own)
	}
	child := keyOf(within("ann", team))
	if hashTag(child) != hashTag(home) {
		t.Errorf("the bucket of a key in a home is %q, that of the home %q", child, home)
	}
	// What differs in more than the partition is not the same by the chance of the same partition.
	_, childHash, _ := strings.Cut(child, "}")
	for _, key := range []string{home, own, keyOf(within("ann", other)), keyOf(within("bob", team))} {
		if strings.HasSuffix(key, childHash) {
			t.Errorf("%q has the hash of %q", key, child)
		}
	}
	named := plain
	named.Charges = slices.Clone(named.Charges)
	named.Charges[0].Bucket = "daily"
	if got := keyOf(named); got != own+":daily" {
		t.Errorf("a named bucket is %q", got)
	}
}

// bucketTags returns how many buckets each hash tag has.
func bucketTags(t *testing.T, servers ...*redistest.Server) map[string]int {
	t.Helper()
	tags := make(map[string]int)
	for _, server := range servers {
		for _, key := range keysOf(t, server.Client(), "lk:t:*") {
			tags[hashTag(key)]++
		}
	}
	return tags
}

func TestPartitions(t *testing.T) {
	t.Parallel()
	const slots = 16384
	cluster := redistest.StartCluster(t)
	client, proxies := cluster.ProxiedClient()
	s := newStore(t, client, redisstore.WithTimeout(20*time.Second), redisstore.WithoutDenialCache())
	l, err := tokenbucket.New(s, "many", tokenbucket.PerHour(1).Burst(1000))
	must(t, err)
	allow := func(key string) {
		if d, err := l.Allow(ctx(), key); err != nil || !d.Allowed {
			t.Errorf("%s: %+v, %v", key, d, err)
		}
	}
	allow("first")
	used := func(t *testing.T, key string) int64 {
		t.Helper()
		d, err := l.Peek(ctx(), key)
		must(t, err)
		return 1000 - d.Limits()[0].Remaining
	}
	slow := func(d time.Duration) {
		for _, p := range proxies {
			p.Delay(d)
		}
	}

	t.Run("calls of batches", func(t *testing.T) {
		slow(20 * time.Millisecond)
		defer slow(0)
		before := evals(t, cluster)
		together(1000, func(i int) { allow(fmt.Sprint("k", i)) })
		if calls := evals(t, cluster) - before; calls > 500 {
			t.Errorf("%d calls for 1,000 decisions about as many keys", calls)
		}
	})

	t.Run("an even spread", func(t *testing.T) {
		together(64, func(worker int) {
			for i := worker; i < redisstore.Partitions*100; i += 64 {
				allow(fmt.Sprint("k", i))
			}
		})
		tags := bucketTags(t, cluster.Servers...)
		var at []int
		for tag, n := range tags {
			if n < 60 || n > 140 {
				t.Errorf("partition %s has %d keys, the mean is 100", tag, n)
			}
			at = append(at, int(cluster.Servers[0].Client().ClusterKeySlot(ctx(), "{"+tag+"}").Val()))
		}
		slices.Sort(at)
		if len(at) != redisstore.Partitions {
			t.Fatalf("%d partitions", len(at))
		}
		for i, slot := range at {
			if want := slots * (2*i + 1) / (2 * redisstore.Partitions); slot < want-10 || slot > want+10 {
				t.Errorf("partition %d is slot %d, want %d", i, slot, want)
			}
		}
		for i, server := range cluster.Servers {
			if n := len(bucketTags(t, server)); n != redisstore.Partitions/3 {
				t.Errorf("master %d of 3 has %d of %d partitions", i, n, redisstore.Partitions)
			}
		}
	})

	// The keys of a partition are on two nodes for as long as that takes, and new ones on neither.
	t.Run("half of a slot has moved", func(t *testing.T) {
		from, to := cluster.Servers[0].Client(), cluster.Servers[1].Client()
		slot := from.ClusterKeySlot(ctx(), keysOf(t, from, "lk:t:*")[0]).Val()
		must(t, to.Do(ctx(), "cluster", "setslot", slot, "importing", from.ClusterMyID(ctx()).Val()).Err())
		must(t, from.Do(ctx(), "cluster", "setslot", slot, "migrating", to.ClusterMyID(ctx()).Val()).Err())
		keys := from.ClusterGetKeysInSlot(ctx(), int(slot), 1000).Val()
		_, port, err := net.SplitHostPort(cluster.Servers[1].Addr())
		must(t, err)
		for _, key := range keys[:len(keys)/2] {
			must(t, from.Do(ctx(), "migrate", "127.0.0.1", port, key, 0, 1000).Err())
		}
		if len(keys) < 20 {
			t.Fatalf("%d keys in the slot", len(keys))
		}
		slow(20 * time.Millisecond)
		together(2000, func(i int) { allow(fmt.Sprint("k", i%1000)) })
		together(2000, func(i int) { allow(fmt.Sprint("new", i%1000)) })
		slow(0)
		if torn := refusals(t, cluster, "TRYAGAIN"); torn == 0 {
			t.Error("no call had keys on two nodes: the test does not test what it says")
		}
		cluster.MoveSlots(cluster.Servers[0], cluster.Servers[1])
		for i := range 1000 {
			if n := used(t, fmt.Sprint("new", i)); n != 2 {
				t.Errorf("key %d was charged %d tokens by two decisions", i, n)
			}
			if n := used(t, fmt.Sprint("k", i)); n != 4 {
				t.Errorf("key %d was charged %d tokens by four decisions", i, n)
			}
		}
	})

	t.Run("slots move under load", func(t *testing.T) {
		var (
			charged, open [200]atomic.Int64
			load          sync.WaitGroup
			done          atomic.Bool
		)
		for worker := range 64 {
			load.Go(func() {
				for i := worker; !done.Load(); i += 7 {
					n := i % len(charged)
					switch d, err := l.Allow(ctx(), fmt.Sprint("moving", n)); {
					case err == nil && d.Allowed:
						charged[n].Add(1)
					case errors.Is(err, store.ErrUnconfirmed):
						open[n].Add(1)
					case err != nil && !errors.Is(err, store.ErrUnavailable):
						t.Error(err)
					}
				}
			})
		}
		cluster.MoveSlots(cluster.Servers[1], cluster.Servers[2])
		cluster.MoveSlots(cluster.Servers[2], cluster.Servers[0])
		done.Store(true)
		load.Wait()
		var all int64
		for i := range charged {
			low, n := charged[i].Load(), used(t, fmt.Sprint("moving", i))
			if n < low || n > low+open[i].Load() {
				t.Errorf("%d tokens of key %d were taken by %d decisions, and %d of unknown outcome", n, i, low, open[i].Load())
			}
			all += low
		}
		if all == 0 {
			t.Error("nothing was decided")
		}
	})
}

// refusals returns how many errors of a kind the masters have replied.
func refusals(t *testing.T, cluster *redistest.Cluster, kind string) (n int) {
	t.Helper()
	for _, server := range cluster.Servers {
		for line := range strings.Lines(server.Client().Info(ctx(), "errorstats").Val()) {
			var count int
			if _, err := fmt.Sscanf(line, "errorstat_"+kind+":count=%d", &count); err == nil {
				n += count
			}
		}
	}
	return n
}
