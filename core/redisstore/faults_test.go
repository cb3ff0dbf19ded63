package redisstore_test

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// Helpers of the fault tests.

func ctx() context.Context { return context.Background() }

// dial returns a client that is closed when the test ends.
func dial(t testing.TB, addr string, readTimeout time.Duration) *redis.Client {
	t.Helper()
	c := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: addr, ReadTimeout: readTimeout, PoolSize: 10})
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// unusedAddr returns an address that refuses connections.
func unusedAddr(t testing.TB) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	return l.Addr().String()
}

func newLimiter(t testing.TB, s *redisstore.Store) *tokenbucket.Limiter {
	t.Helper()
	l, err := tokenbucket.New(s, "api", tokenbucket.PerDay(100))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func newGuard(t testing.TB, s *redisstore.Store, opts ...guard.Option) *guard.Guard {
	t.Helper()
	g, err := guard.New(s, "orders", opts...)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

// remaining returns how many of the 100 tokens of newLimiter a key has, read without faults.
func remaining(t testing.TB, server redis.UniversalClient, key string) int64 {
	t.Helper()
	d, err := newLimiter(t, newStore(t, server)).Peek(ctx(), key)
	if err != nil {
		t.Fatal(err)
	}
	return d.Limits()[0].Remaining
}

// op is an operation, and one attempt at it.
type op struct{ scope, id, owner, fingerprint string }

func newOp(name string) op {
	fill := func(s string, n int) string { return (s + strings.Repeat("_", n))[:n] }
	return op{"", fill(name, 22), fill(name+"-owner", 22), fill("f", 43)}
}

// in puts an operation into a scope.
func (o op) in(scope string) op {
	if scope != "" {
		o.scope = newOp(scope).id
	}
	return o
}

func (o op) by(owner string) op {
	o.owner = newOp(owner).owner
	return o
}

func (o op) ref() store.AttemptRef {
	return store.AttemptRef{OperationRef: store.OperationRef{Guard: "orders", Scope: o.scope, ID: o.id}, Owner: o.owner}
}

func (o op) begin(s *redisstore.Store) (store.BeginReply, error) {
	return s.BeginOperation(ctx(), store.BeginRequest{
		AttemptRef: o.ref(), Fingerprint: o.fingerprint, Lease: 30 * time.Second, Retention: time.Hour,
		MaxRecords: 1000,
	})
}

func (o op) settle(s *redisstore.Store, data string) (bool, error) {
	return s.SettleOperation(ctx(), store.SettleRequest{
		AttemptRef: o.ref(), Fingerprint: o.fingerprint, Number: 1, State: store.Completed,
		Status: 201, Data: []byte(data), Retention: time.Hour,
		MaxBytes: 1 << 20,
	})
}

func (o op) abandon(s *redisstore.Store) (bool, error) {
	return s.AbandonOperation(ctx(), o.ref())
}

func (o op) mark(s *redisstore.Store) (bool, error) {
	return s.MarkOperation(ctx(), store.MarkRequest{AttemptRef: o.ref(), Effects: store.NoEffects, Seq: 1})
}

func (o op) renewal() store.RenewRequest {
	return store.RenewRequest{AttemptRef: o.ref(), Lease: 30 * time.Second, Retention: time.Hour}
}

func (o op) renew(s *redisstore.Store) (bool, error) {
	held, err := s.RenewOperations(ctx(), []store.RenewRequest{o.renewal()})
	return err == nil && len(held) == 1 && held[0], err
}

// started fails the test unless the attempt begins as the first one.
func (o op) started(t testing.TB, s *redisstore.Store) {
	t.Helper()
	if reply, err := o.begin(s); err != nil || reply.Outcome != store.Started || reply.Number != 1 {
		t.Fatalf("begin: %+v, %v; want attempt 1 started", reply, err)
	}
}

// wantOwned fails the test unless a step was taken.
func wantOwned(t testing.TB, step string, owned bool, err error) {
	t.Helper()
	if err != nil || !owned {
		t.Errorf("%s: owned %v, %v; want it owned", step, owned, err)
	}
}

// wantUnavailable checks an error, and whether it says that the request may have been carried out.
func wantUnavailable(t testing.TB, err error, unconfirmed bool) {
	t.Helper()
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrUnconfirmed) != unconfirmed {
		t.Errorf("got %v, want store.ErrUnavailable, unconfirmed: %v", err, unconfirmed)
	}
}

// eventually polls until a condition holds, and fails the test if it does not in time.
func eventually(t testing.TB, within time.Duration, what string, holds func() bool) {
	t.Helper()
	testpace.Eventually(t, within, what, holds)
}

// goroutines returns the number of goroutines, without those of proxies.
func goroutines() int {
	buf := make([]byte, 4<<20)
	n := 0
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if !strings.Contains(stack, "redistest.") && !strings.Contains(stack, "faultproxy.") {
			n++
		}
	}
	return n
}

