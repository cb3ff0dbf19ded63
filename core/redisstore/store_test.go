package redisstore_test

import (
	"flag"
	"log/slog"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"go.uber.org/goleak"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

func TestMain(m *testing.M) {
	_ = flag.Set("test.parallel", "6") // tests that say so wait for time to pass, on any machine
	goleak.VerifyTestMain(m, redistest.Redialing())
}

// hasty is the deadline that a store has by default. A busy machine may take longer than that for
// calls that nothing is wrong with, so that what a test needs before its fault is done by a store that
// waits for longer.
var hasty = redisstore.WithTimeout(250 * time.Millisecond)

// newStore returns a store that waits for as long as a healthy call may take and that logs nothing,
// unless the options say otherwise.
func newStore(t testing.TB, client redis.UniversalClient, opts ...redisstore.Option) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(client, append([]redisstore.Option{
		redisstore.WithTimeout(5 * time.Second), redisstore.WithLogger(slog.New(slog.DiscardHandler)),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func contract(t *testing.T, run storetest.Runner) {
	t.Run("tokenbucket", func(t *testing.T) { storetest.TokenBuckets(t, run) })
	t.Run("guard", func(t *testing.T) { storetest.Guards(t, run) })
	t.Run("lock", func(t *testing.T) { storetest.Locks(t, run) })
	t.Run("semaphore", func(t *testing.T) { storetest.Semaphores(t, run) })
	t.Run("latch", func(t *testing.T) { storetest.Latches(t, run) })
}

func TestContractOnMiniredis(t *testing.T) {
	t.Parallel()
	contract(t, func(t *testing.T, test func(*testing.T, storetest.Harness)) {
		server := miniredis.RunT(t)
		client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: server.Addr()})
		t.Cleanup(func() { _ = client.Close() })
		test(t, storetest.Harness{
			Store: newStore(t, client),
			Advance: func(d time.Duration) {
				<-time.After(d)       // its scripts and its clients go by the time of day,
				server.FastForward(d) // and its keys by this
			},
		})
	})
}

func TestContractOnRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := obedient(t, server.Addr(), 20)
	contract(t, func(t *testing.T, test func(*testing.T, storetest.Harness)) {
		test(t, storetest.Harness{
			Store:   newStore(t, client),
			Advance: func(d time.Duration) { <-time.After(d) },
		})
	})
}
