package redistest

import (
	"context"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
)

// Servers start a server of each kind, and return what makes a client of it. Its time-out is long: a
// reply that is late, on a busy machine, is not an outage.
var Servers = map[string]func(testing.TB) (connect func() redis.UniversalClient){
	"miniredis": func(t testing.TB) func() redis.UniversalClient {
		if raced {
			t.Skip("takes long with the race detector, which sees the same on Redis")
		}
		server := miniredis.RunT(t)
		passTime(t, server)
		return func() redis.UniversalClient {
			return redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: server.Addr(), ReadTimeout: late, WriteTimeout: late})
		}
	},
	"redis": func(t testing.TB) func() redis.UniversalClient {
		server := Start(t)
		return func() redis.UniversalClient {
			return redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: server.Addr(), ReadTimeout: late, WriteTimeout: late})
		}
	},
	"cluster": func(t testing.TB) func() redis.UniversalClient {
		if testing.Short() {
			t.Skip("takes as long as on one server again")
		}
		cluster := StartCluster(t)
		return func() redis.UniversalClient { return cluster.client(nil, late) }
	},
}

// late is the time-out of clients of [Servers].
const late = 10 * time.Second

// passTime has the keys of a miniredis expire, whose time stands still.
func passTime(t testing.TB, server *miniredis.Miniredis) {
	ctx, stop := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for last := time.Now(); ; {
			select {
			case <-ctx.Done():
				return
			case now := <-tick.C:
				server.FastForward(now.Sub(last))
				last = now
			}
		}
	}()
	t.Cleanup(func() {
		stop()
		<-stopped
	})
}
