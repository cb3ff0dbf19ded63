package redisfence_test

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/redisfence"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

func TestMain(m *testing.M) { leaktest.Main(m, redistest.Redialing) }

func Example() {
	server, err := miniredis.Run() // yours goes here
	if err != nil {
		panic(err)
	}
	defer server.Close()
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: server.Addr()})
	defer func() { _ = client.Close() }()

	carts, err := redisfence.New(client)
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	paused, next := fence.Token{Number: 33}, fence.Token{Number: 34} // of two leases
	fmt.Println(carts.Set(ctx, "cart:42", []byte("2 books"), 0, next))
	err = carts.Set(ctx, "cart:42", []byte("1 book"), 0, paused)
	fmt.Println(errors.Is(err, fence.ErrStale))
	fmt.Println(client.Get(ctx, "cart:42").Val())
	// Output:
	// <nil>
	// true
	// 2 books
}

func clientOf(t testing.TB, addr string) *redis.Client {
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: addr, ReadTimeout: 500 * time.Millisecond})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

// onEach runs a test on miniredis and on a server.
func onEach(t *testing.T, test func(*testing.T, *redis.Client)) {
	t.Run("miniredis", func(t *testing.T) {
		test(t, clientOf(t, miniredis.RunT(t).Addr()))
	})
	t.Run("redis", func(t *testing.T) { test(t, redistest.Start(t).Client()) })
}

func newFence(t testing.TB, client redis.UniversalClient, opts ...redisfence.Option) *redisfence.Fence {
	t.Helper()
	f := must(redisfence.New(client, opts...))
	return f
}

// The script has the rule of fence.Mark, for all numbers.
func TestRule(t *testing.T) {
	onEach(t, func(t *testing.T, client *redis.Client) {
		var (
			f       = newFence(t, client)
			ctx     = t.Context()
			resets  int
			numbers = rapid.OneOf(
				rapid.Int64Range(-1, 12),
				rapid.Int64Range(1<<53-2, 1<<53+4), // where a double has no odd numbers
				rapid.Int64Range(math.MaxInt64-3, math.MaxInt64),
			)
		)
		rapid.Check(t, func(rt *rapid.T) {
			resets++
			key := fmt.Sprint("key-", resets)
			var (
				mark fence.Mark
				want string
			)
			for i, token := range rapid.SliceOfN(rapid.Custom(func(t *rapid.T) fence.Token {
				return fence.Token{Number: numbers.Draw(t, "number"), Shared: rapid.Bool().Draw(t, "shared")}
			}), 1, 20).Draw(rt, "tokens") {
				next, wantErr := mark.Admit(token)
				var err error
				if rapid.Bool().Draw(rt, "set") {
					err = f.Set(ctx, key, []byte(strconv.Itoa(i)), 0, token)
					if wantErr == nil {
						want = strconv.Itoa(i)
					}
				} else {
					err = f.Check(ctx, key, token)
				}
				if fmt.Sprint(err) != fmt.Sprint(wantErr) {
					rt.Fatalf("at a mark of %d, %+v: %v; want %v", mark, token, err, wantErr)
				}
				for _, sentinel := range []error{fence.ErrStale, fence.ErrInvalid, store.ErrUnavailable} {
					if errors.Is(err, sentinel) != errors.Is(wantErr, sentinel) {
						rt.Fatalf("%v and %v are not the same", err, wantErr)
					}
				}
				if got := client.Get(ctx, key).Val(); got != want {
					rt.Fatalf("the value is %q; want %q", got, want)
				}
				mark = next
			}
		})
	})
}

