package redisstore_test

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestScriptFlushFailsNoCall(t *testing.T) {
	testpace.Parallel(t)
	for name, spelling := range map[string]string{"redis": "-NOSCRIPT", "proxies": "-ERR NOSCRIPT"} {
		t.Run(name, func(t *testing.T) {
			server, proxy, _, s := behindProxy(t, time.Second, redisstore.WithTimeout(10*time.Second))
			proxy.Rewrite("-NOSCRIPT", spelling)
			direct, l := server.Client(), newLimiter(t, s)
			forgotten := proxy.Seen("eval")
			for i := range 20 {
				flush := func() {
					if err := direct.ScriptFlush(ctx()).Err(); err != nil {
						t.Fatal(err)
					}
				}
				flush()
				if _, err := l.Allow(ctx(), "k"); err != nil {
					t.Fatalf("charge: %v", err)
				}
				ops := []op{newOp(fmt.Sprint("a", i)), newOp(fmt.Sprint("b", i)), newOp(fmt.Sprint("c", i))}
				var renewals []store.RenewRequest
				for _, o := range ops {
					flush()
					o.started(t, s)
					renewals = append(renewals, o.renewal())
				}
				flush()
				held, err := s.RenewOperations(ctx(), append(renewals, newOp("nobody's").renewal()))
				if err != nil || len(held) != 4 || !held[0] || !held[1] || !held[2] || held[3] {
					t.Fatalf("renewed %v, %v; want all but the last", held, err)
				}
				flush()
				owned, err := ops[0].settle(s, "kept")
				wantOwned(t, "settle", owned, err)
			}
			if proxy.Seen("eval") == forgotten {
				t.Error("no call found its script gone: the test does not test what it says")
			}
			if got := remaining(t, direct, "k"); got != 80 {
				t.Errorf("%d tokens remain of 100 after 20 charges", got)
			}
		})
	}
}

func TestScriptFlushUnderLoad(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct := server.Client()
	s := newStore(t, obedient(t, server.Addr(), 10))
	l := newLimiter(t, s)
	var (
		load sync.WaitGroup
		done atomic.Bool
	)
	for w := range 3 {
		load.Go(func() {
			for i := range 100 {
				o := newOp(fmt.Sprint("op-", w, "-", i))
				if _, err := l.AllowN(ctx(), "k", 0); err != nil {
					t.Errorf("charge: %v", err)
				}
				if reply, err := o.begin(s); err != nil || reply.Outcome != store.Started {
					t.Errorf("begin: %+v, %v", reply, err)
				}
				owned, err := o.renew(s)
				wantOwned(t, "renew", owned, err)
			}
		})
	}
	go func() { load.Wait(); done.Store(true) }()
	for !done.Load() {
		if err := direct.ScriptFlush(ctx()).Err(); err != nil {
			t.Error(err)
		}
	}
}

// oldServer is a hook that makes a server behave like one before Redis 7.
type oldServer struct{ modern atomic.Int64 }

type replyError string

func (e replyError) Error() string { return string(e) }
func (replyError) RedisError()     {}

const noShebang = replyError("ERR Error compiling script (new function): user_script:1: unexpected symbol near '#'")

// refuses reports whether a server before Redis 7 refuses a command, and counts those.
func (h *oldServer) refuses(cmd redis.Cmder) bool {
	for _, arg := range cmd.Args() {
		if strings.HasPrefix(fmt.Sprint(arg), "#!lua") {
			h.modern.Add(1)
			return true
		}
	}
	return false
}

func (h *oldServer) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *oldServer) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if h.refuses(cmd) {
			cmd.SetErr(noShebang)
			return noShebang
		}
		return next(ctx, cmd)
	}
}

func (h *oldServer) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		refused := false
		for _, cmd := range cmds {
			if h.refuses(cmd) {
				cmd.SetErr(noShebang)
				refused = true
			}
		}
		if refused {
			return noShebang
		}
		return next(ctx, cmds)
	}
}

func TestContractBeforeRedis7(t *testing.T) {
	t.Parallel()
	if testpace.Raced {
		t.Skip("other texts of the scripts, which -short runs: the race detector sees the same on Redis")
	}
	server := redistest.Start(t)
	storetest.All(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*redisstore.Store])) {
		t.Parallel()
		client, hook := server.Client(), new(oldServer)
		client.AddHook(hook)
		st := newStore(t, client)
		// The first call detects the server's version; later ones must send nothing that it
		// refuses.
		if _, err := newLimiter(t, st).Allow(ctx(), "first"); err != nil {
			t.Fatal(err)
		}
		refused := hook.modern.Load()
		test(t, storetest.Harness[*redisstore.Store]{
			Store:   st,
			Advance: func(d time.Duration) { <-time.After(d) },
		})
		if n := hook.modern.Load() - refused; n > 0 {
			t.Errorf("%d scripts were sent that the server is known to refuse", n)
		}
	})
}

// Concurrent first calls may each detect the server's version.
func TestManyFirstCallsBeforeRedis7(t *testing.T) {
	testpace.Parallel(t)
	client := redistest.Start(t).Client()
	client.AddHook(new(oldServer))
	st := newStore(t, client, redisstore.WithTimeout(5*time.Second))
	limiter := newLimiter(t, st)
	var wg sync.WaitGroup
	for i := range 200 {
		wg.Go(func() {
			if _, err := limiter.Allow(ctx(), strconv.Itoa(i)); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

// A server that is far away must not spend the deadline of every call on loading scripts.
func TestScriptsLoadInOneRoundTrip(t *testing.T) {
	_, proxy, client, s := behindProxy(t, 5*time.Second, redisstore.WithTimeout(time.Second))
	if err := client.Ping(ctx()).Err(); err != nil { // the connection's own round trips
		t.Fatal(err)
	}
	proxy.Delay(120 * time.Millisecond) // each way: four round trips are all that the deadline allows
	if _, err := newLimiter(t, s).Allow(ctx(), "k"); err != nil {
		t.Errorf("the first call: %v", err)
	}
}

// If SCRIPT LOAD is forbidden, calls succeed without it, and do not try it each time.
func TestScriptsThatCannotBeLoaded(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t, "--user", "app", "on", ">secret", "~*", "&*", "+@all", "-script")
	proxy := redistest.NewProxy(t, server.Addr())
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: proxy.Addr(), Username: "app", Password: "secret"})
	t.Cleanup(func() { _ = client.Close() })
	l := newLimiter(t, newStore(t, client))
	began := time.Now()
	for range 50 {
		if _, err := l.Allow(ctx(), "k"); err != nil {
			t.Fatal(err)
		}
	}
	tries := 1 + int(time.Since(began)/time.Second)
	if got := proxy.Seen("script"); got > redisstore.Scripts()*tries {
		t.Errorf("sent %d times to load %d scripts", got, redisstore.Scripts())
	}
	if got := proxy.Seen("eval"); got != 1 {
		t.Errorf("sent the text %d times, want once", got)
	}
}
