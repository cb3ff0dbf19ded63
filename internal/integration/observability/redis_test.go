package observability_test

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// driveRedis makes all calls of a store on a real Redis, with all results.
func driveRedis(w *world, server *redistest.Server, known *tokens) {
	st := w.redisstore(server)
	faulty := storetest.NewFaulty(tapped{st, known})
	driveLimiter(w, faulty, faulty)
	driveCandidate(w, faulty, faulty)
	driveLocks(w, faulty, nil)
	driveSemaphore(w, faulty, nil)
	driveGuard(w, faulty, nil, known)
	driveDelay(w, faulty)
	driveOperations(w, st)
	driveBatches(w, st)
	driveLosses(w, st, server)
	driveReconnect(w, st, server)
	driveRestricted(w, server)
	driveMisconfiguration(w, server)
	driveLostReply(w, server)
	driveDamage(w, st, server, known)
	driveOutage(w, st, server)
}

// driveRestricted makes stores log problems of their client, and of its permissions.
func driveRestricted(w *world, server *redistest.Server) {
	ctx := w.t.Context()
	if err := server.Client().Do(ctx, "acl", "setuser", "few", "on", ">few", "~*", "&*", "+@all", "-info", "-subscribe").Err(); err != nil {
		w.t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: server.Addr(), Username: "few", Password: "few", ReadTimeout: reply})
	defer func() { _ = client.Close() }()
	st := w.onClient(client)
	defer st.Close()
	lease := must(w.locker(st).Lock(ctx, secretKey))
	until(w.t, "the store cannot subscribe", func() bool { return len(w.log.records(w.t, "cannot subscribe")) > 0 })
	_ = lease.Unlock(ctx)
}

// driveLostReply loses the reply to a charge.
func driveLostReply(w *world, server *redistest.Server) {
	proxy := redistest.NewProxy(w.t, server.Addr())
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: proxy.Addr(), ReadTimeout: reply})
	defer func() { _ = client.Close() }()
	st := w.onClient(client)
	defer st.Close()
	l := w.limiter(st, tokenbucket.PerSecond(1000))
	_ = must(l.Allow(w.t.Context(), secretKey))
	proxy.LoseReplies("evalsha", 1, redistest.Cut)
	if _, err := l.Allow(w.t.Context(), secretKey); !errors.Is(err, store.ErrUnconfirmed) {
		w.t.Fatal(err)
	}
}

// driveCluster makes a store on a Cluster follow redirections. It stays beside the other one.
func driveCluster(w *world, cluster *redistest.Cluster) {
	st := w.onClient(cluster.Client())
	w.t.Cleanup(func() { _ = st.Close() })
	for _, err := range w.locker(st).List(w.t.Context()) {
		w.t.Fatal(err)
	}
}

// driveOperations makes the remaining calls.
func driveOperations(w *world, st *redisstore.Store) {
	ctx := w.t.Context()
	latch := must(semaphore.NewLatch(st, "start", 1))
	_ = must(latch.CountDown(ctx, secretKey))
	if _, _, err := st.PutDocument(ctx, store.DocumentRequest{Space: secretKey, Name: secretKey}); err != nil {
		w.t.Fatal(err)
	}
	_ = st.Ping(ctx)
	if err := w.limiter(st, tokenbucket.PerHour(1)).Hold(ctx, secretKey+" that is held", time.Minute); err != nil {
		w.t.Fatal(err)
	}
	if err := st.RaiseFence(ctx, "carts", secretKey, 1); err != nil {
		w.t.Fatal(err)
	}
}

// driveBatches makes many concurrent calls.
func driveBatches(w *world, st *redisstore.Store) {
	l := w.limiter(st, tokenbucket.PerSecond(1000))
	var all sync.WaitGroup
	for range 200 {
		all.Go(func() { _, _ = l.Allow(w.t.Context(), secretKey+" of many") })
	}
	all.Wait()
}