func TestConcurrentWriters(t *testing.T) {
	onEach(t, func(t *testing.T, client *redis.Client) {
		f := newFence(t, client)
		ctx := t.Context()
		var (
			wg   sync.WaitGroup
			most int64
			seen atomic.Int64 // the largest number whose write had returned
		)
		for range 100 {
			n := 1<<53 + rand.Int64N(1000)
			most = max(most, n)
			wg.Go(func() {
				before := seen.Load()
				err := f.Set(ctx, "key", []byte(strconv.FormatInt(n, 10)), 0, fence.Token{Number: n})
				switch {
				case errors.Is(err, fence.ErrStale):
				case err != nil:
					t.Error(err)
				case n < before:
					t.Errorf("%d was accepted after %d had been", n, before)
				}
				for err == nil {
					if old := seen.Load(); old >= n || seen.CompareAndSwap(old, n) {
						break
					}
				}
				// A refused token is not that of the last write.
				value, err := client.Get(ctx, "key").Int64()
				if err != nil || value < n {
					t.Errorf("the value is %d, %v, after a write of %d", value, err, n)
				}
			})
		}
		wg.Wait()
		if got := client.Get(ctx, "key").Val(); got != strconv.FormatInt(most, 10) {
			t.Errorf("the value is %s; want that of the largest token, %d", got, most)
		}
		if err := f.Check(ctx, "key", fence.Token{Number: most - 1}); !errors.Is(err, fence.ErrStale) {
			t.Errorf("below the mark: %v", err)
		}
		if err := f.Check(ctx, "key", fence.Token{Number: most}); err != nil {
			t.Errorf("at the mark: %v", err)
		}
	})
}

// A Fence is a Checker. Processes share their marks with the same prefix, and not with another.
func TestCheckersOfSeveralProcesses(t *testing.T) {
	onEach(t, func(t *testing.T, client *redis.Client) {
		other := clientOf(t, client.Options().Addr)
		var one, two, apart fence.Checker = newFence(t, client), newFence(t, other), newFence(t, other, redisfence.WithPrefix("apart"))
		ctx := t.Context()
		ok(t, one.Check(ctx, "key", fence.Token{Number: 5}))
		for _, c := range []struct {
			name   string
			by     fence.Checker
			number int64
			want   error
		}{
			{"below the other's mark", two, 4, fence.ErrStale},
			{"above it", two, 6, nil},
			{"overtaken since", one, 5, fence.ErrStale},
			{"by another prefix", apart, 1, nil},
		} {
			if err := c.by.Check(ctx, "key", fence.Token{Number: c.number}); !errors.Is(err, c.want) || (err == nil) != (c.want == nil) {
				t.Errorf("%s: %v, want %v", c.name, err, c.want)
			}
		}
		if err := one.Check(ctx, "a}b", fence.Token{Number: 1}); !errors.Is(err, fence.ErrInvalidKey) {
			t.Errorf("a key with a brace: %v", err)
		}
	})
}

func TestMarksExpire(t *testing.T) {
	server := miniredis.RunT(t)
	client := clientOf(t, server.Addr())
	ctx := t.Context()
	f := newFence(t, client, redisfence.WithPrefix("marks"), redisfence.WithTTL(time.Minute))
	mark := "marks:k:{key}"

	if err := f.Check(ctx, "key", fence.Token{Number: 5, Shared: true}); err != nil || len(server.Keys()) != 0 {
		t.Errorf("a shared token: %v, keys %v", err, server.Keys())
	}
	ok(t, f.Set(ctx, "key", []byte("v"), 1500*time.Microsecond, fence.Token{Number: 5}))
	if got := server.TTL("key"); got != 2*time.Millisecond {
		t.Errorf("the value lives for %v; want 2ms", got)
	}
	for _, n := range []int64{5, 4, 6} { // every call extends the mark, a refused one too
		server.FastForward(40 * time.Second)
		_ = f.Check(ctx, "key", fence.Token{Number: n})
		if got := server.TTL(mark); got != time.Minute {
			t.Errorf("after a check of %d the mark lives for %v; want 1m", n, got)
		}
	}
	ok(t, f.Set(ctx, "key", []byte("v"), 0, fence.Token{Number: 6}))
	server.FastForward(time.Minute)
	if got := server.Keys(); len(got) != 1 || got[0] != "key" || server.TTL("key") != 0 {
		t.Errorf("keys %v; want the value alone, which does not expire", got)
	}
}

// A value may have any TTL that a duration has.
func TestLongestValue(t *testing.T) {
	onEach(t, func(t *testing.T, client *redis.Client) {
		ttl := time.Duration(math.MaxInt64).Truncate(time.Millisecond) // miniredis cannot read more
		f := newFence(t, client)
		ok(t, f.Set(t.Context(), "key", []byte("v"), ttl, fence.Token{Number: 5}))
		if left := client.PTTL(t.Context(), "key").Val(); left < ttl-time.Hour || left > ttl {
			t.Errorf("the value lives for %v, want %v", left, ttl)
		}
	})
}

