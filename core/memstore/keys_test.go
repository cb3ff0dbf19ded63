package memstore_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

var query = strings.Repeat("q", 64<<10)

// cut returns a key of ten bytes that is a substring of a long request line, as of a router.
func cut(i int) string {
	line := fmt.Sprintf("key-%06d?", i) + query
	return line[:10]
}

// A key in the store does not keep the request in memory that it is a substring of. The test is not
// parallel, since it measures the heap.
func TestKeysDoNotKeepTheirRequests(t *testing.T) {
	allow := func(t *testing.T, s *memstore.Store, plan tokenbucket.Plan) func(string) any {
		l := must(tokenbucket.New(s, "api", plan))
		return func(key string) any {
			if d, err := l.Allow(t.Context(), key); err != nil || !d.Allowed {
				t.Fatalf("%+v, %v", d, err)
			}
			return nil
		}
	}
	for name, c := range map[string]struct {
		most int // bytes for each key
		keep func(*testing.T, *memstore.Store) func(string) any
	}{
		"bucket": {2 << 10, func(t *testing.T, s *memstore.Store) func(string) any {
			return allow(t, s, tokenbucket.PerHour(1))
		}},
		"buckets of several limits": {2 << 10, func(t *testing.T, s *memstore.Store) func(string) any {
			return allow(t, s, tokenbucket.Limits{tokenbucket.PerHour(5), tokenbucket.PerMinute(5)})
		}},
		"limiter and limit": {4 << 10, func(t *testing.T, s *memstore.Store) func(string) any {
			return func(name string) any {
				charge := store.Charge{Bucket: name, Cost: time.Hour, Capacity: time.Hour}
				if _, err := s.TakeTokens(t.Context(), store.TokenRequest{Limiter: name, Key: "k", Charges: []store.Charge{charge}}); err != nil {
					t.Fatal(err)
				}
				return nil
			}
		}},
		"lock": {8 << 10, func(t *testing.T, s *memstore.Store) func(string) any {
			l := must(lock.New(s, "carts"))
			t.Cleanup(func() { _ = l.Close() })
			return func(key string) any {
				lease := must(l.Lock(t.Context(), key))
				return lease
			}
		}},
		"shared lock": {8 << 10, func(t *testing.T, s *memstore.Store) func(string) any {
			l := must(lock.New(s, "carts"))
			t.Cleanup(func() { _ = l.Close() })
			return func(key string) any {
				lease := must(l.RLock(t.Context(), key))
				return lease
			}
		}},
		"permit": {8 << 10, func(t *testing.T, s *memstore.Store) func(string) any {
			l := must(semaphore.New(s, "reports", 1))
			t.Cleanup(func() { _ = l.Close() })
			return func(key string) any {
				permit := must(l.Acquire(t.Context(), key))
				return permit
			}
		}},
		"latch, and its participant": {4 << 10, func(t *testing.T, s *memstore.Store) func(string) any {
			return func(key string) any {
				l := must(semaphore.NewLatch(s, key, 2))
				if _, err := l.CountDown(t.Context(), key); err != nil {
					t.Fatal(err)
				}
				return nil
			}
		}},
	} {
		t.Run(name, func(t *testing.T) {
			s := memstore.New()
			t.Cleanup(func() { _ = s.Close() })
			keep := c.keep(t, s)
			const keys = 200
			kept := make([]any, 0, keys+1)
			kept = append(kept, keep("first"))
			before := heap()
			for i := range keys {
				kept = append(kept, keep(cut(i)))
			}
			if each := (heap() - before) / keys; each > c.most {
				t.Errorf("%d bytes for each key, want at most %d", each, c.most)
			}
			runtime.KeepAlive(kept)
		})
	}
}

// heap returns how many bytes are in use.
func heap() int {
	runtime.GC()
	runtime.GC() // what was in pools goes at the second
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}