// onlyKey returns the one key that a server holds.
func onlyKey(t testing.TB, server *redis.Client) string {
	t.Helper()
	keys, err := server.Keys(ctx(), "*").Result()
	if err != nil || len(keys) != 1 {
		t.Fatalf("keys %q, %v; want one", keys, err)
	}
	return keys[0]
}

// logbook is what a store has logged.
type logbook struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) has(s string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), s)
}

func (l *logbook) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// tripped is what the store logs when it takes the server to be down.
const tripped = "redis is down"

func (l *logbook) option() redisstore.Option {
	return redisstore.WithLogger(slog.New(slog.NewTextHandler(l, nil)))
}

// behindProxy returns a server, a proxy to it, and a client and a store that use the proxy.
func behindProxy(t testing.TB, readTimeout time.Duration, opts ...redisstore.Option) (*redistest.Server, *redistest.Proxy, *redis.Client, *redisstore.Store) {
	t.Helper()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := dial(t, proxy.Addr(), readTimeout)
	return server, proxy, client, newStore(t, client, opts...)
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// keysOf returns the keys that match a pattern. It fails the test if there are none.
func keysOf(t testing.TB, server *redis.Client, pattern string) []string {
	t.Helper()
	keys, err := server.Keys(ctx(), pattern).Result()
	if err != nil || len(keys) == 0 {
		t.Fatalf("keys like %s: %q, %v", pattern, keys, err)
	}
	return keys
}

func configure(t testing.TB, server *redis.Client, setting, value string) {
	t.Helper()
	if err := server.ConfigSet(ctx(), setting, value).Err(); err != nil {
		t.Fatal(err)
	}
}

// eachForm runs a test with both forms of the scripts: with a client of a server, and with one
// whose server seems to be older than Redis 7.
func eachForm(t *testing.T, test func(t *testing.T, server *redistest.Server, client *redis.Client)) {
	for _, name := range []string{"", "before 7"} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			client := server.Client()
			if name != "" {
				client.AddHook(new(oldServer))
			}
			test(t, server, client)
		})
	}
}

// obedient returns a client that ends calls by their contexts alone: its own timeouts are long.
func obedient(t testing.TB, addr string, poolSize int) *redis.Client {
	t.Helper()
	return pooled(t, addr, time.Minute, poolSize)
}

// subscribed waits until n stores have subscribed to their inboxes.
func subscribed(t testing.TB, client redis.UniversalClient, n int) {
	t.Helper()
	eventually(t, 5*time.Second, "subscriptions", func() bool {
		return len(client.PubSubChannels(ctx(), "*").Val()) >= n
	})
}

// onBoth runs a test on a real server and on miniredis.
func onBoth(t *testing.T, test func(*testing.T, redis.UniversalClient)) {
	t.Run("redis", func(t *testing.T) { test(t, redistest.Start(t).Client()) })
	t.Run("miniredis", func(t *testing.T) { test(t, dial(t, miniredis.RunT(t).Addr(), time.Second)) })
}

// warm opens all connections of a client, which has some for pipelines alone.
func warm(t *testing.T, proxy *redistest.Proxy, client *redis.Client) {
	t.Helper()
	proxy.Delay(50 * time.Millisecond)
	together(client.Options().PoolSize, func(int) { must(t, client.Ping(ctx()).Err()) })
	together(10, func(int) {
		pipe := client.Pipeline()
		pipe.Ping(ctx())
		pipe.Ping(ctx())
		_, err := pipe.Exec(ctx())
		must(t, err)
	})
	proxy.Delay(0)
}

// processHook is called before every command that is not in a pipeline.
type processHook func(redis.Cmder)

func (h processHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h processHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return next
}

func (h processHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		h(cmd)
		return next(ctx, cmd)
	}
}

// slowestPing returns how long the slowest of many PINGs took during a function.
func slowestPing(t *testing.T, client *redis.Client, during func()) (slowest time.Duration) {
	t.Helper()
	must(t, client.Ping(ctx()).Err())
	done := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			sent := time.Now()
			if err := client.Ping(ctx()).Err(); err != nil {
				t.Error(err)
			}
			slowest = max(slowest, time.Since(sent))
			select {
			case <-done:
				return
			case <-time.After(time.Millisecond):
			}
		}
	})
	during()
	close(done)
	wg.Wait()
	return slowest
}
