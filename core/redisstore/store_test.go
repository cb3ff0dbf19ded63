package redisstore_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestMain(m *testing.M) {
	testpace.InShort("^TestContract(OnRedis|OnMiniredis|BeforeRedis7)$")
	leaktest.Main(m, redistest.Redialing)
}

// hasty is the deadline that a store has by default. A busy machine may take longer than that for
// calls that nothing is wrong with, so that what a test needs before its fault is done by a store
// that waits for longer.
var hasty = redisstore.WithTimeout(250 * time.Millisecond)

// newStore returns a store that waits for as long as a healthy call may take and that logs nothing,
// unless the options say otherwise.
func newStore(t testing.TB, client redis.UniversalClient, opts ...redisstore.Option) *redisstore.Store {
	t.Helper()
	s, err := redisstore.New(client, append([]redisstore.Option{
		redisstore.WithTimeout(30 * time.Second), redisstore.WithLogger(slog.New(slog.DiscardHandler)),
	}, opts...)...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestContractOnMiniredis(t *testing.T) {
	t.Parallel()
	if testpace.Raced {
		t.Skip("takes five times as long with the race detector, which sees the same on Redis")
	}
	interpreters := make(chan struct{}, 6) // each computes in this process
	storetest.All(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*redisstore.Store])) {
		t.Parallel()
		interpreters <- struct{}{}
		defer func() { <-interpreters }()
		server := miniredis.RunT(t)
		test(t, storetest.Harness[*redisstore.Store]{
			Store: newStore(t, obedient(t, server.Addr(), 20)),
			Advance: func(d time.Duration) {
				<-time.After(d)       // its scripts and its clients go by the time of day,
				server.FastForward(d) // and its keys by this
			},
		})
	})
}
