package redisstore_test

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// scriptKeys is a hook that records the keys of every script call.
type scriptKeys struct {
	mu    sync.Mutex
	calls [][]string
}

func (h *scriptKeys) record(cmd redis.Cmder) {
	args := cmd.Args()
	if name := cmd.Name(); name != "evalsha" && name != "eval" {
		return
	}
	var keys []string
	for _, key := range args[3 : 3+args[2].(int)] {
		keys = append(keys, *key.(*string))
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.calls = append(h.calls, keys)
}

func (h *scriptKeys) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h *scriptKeys) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h.record(cmd)
		return next(ctx, cmd)
	}
}

func (h *scriptKeys) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		for _, cmd := range cmds {
			h.record(cmd)
		}
		return next(ctx, cmds)
	}
}

func hashTag(key string) string {
	_, rest, _ := strings.Cut(key, "{")
	tag, _, _ := strings.Cut(rest, "}")
	return tag
}

// mixture calls most steps, with text of users in all places that take it.
func mixture(t *testing.T, s *redisstore.Store) {
	t.Helper()
	limits := tokenbucket.Limits{tokenbucket.PerMinute(7).Burst(3), tokenbucket.PerDay(100).Named("daily")}
	l, err := tokenbucket.New(s, "mixed", limits)
	if err != nil {
		t.Fatal(err)
	}
	for i := range 5 { // the last ones are denied
		if _, err := l.Allow(ctx(), fmt.Sprint("SECRET{user}", i%2)); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Reset(ctx(), "SECRET{user}1"); err != nil {
		t.Fatal(err)
	}
	g := newGuard(t, s)
	for name, end := range map[string]func(*guard.Attempt) error{
		"open":  func(*guard.Attempt) error { return nil },
		"clean": func(a *guard.Attempt) error { return a.MarkClean(ctx()) },
		"completed": func(a *guard.Attempt) error {
			return a.Complete(ctx(), guard.Result{Status: 200, Data: []byte("result")})
		},
		"dropped":   func(a *guard.Attempt) error { return a.CompleteNotRetained(ctx(), 500) },
		"unknown":   func(a *guard.Attempt) error { return a.CompleteUnknown(ctx()) },
		"abandoned": func(a *guard.Attempt) error { return a.Abandon(ctx()) },
	} {
		attempt, _, err := g.Begin(ctx(), guard.Operation{
			Scope: "SECRET{scope}", Key: "SECRET" + name, Fingerprint: []byte("SECRETprint"),
		})
		if err != nil {
			t.Fatal(err)
		}
		if err := end(attempt); err != nil {
			t.Fatal(err)
		}
		if name == "open" || name == "clean" {
			t.Cleanup(func() { _ = attempt.Abandon(ctx()) }) // ends its renewal
		}
	}
	o := newOp("raw")
	o.started(t, s)
	owned, err := o.renew(s)
	wantOwned(t, "renew", owned, err)
	if _, err := newOp("never").abandon(s); err != nil {
		t.Fatal(err)
	}
}

func TestKeysExpireAndTellNothing(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	client, hook := server.Client(), new(scriptKeys)
	client.AddHook(hook)
	mixture(t, newStore(t, client, redisstore.WithPrefix("shop")))

	direct := server.Client()
	keys, err := direct.Keys(ctx(), "*").Result()
	if err != nil {
		t.Fatal(err)
	}
	if len(keys) < 10 {
		t.Fatalf("%d keys: the test does not test what it says", len(keys))
	}
	for _, key := range keys {
		if ttl := direct.PTTL(ctx(), key).Val(); ttl <= 0 || ttl > 26*time.Hour {
			t.Errorf("%s lives for %v", key, ttl)
		}
		value := direct.Get(ctx(), key).Val()
		if !strings.HasPrefix(key, "shop:") || strings.Contains(key+value, "SECRET") {
			t.Errorf("%s: %q", key, value)
		}
	}
	hook.mu.Lock()
	defer hook.mu.Unlock()
	several := 0
	for _, keys := range hook.calls {
		tag := hashTag(keys[0])
		if tag == "" || slices.ContainsFunc(keys, func(k string) bool { return hashTag(k) != tag }) {
			t.Errorf("keys of one script call are in several slots: %q", keys)
		}
		if len(keys) > 1 {
			several++
		}
	}
	if several == 0 {
		t.Error("no script call had several keys")
	}
}

func TestPrefixesAndSecretsKeepStoresApart(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	for _, other := range []redisstore.Option{redisstore.WithPrefix("other"), redisstore.WithSecret([]byte("pepper"))} {
		server.Client().FlushAll(ctx())
		a, b := newStore(t, server.Client()), newStore(t, server.Client(), other)
		if _, err := newLimiter(t, a).AllowN(ctx(), "k", 100); err != nil {
			t.Fatal(err)
		}
		if d, err := newLimiter(t, b).Allow(ctx(), "k"); err != nil || !d.Allowed {
			t.Errorf("the other store's bucket: %+v, %v", d, err)
		}
		same := newStore(t, server.Client())
		if d, err := newLimiter(t, same).Allow(ctx(), "k"); err != nil || d.Allowed {
			t.Errorf("the same bucket in another store: %+v, %v", d, err)
		}
	}
	a, b := newStore(t, server.Client()), newStore(t, server.Client(), redisstore.WithPrefix("other"))
	newOp("same").started(t, a)
	newOp("same").by("other").started(t, b)
}

func TestNewRefuses(t *testing.T) {
	testpace.Parallel(t)
	var none *redis.Client
	client := dial(t, unusedAddr(t), time.Second)
	long := strings.Repeat("p", 65)
	for name, build := range map[string]func() (*redisstore.Store, error){
		"nil client":       func() (*redisstore.Store, error) { return redisstore.New(nil) },
		"typed nil client": func() (*redisstore.Store, error) { return redisstore.New(none) },
		"no prefix":        func() (*redisstore.Store, error) { return redisstore.New(client, redisstore.WithPrefix("")) },
		"long prefix":      func() (*redisstore.Store, error) { return redisstore.New(client, redisstore.WithPrefix(long)) },
		"braces":           func() (*redisstore.Store, error) { return redisstore.New(client, redisstore.WithPrefix("a{b")) },
		"no time":          func() (*redisstore.Store, error) { return redisstore.New(client, redisstore.WithTimeout(0)) },
		"an age":           func() (*redisstore.Store, error) { return redisstore.New(client, redisstore.WithTimeout(time.Hour)) },
	} {
		if s, err := build(); s != nil || err == nil || !strings.HasPrefix(err.Error(), "redisstore: New: ") {
			t.Errorf("%s: %v, %v", name, s, err)
		}
	}
	s, err := redisstore.New(client, nil, redisstore.WithPrefix(long[:64]), redisstore.WithLogger(nil), redisstore.WithTimeout(time.Minute))
	if err != nil {
		t.Fatal(err)
	}
	_ = s.Close()
}

// wrapped is a client that hides what it is.
type wrapped struct{ redis.UniversalClient }

func TestNewRefusesClients(t *testing.T) {
	testpace.Parallel(t)
	addr := unusedAddr(t)
	obedient := redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}, ContextTimeoutEnabled: true})
	for name, c := range map[string]struct {
		client redis.UniversalClient
		says   string
	}{
		"a client that ignores deadlines":  {redis.NewClient(&redis.Options{Addr: addr}), "ContextTimeoutEnabled"},
		"a Cluster that ignores deadlines": {redis.NewClusterClient(&redis.ClusterOptions{Addrs: []string{addr}}), "ContextTimeoutEnabled"},
		"a Cluster that reads from replicas": {redis.NewClusterClient(&redis.ClusterOptions{
			Addrs: []string{addr}, ContextTimeoutEnabled: true, ReadOnly: true,
		}), "ReadOnly"},
		"a Ring":                        {redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": addr}}), "Ring"},
		"a client that wraps a Cluster": {wrapped{obedient}, "redisstore_test.wrapped"},
	} {
		s, err := redisstore.New(c.client)
		if s != nil || err == nil || !strings.Contains(err.Error(), c.says) {
			t.Errorf("%s: %v does not say %q", name, err, c.says)
		}
		_ = c.client.Close()
	}
}