func TestCluster(t *testing.T) {
	cluster := redistest.StartCluster(t)
	client := cluster.Client()
	ctx := t.Context()
	f := newFence(t, client)
	keys := []string{"cart:42", "{user:7}:cart", "a{b}c", "open{brace", "a{b{c}d", "{", " ", "\x00\xff", "{a}", "a", "b"}
	for i := range 20 {
		keys = append(keys, fmt.Sprint("key-", i))
	}
	for i, key := range keys {
		n := int64(i) + 10
		if err := f.Set(ctx, key, []byte(key), 0, fence.Token{Number: n}); err != nil {
			t.Errorf("%q: %v", key, err)
		}
		if got := client.Get(ctx, key).Val(); got != key {
			t.Errorf("%q holds %q", key, got)
		}
	}
	for i, key := range keys { // no two keys share a mark
		n := int64(i) + 10
		if err := f.Check(ctx, key, fence.Token{Number: n - 1}); !errors.Is(err, fence.ErrStale) {
			t.Errorf("%q below its mark: %v", key, err)
		}
		if err := f.Check(ctx, key, fence.Token{Number: n}); err != nil {
			t.Errorf("%q at its mark: %v", key, err)
		}
	}
}

func TestRefusedKeys(t *testing.T) {
	f := newFence(t, clientOf(t, "127.0.0.1:1"))
	for _, key := range []string{"", "}", "a}b", "{}", "{}a", "{}{a}", "a}{b"} {
		for _, err := range []error{
			f.Check(t.Context(), key, fence.Token{Number: 1}),
			f.Set(t.Context(), key, nil, 0, fence.Token{Number: 1}),
		} {
			if !errors.Is(err, redisfence.ErrInvalidKey) {
				t.Errorf("%q: %v", key, err)
			}
		}
	}
	if err := f.Set(t.Context(), "a", nil, -time.Second, fence.Token{Number: 1}); err == nil || errors.Is(err, store.ErrUnavailable) {
		t.Errorf("a negative ttl: %v", err)
	}
}

func TestOutage(t *testing.T) {
	server := redistest.Start(t)
	client := server.Client()
	f := newFence(t, client)
	ctx := t.Context()
	token := fence.Token{Number: 5}
	set := func(t *testing.T, n int64) error {
		t.Helper()
		return f.Set(ctx, "key", []byte("new"), 0, fence.Token{Number: n})
	}

	t.Run("scripts flushed", func(t *testing.T) {
		ok(t, set(t, 5))
		ok(t, client.ScriptFlush(ctx).Err())
		ok(t, set(t, 5))
	})

	t.Run("memory full", func(t *testing.T) {
		for setting, value := range map[string]string{"maxmemory": "1", "maxmemory-policy": "noeviction"} {
			ok(t, client.ConfigSet(ctx, setting, value).Err())
		}
		if err := f.Set(ctx, "key", []byte("unseen"), 0, fence.Token{Number: 9}); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("on a full server: %v", err)
		}
		ok(t, client.ConfigSet(ctx, "maxmemory", "0").Err())
		if got := client.Get(ctx, "key").Val(); got != "new" {
			t.Errorf("the refused value was written: %q", got)
		}
		if err := f.Check(ctx, "key", token); err != nil {
			t.Errorf("the refused write raised the mark: %v", err)
		}
	})

	t.Run("damaged marks", func(t *testing.T) {
		damage := map[string]func() error{
			"not a number": func() error { return client.Set(ctx, "fence:k:{key}", "7e3", 0).Err() },
			"empty":        func() error { return client.Set(ctx, "fence:k:{key}", "", 0).Err() },
			"too long":     func() error { return client.Set(ctx, "fence:k:{key}", "12345678901234567890", 0).Err() },
			"a list": func() error {
				client.Del(ctx, "fence:k:{key}")
				return client.RPush(ctx, "fence:k:{key}", "1").Err()
			},
		}
		for name, damage := range damage {
			ok(t, damage())
			if err := f.Set(ctx, "key", []byte("damaged"), 0, token); !errors.Is(err, store.ErrUnavailable) || errors.Is(err, fence.ErrStale) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if got := client.Get(ctx, "key").Val(); got != "new" {
			t.Errorf("written: %q", got)
		}
	})

	t.Run("context", func(t *testing.T) {
		ended, cancel := context.WithCancel(ctx)
		cancel()
		if err := f.Check(ended, "key", token); !errors.Is(err, context.Canceled) || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("an ended context: %v", err)
		}
	})

	t.Run("down", func(t *testing.T) {
		server.Stop()
		if err := f.Check(ctx, "key", token); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("no server: %v", err)
		}
		if err := f.Check(ctx, "key", fence.Token{}); !errors.Is(err, fence.ErrInvalid) {
			t.Errorf("an invalid token needs no server: %v", err)
		}
	})
}

