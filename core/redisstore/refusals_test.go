package redisstore_test

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// refusal is a state in which a server refuses steps.
type refusal struct {
	args    []string
	provoke func(t *testing.T, server *redis.Client)
	// options change those of the store's client.
	options func(*redis.Options)
	cause   store.Cause
	// is what the errors match: an outage if nil.
	is error
	// opens is set if the breaker opens.
	opens bool
}

var refusalsOfServers = map[string]func(t *testing.T) refusal{
	"MISCONF": func(t *testing.T) refusal {
		dir := filepath.Join(t.TempDir(), "gone")
		must(t, os.Mkdir(dir, 0o700))
		return refusal{args: []string{"--dir", dir, "--save", "3600 1"}, provoke: func(t *testing.T, server *redis.Client) {
			must(t, os.RemoveAll(dir))
			_ = server.BgSave(ctx()).Err()
			eventually(t, 10*time.Second, "it cannot save", func() bool {
				return strings.Contains(server.Info(ctx(), "persistence").Val(), "rdb_last_bgsave_status:err")
			})
		}, cause: store.Persistence, opens: true}
	},
	"NOREPLICAS": func(*testing.T) refusal {
		return refusal{provoke: func(t *testing.T, server *redis.Client) {
			configure(t, server, "min-replicas-to-write", "1")
		}, cause: store.Replication, opens: true}
	},
	"BUSY": func(*testing.T) refusal {
		return refusal{provoke: func(t *testing.T, server *redis.Client) {
			configure(t, server, "lua-time-limit", "1")
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = server.WithTimeout(time.Minute).Eval(ctx(), "while true do end", nil).Err()
			}()
			t.Cleanup(func() {
				_ = server.ScriptKill(ctx()).Err()
				<-ended
			})
			eventually(t, 10*time.Second, "it is busy", func() bool {
				return redis.HasErrorPrefix(server.Ping(ctx()).Err(), "BUSY")
			})
		}, cause: store.ServerBusy, opens: true}
	},
	"LOADING": func(*testing.T) refusal {
		return refusal{args: []string{"--enable-debug-command", "yes"}, provoke: func(t *testing.T, server *redis.Client) {
			configure(t, server, "rdbcompression", "no")
			must(t, server.Do(ctx(), "debug", "populate", 2000, "k", 1000).Err())
			configure(t, server, "loading-process-events-interval-bytes", "1024")
			configure(t, server, "key-load-delay", "20000")
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				_ = server.WithTimeout(time.Minute).Do(ctx(), "debug", "reload").Err()
			}()
			t.Cleanup(func() {
				_ = server.ShutdownNoSave(ctx()).Err()
				<-ended
			})
			eventually(t, 10*time.Second, "it loads", func() bool {
				return redis.HasErrorPrefix(server.Ping(ctx()).Err(), "LOADING")
			})
		}, cause: store.Starting, opens: true}
	},
	"READONLY": func(*testing.T) refusal {
		return refusal{provoke: func(t *testing.T, server *redis.Client) {
			must(t, server.Do(ctx(), "replicaof", "127.0.0.1", "1").Err())
		}, cause: store.ReadOnly, is: store.ErrMisconfigured, opens: true}
	},
	"MASTERDOWN": func(*testing.T) refusal {
		return refusal{provoke: func(t *testing.T, server *redis.Client) {
			configure(t, server, "replica-serve-stale-data", "no")
			must(t, server.Do(ctx(), "replicaof", "127.0.0.1", "1").Err())
		}, cause: store.ReadOnly, is: store.ErrMisconfigured, opens: true}
	},
	"CLUSTERDOWN": func(*testing.T) refusal {
		return refusal{args: []string{"--cluster-enabled", "yes"}, cause: store.ClusterDown, opens: true}
	},
	"OOM": func(*testing.T) refusal {
		return refusal{provoke: func(t *testing.T, server *redis.Client) {
			configure(t, server, "maxmemory", "1")
		}, cause: store.Full, is: store.ErrFull}
	},
	"max clients": func(*testing.T) refusal {
		return refusal{provoke: func(t *testing.T, server *redis.Client) {
			must(t, server.Ping(ctx()).Err())
			configure(t, server, "maxclients", "1")
		}, cause: store.ConnectionLimit}
	},
	"NOAUTH": func(*testing.T) refusal {
		return refusal{provoke: func(t *testing.T, server *redis.Client) {
			configure(t, server, "requirepass", "secret")
		}, cause: store.Authentication, is: store.ErrMisconfigured, opens: true}
	},
	"WRONGPASS": func(*testing.T) refusal {
		return refusal{options: func(o *redis.Options) {
			o.Username, o.Password = "nobody", "wrong"
		}, cause: store.Authentication, is: store.ErrMisconfigured, opens: true}
	},
	"NOPERM": func(*testing.T) refusal {
		return refusal{
			args:    []string{"--user", "weak", "on", ">p", "~*", "&*", "+@all", "-eval", "-evalsha"},
			options: func(o *redis.Options) { o.Username, o.Password = "weak", "p" },
			cause:   store.Permission, is: store.ErrMisconfigured,
		}
	},
	"no such database": func(*testing.T) refusal {
		return refusal{
			options: func(o *redis.Options) { o.DB = 99 },
			cause:   store.WrongServer, is: store.ErrMisconfigured,
		}
	},
}

// Each refusal that a server documents has a cause and a verdict, and Check finds it.
func TestRefusals(t *testing.T) {
	for name, of := range refusalsOfServers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := of(t)
			server := redistest.Start(t, r.args...)
			if r.provoke != nil {
				r.provoke(t, server.Client())
			}
			o := &redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true}
			if r.options != nil {
				r.options(o)
			}
			client := redis.NewClient(o)
			t.Cleanup(func() { _ = client.Close() })
			log := new(logbook)
			s := newStore(t, client, redisstore.WithTimeout(testpace.Scale(3*time.Second)), log.option())
			found, err := s.Check(ctx())
			if r.cause == store.Authentication || r.cause == store.ConnectionLimit { // it cannot ask
				if !errors.Is(err, store.ErrUnavailable) || r.is != nil && store.CauseOf(err) != r.cause {
					t.Errorf("Check: %v, %v", found, err)
				}
			} else if err != nil || !has(found, r.cause) {
				t.Errorf("Check: %v, %v", found, err)
			}
			_, charged := newLimiter(t, s).Allow(ctx(), "k")
			_, begun := newOp("o").begin(s)
			_, acquired := newClaim("k", "holder").acquire(s)
			for _, err := range []error{charged, begun, acquired} {
				cause := store.CauseOf(err)
				reset := r.cause == store.ConnectionLimit && cause == store.OtherCause // before the client has read why
				if is := r.is; cause != r.cause && !reset || store.Down(err) != (is == nil) || is != nil && !errors.Is(err, is) {
					t.Errorf("%v: the cause is %q, an outage: %v", err, cause, store.Down(err))
				}
			}
			if r.opens {
				eventually(t, 5*time.Second, "the breaker opens", func() bool { return log.has(tripped) && log.has("cause="+string(r.cause)) })
			} else if log.has(tripped) {
				t.Errorf("the breaker opened: %s", &log.text)
			}
		})
	}
}

func has(found []store.Finding, refused store.Cause) bool {
	return slices.ContainsFunc(found, func(f store.Finding) bool {
		return f.Refused == refused && f.Found != "" && f.Remedy != ""
	})
}
