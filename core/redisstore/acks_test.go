package redisstore_test

import (
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestReplicaAcks(t *testing.T) {
	t.Parallel()
	master := redistest.Start(t)
	host, port, _ := net.SplitHostPort(master.Addr())
	replica := redistest.Start(t, "--replicaof", host+" "+port)
	direct := master.Client()
	eventually(t, 20*time.Second, "the replica is in step", func() bool {
		return direct.Set(ctx(), "probe", 1, time.Minute).Err() == nil && direct.Wait(ctx(), 1, 200*time.Millisecond).Val() == 1
	})
	s := newStore(t, dial(t, master.Addr(), 4*time.Second), redisstore.WithReplicaAcks(1, 2*time.Second))
	plain := newStore(t, direct)

	began := time.Now()
	holder, next := newClaim("k", "holder"), newClaim("k", "next").queued()
	grant := holder.gets(t, s, store.Granted)
	if took := grant.Sent.Sub(began); took < 0 || time.Since(grant.Sent) > 3*time.Second {
		t.Errorf("sent %v after it began", took)
	}
	must(t, direct.ScriptFlush(ctx()).Err())
	next.gets(t, s, store.Queued)
	w := next.await(t, s)
	holder.ends(t, s, true)
	w.granted(t, 5*time.Second)

	replica.Stop()
	again, after := newClaim("k", "again").queued(), newClaim("k", "after")
	again.gets(t, s, store.Queued) // only grants are confirmed
	w = again.await(t, s)
	next.ends(t, s, true)
	<-w.done
	wantNotReplicated(t, w.err)
	_, err := newClaim("k", "another").acquire(s)
	wantNotReplicated(t, err)
	after.gets(t, plain, store.Granted)
}

// Grants that no replica confirms for more than half of the store's timeout are not taken for silence of
// the server, which would end the connections of calls that wait.
func TestReplicasThatAreLate(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t) // without a replica
	timeout := testpace.Scale(2 * time.Second)
	s := newStore(t, dial(t, server.Addr(), timeout), redisstore.WithTimeout(timeout),
		redisstore.WithReplicaAcks(1, 6*timeout/10))
	var all sync.WaitGroup
	for i := range 8 {
		all.Go(func() {
			for n := range 2 {
				_, err := newClaim(fmt.Sprint("k", i, n), "holder").acquire(s)
				wantNotReplicated(t, err)
			}
		})
	}
	all.Wait()
}

func wantNotReplicated(t testing.TB, err error) {
	t.Helper()
	if !errors.Is(err, redisstore.ErrNotReplicated) || !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrUnconfirmed) {
		t.Errorf("got %v, want ErrNotReplicated", err)
	}
}

// A Cluster without replicas confirms nothing, on whichever master the slot is.
func TestReplicaAcksOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := cluster.Client()
	s := newStore(t, client, redisstore.WithReplicaAcks(1, 50*time.Millisecond))
	_, err := newClaim("k", "first").acquire(s)
	wantNotReplicated(t, err)

	var from, to *redistest.Server
	var key string
	for _, server := range cluster.Servers {
		if keys := server.Client().Keys(ctx(), "*").Val(); len(keys) > 0 {
			from, key = server, keys[0]
		} else {
			to = server
		}
	}
	slot := client.ClusterKeySlot(ctx(), key).Val()
	id := to.Client().ClusterMyID(ctx()).Val()
	must(t, from.Client().FlushAll(ctx()).Err())
	// As a migration does it: otherwise other nodes may keep the old master.
	must(t, to.Client().Do(ctx(), "cluster", "setslot", slot, "importing", from.Client().ClusterMyID(ctx()).Val()).Err())
	for _, server := range []*redistest.Server{to, from} {
		must(t, server.Client().Do(ctx(), "cluster", "setslot", slot, "node", id).Err())
	}
	_, err = newClaim("k", "second").acquire(s)
	wantNotReplicated(t, err)
	if len(to.Client().Keys(ctx(), "*").Val()) == 0 {
		t.Error("the slot has not moved: the test does not test what it says")
	}
	newClaim("k", "third").gets(t, newStore(t, client), store.Granted)
}

func TestNewRefusesReplicaAcks(t *testing.T) {
	testpace.Parallel(t)
	client := dial(t, unusedAddr(t), 200*time.Millisecond)
	for name, o := range map[string]redisstore.Option{
		"no replicas":               redisstore.WithReplicaAcks(0, time.Millisecond),
		"fewer than none":           redisstore.WithReplicaAcks(-1, 0),
		"no time":                   redisstore.WithReplicaAcks(1, 0),
		"more time than the store":  redisstore.WithReplicaAcks(1, 250*time.Millisecond),
		"more time than the client": redisstore.WithReplicaAcks(1, 200*time.Millisecond),
	} {
		if s, err := redisstore.New(client, o); s != nil || err == nil || !strings.HasPrefix(err.Error(), "redisstore: New: ") {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	s, err := redisstore.New(client, redisstore.WithReplicaAcks(2, 100*time.Millisecond))
	must(t, err)
	_ = s.Close()
}