// driveLosses makes the server lose leases, and renewals report it.
func driveLosses(w *world, st *redisstore.Store, server *redistest.Server) {
	const ttl = time.Second // of which a busy machine leaves enough for a renewal
	l, s, g := w.locker(st, lock.WithTTL(ttl)), w.semaphore(st, semaphore.WithTTL(ttl)), w.guard(st, guard.WithTTL(ttl))
	q := w.queue(st, delay.WithLease(ttl))
	w.request(func(ctx context.Context) {
		lease, permit := must(l.Lock(ctx, secretKey)), must(s.Acquire(ctx, secretKey))
		attempt, _, err := g.Begin(ctx, operation("lost"))
		if err != nil {
			w.t.Fatal(err)
		}
		_ = must(q.Put(ctx, secretKey, nil, 0))
		task := must(q.Take(ctx))
		server.Client().FlushAll(ctx)
		<-task.Context().Done()
		<-lease.Context().Done()
		<-permit.Context().Done()
		<-attempt.Context().Done()
		until(w.t, "four leases are lost", func() bool {
			lost := make(map[any]bool)
			for _, record := range w.log.records(w.t, "a lease was lost") {
				if record["end"] == "lost" {
					lost[record["mechanism"]] = true
				}
			}
			return len(lost) == 4
		})
		_ = attempt.Abandon(ctx)
		_ = task.Done(ctx)
	})
}

// driveReconnect cuts the store's subscription.
func driveReconnect(w *world, st *redisstore.Store, server *redistest.Server) {
	l := w.locker(st)
	ctx := w.t.Context()
	lease := must(l.Lock(ctx, secretKey+" behind"))
	other := make(chan *lock.Lease)
	go func() { other <- must(w.locker(st).Lock(ctx, secretKey+" behind")) }() // which needs the subscription
	client := server.Client()
	until(w.t, "the subscription is cut, and that is counted", func() bool {
		client.ClientKillByFilter(ctx, "TYPE", "pubsub")
		return w.sum("lockkeeper.store.inbox.reconnects") > 0
	})
	_ = lease.Unlock(ctx)
	_ = (<-other).Unlock(ctx)
}

// driveDamage makes the store read, again and again, a record that it did not write.
func driveDamage(w *world, st *redisstore.Store, server *redistest.Server, known *tokens) {
	ctx := w.t.Context()
	g := w.guard(tapped{st, known})
	attempt, _, err := g.Begin(ctx, operation("damaged"))
	if err != nil {
		w.t.Fatal(err)
	}
	_ = attempt.Abandon(ctx)
	of := known.last
	server.Client().Set(ctx, "lk:g:{"+of.Scope+"}:"+of.ID+":"+of.Guard, "damage", time.Hour)
	for range 10 {
		if _, _, err := g.Begin(ctx, operation("damaged")); !errors.Is(err, store.ErrUnavailable) {
			w.t.Fatal(err)
		}
	}
}

// driveOutage stops the server until the breaker opens, calls the store a hundred times, and starts
// the server again.
func driveOutage(w *world, st *redisstore.Store, server *redistest.Server) {
	ctx := w.t.Context()
	l := w.limiter(st, tokenbucket.PerSecond(1000))
	server.Stop()
	until(w.t, "the breaker opens", func() bool {
		_, _ = l.Allow(ctx, secretKey)
		return w.sum("lockkeeper.store.breaker.open") == 1
	})
	for range 100 {
		if _, err := l.Allow(ctx, secretKey); !errors.Is(err, store.ErrUnavailable) {
			w.t.Errorf("a store that is down: %v", err)
		}
	}
	server.Restart()
	until(w.t, "the breaker closes", func() bool { return w.sum("lockkeeper.store.breaker.open") == 0 })
	_ = must(l.Allow(ctx, secretKey))
}

// sum adds up the time series of an instrument of numbers.
func (w *world) sum(name string) (sum int64) {
	w.t.Helper()
	for _, scope := range w.collect().ScopeMetrics {
		for _, m := range scope.Metrics {
			if m.Name != name {
				continue
			}
			var points []metricdata.DataPoint[int64]
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				points = data.DataPoints
			case metricdata.Gauge[int64]:
				points = data.DataPoints
			default:
				w.t.Fatalf("%s is a %T", name, m.Data)
			}
			for _, p := range points {
				sum += p.Value
			}
		}
	}
	return sum
}