// A write whose reply is lost is sent again.
func TestLostReply(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	client := clientOf(t, proxy.Addr())
	f := newFence(t, client)
	if err := f.Check(t.Context(), "key", fence.Token{Number: 5}); err != nil { // loads the script
		t.Fatal(err)
	}
	proxy.LoseReplies("evalsha", 1, redistest.Cut)
	if err := f.Set(t.Context(), "key", []byte("v"), 0, fence.Token{Number: 6}); err != nil {
		t.Errorf("sent twice: %v", err)
	}
	if n := proxy.Seen("evalsha"); n != 3 {
		t.Errorf("%d calls were sent; want 3", n)
	}
}

func TestNew(t *testing.T) {
	client := clientOf(t, "127.0.0.1:1")
	ring := redis.NewRing(&redis.RingOptions{Addrs: map[string]string{"a": "127.0.0.1:1"}})
	t.Cleanup(func() { _ = ring.Close() })
	var none *redis.Client
	for name, f := range map[string]func() (*redisfence.Fence, error){
		"nil":          func() (*redisfence.Fence, error) { return redisfence.New(nil) },
		"nil pointer":  func() (*redisfence.Fence, error) { return redisfence.New(none) },
		"ring":         func() (*redisfence.Fence, error) { return redisfence.New(ring) },
		"wrapped ring": func() (*redisfence.Fence, error) { return redisfence.New(struct{ redis.UniversalClient }{ring}) },
		"no prefix":    func() (*redisfence.Fence, error) { return redisfence.New(client, redisfence.WithPrefix("")) },
		"braces":       func() (*redisfence.Fence, error) { return redisfence.New(client, redisfence.WithPrefix("a{b}")) },
		"no time":      func() (*redisfence.Fence, error) { return redisfence.New(client, redisfence.WithTTL(0)) },
		"for too long": func() (*redisfence.Fence, error) { return redisfence.New(client, redisfence.WithTTL(367*24*time.Hour)) },
	} {
		if _, err := f(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	if _, err := redisfence.New(client, nil); err != nil {
		t.Errorf("a nil option: %v", err)
	}
}

// A server that is full, or that refuses the password, is not down: requests fail closed.
func TestFullOrMisconfiguredIsNotDown(t *testing.T) {
	server := redistest.Start(t)
	direct := server.Client()
	carts := must(redisfence.New(clientOf(t, server.Addr())))
	ok(t, direct.ConfigSet(t.Context(), "maxmemory", "1").Err())
	if err := carts.Check(t.Context(), "cart:42", fence.Token{Number: 1}); !errors.Is(err, store.ErrFull) || store.Down(err) {
		t.Errorf("a full server: %v", err)
	}
	if err := errors.Join(direct.ConfigSet(t.Context(), "maxmemory", "0").Err(),
		direct.ConfigSet(t.Context(), "requirepass", "secret").Err()); err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: server.Addr(), Password: "another"})
	t.Cleanup(func() { _ = client.Close() })
	err := must(redisfence.New(client)).Check(t.Context(), "cart:42", fence.Token{Number: 1})
	if !errors.Is(err, store.ErrMisconfigured) || store.CauseOf(err) != store.Authentication {
		t.Errorf("another password: %v", err)
	}
}

// must returns v, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// ok fails the test on an error.
func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
