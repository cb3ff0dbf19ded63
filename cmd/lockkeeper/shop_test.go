package main

import (
	"context"
	"log/slog"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/operate"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// secret is that of the shop's guard.
const secret = "correct horse battery staple"

// holder is the label of the shop's holds.
const holder = "shop-1"

// shop is the process that operators look at, which is this one: it has a mechanism of each kind.
type shop struct {
	operator
	store   store.Store
	locker  *lock.Locker
	permits *semaphore.Semaphore
	limiter *tokenbucket.Limiter
	orders  *guard.Guard
	timers  *delay.Queue
}

// onRedis and onPostgres return a store and its URL.
func onRedis(t testing.TB) (store.Store, string) {
	t.Helper()
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true,
		MaintNotificationsConfig: noNotices})
	st, err := redisstore.New(client, redisstore.WithTimeout(testpace.Scale(2*time.Second)))
	must(t, err)
	t.Cleanup(func() {
		_ = st.Close()
		_ = client.Close()
	})
	return st, server.URL()
}

func onPostgres(t testing.TB) (store.Store, string) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	server := postgrestest.Start(t)
	conn, err := pgx.Connect(t.Context(), server.DSN())
	must(t, err)
	must(t, pgstore.Migrate(t.Context(), conn))
	must(t, conn.Close(t.Context()))
	st, err := pgstore.New(server.DSN(), pgstore.WithTimeout(testpace.Scale(5*time.Second)))
	must(t, err)
	t.Cleanup(func() { _ = st.Close() })
	return st, server.DSN()
}

var stores = map[string]func(testing.TB) (store.Store, string){"redis": onRedis, "postgresql": onPostgres}

// open opens a shop whose labels are a text. It is watched, so that its history is written.
func open(t testing.TB, on func(testing.TB) (store.Store, string), label string) *shop {
	t.Helper()
	st, url := on(t)
	s := &shop{operator: operator{t: t, store: url, patient: true}, store: st}
	quiet := slog.New(slog.DiscardHandler)
	var err error
	s.locker, err = lock.New(st, "stock", lock.WithHolder(label), lock.WithLogger(quiet), lock.WithTTL(time.Minute))
	must(t, err)
	s.permits, err = semaphore.New(st, "seats", 3, semaphore.WithHolder(label), semaphore.WithLogger(quiet),
		semaphore.WithTTL(time.Minute))
	must(t, err)
	s.limiter, err = tokenbucket.New(st, "api", tokenbucket.Limits{tokenbucket.PerHour(2), tokenbucket.PerDay(10)})
	must(t, err)
	s.orders, err = guard.New(st, "orders", guard.WithHolder(label), guard.WithSecret([]byte(secret)),
		guard.WithLogger(quiet))
	must(t, err)
	s.timers, err = delay.New(st, "timers", delay.WithHolder(label), delay.WithLogger(quiet))
	must(t, err)
	p, err := presence.Start(st, presence.Service("shop"), presence.WithLogger(quiet))
	must(t, err)
	testpace.Eventually(t, 5*time.Second, "the shop shows itself", func() bool {
		fleet, err := presence.Watch(t.Context(), st)
		return err == nil && len(fleet) == 1
	})
	t.Cleanup(func() {
		_ = p.Stop(context.Background())
		_, _, _, _ = s.locker.Close(), s.permits.Close(), s.orders.Close(), s.timers.Close()
		_ = s.limiter.Close()
	})
	return s
}

// wait has another process, as which this one acts, wait for a lock.
func (s *shop) wait(key string) {
	s.t.Helper()
	c := &call{command: &command{}, options: options{url: s.operator.store, prefix: "lk", schema: "lk"}}
	end, err := c.openStore()
	must(s.t, err)
	s.t.Cleanup(end)
	other, err := lock.New(c.store, "stock", lock.WithHolder(holder+" too"),
		lock.WithLogger(slog.New(slog.DiscardHandler)))
	must(s.t, err)
	go func() { _, _ = other.Lock(s.t.Context(), key) }() // until the test ends
	testpace.Eventually(s.t, 5*time.Second, "it waits", func() bool {
		state, err := s.locker.Inspect(s.t.Context(), key)
		return err == nil && state.Waiting == 1
	})
}

// unknown leaves an operation of unknown outcome, and returns its ID.
func (s *shop) unknown(key string) string {
	s.t.Helper()
	a, _, err := s.orders.Begin(s.t.Context(), guard.Operation{Scope: "customer", Key: key})
	must(s.t, err)
	must(s.t, a.CompleteUnknown(s.t.Context()))
	return a.OperationID()
}

// put leaves a task that waits, and bury one that is buried. Both return the task's ID.
func (s *shop) put(key string) string {
	s.t.Helper()
	_, err := s.timers.Put(s.t.Context(), key, []byte("x"), time.Hour)
	must(s.t, err)
	return s.taskID(key)
}

func (s *shop) bury(key, reason string) string {
	s.t.Helper()
	_, err := s.timers.Put(s.t.Context(), key, nil, 0)
	must(s.t, err)
	task, err := s.timers.Take(s.t.Context())
	must(s.t, err)
	must(s.t, task.Bury(s.t.Context(), reason))
	return s.taskID(key)
}

func (s *shop) taskID(key string) string {
	s.t.Helper()
	task, ok, err := operate.FindTask(s.t.Context(), s.store, "timers", operate.KeyID(key))
	if err != nil || !ok {
		s.t.Fatal(ok, err)
	}
	return task.TaskID
}

// secretFile writes the guard's secret to a file.
func secretFile(t testing.TB) string {
	t.Helper()
	f, err := os.CreateTemp(t.TempDir(), "")
	must(t, err)
	_, err = f.WriteString(secret + "\n")
	must(t, err)
	must(t, f.Close())
	return f.Name()
}
