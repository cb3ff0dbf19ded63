package middleware_test

import (
	"context"
	"crypto/rand"
	"net/http"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/mwtest"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// servers start what keeps records, and return what makes a client of it.
var servers = map[string]func(*testing.T) func() redis.UniversalClient{
	"miniredis": func(t *testing.T) func() redis.UniversalClient {
		server := miniredis.RunT(t)
		passTime(t, server)
		return func() redis.UniversalClient {
			return redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: server.Addr()})
		}
	},
	"redis": func(t *testing.T) func() redis.UniversalClient {
		server := redistest.Start(t)
		return func() redis.UniversalClient { return server.Client() }
	},
	"cluster": func(t *testing.T) func() redis.UniversalClient {
		cluster := redistest.StartCluster(t)
		return func() redis.UniversalClient { return cluster.Client() }
	},
}

// Twins in several processes wait for each other on every store.
func TestTwins(t *testing.T) {
	for name, start := range servers {
		t.Run(name, func(t *testing.T) {
			client := start(t)
			for name, f := range map[string]mwtest.Framework{"ServeMux": onServeMux, "gin": onGin, "echo v4": onEchoV4, "echo v5": onEchoV5} {
				t.Run(name, func(t *testing.T) {
					on := framework(func(handler http.HandlerFunc, middleware []mwtest.Middleware) http.Handler {
						return recovering(f.Serve(handler, middleware...))
					})
					mwtest.RunTwins(t, on, func(t *testing.T) func() store.Store {
						prefix := rand.Text()
						return func() store.Store { return connect(t, client(), prefix) }
					})
				})
			}
		})
	}
}

// passTime has the keys of a miniredis expire, whose time stands still.
func passTime(t *testing.T, server *miniredis.Miniredis) {
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

// connect returns the store of a process.
func connect(t *testing.T, client redis.UniversalClient, prefix string) store.Store {
	st, err := redisstore.New(client, redisstore.WithPrefix(prefix), redisstore.WithTimeout(5*time.Second)) // a busy machine is no outage
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = st.Close()
		_ = client.Close()
	})
	return st
}
