package lock_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/history"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// unreliable loses, repeats and delays the pushes of grants, which so change their order.
func unreliable(message string, deliver func(string)) {
	if !strings.HasPrefix(message, "lease ") {
		deliver(message)
		return
	}
	switch rand.IntN(4) {
	case 0:
	case 1:
		deliver(message)
	case 2:
		deliver(message)
		time.AfterFunc(rand.N(5*time.Second), func() { deliver(message) })
	case 3:
		time.AfterFunc(rand.N(5*time.Second), func() { deliver(message) })
	}
}

// compete has goroutines of several processes compete for a lock, and returns what they held.
func compete(t *testing.T, during time.Duration, lockers []*lock.Locker) []history.Event {
	t.Helper()
	var (
		mu     sync.Mutex
		events []history.Event
		wg     sync.WaitGroup
		end    = time.Now().Add(during)
	)
	record := func(e history.Event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
	}
	once := func(l *lock.Locker, name string) {
		ctx, cancel := context.WithTimeout(context.Background(), rand.N(3*time.Second))
		defer cancel()
		lease, err := l.Lock(ctx, "k")
		if err != nil {
			return
		}
		if now := time.Now(); now.Before(lease.ValidUntil()) {
			record(history.Event{At: now, What: history.Granted, Hold: name, N: lease.Fence().Number})
			select {
			case <-time.After(rand.N(3 * time.Millisecond)):
			case <-lease.Context().Done():
			}
			now = time.Now()
			if until := lease.ValidUntil(); until.Before(now) {
				now = until
			}
			record(history.Event{At: now, What: history.Ended, Hold: name, N: lease.Fence().Number})
		}
		_ = lease.Unlock(context.Background())
	}
	for i, l := range lockers {
		for g := range 3 {
			wg.Go(func() {
				for n := 0; time.Now().Before(end); n++ {
					once(l, fmt.Sprintf("%d/%d.%d", i, g, n))
				}
			})
		}
	}
	wg.Wait()
	slices.SortStableFunc(events, func(a, b history.Event) int { return a.At.Compare(b.At) })
	return events
}

// Pushes are late, lost, repeated and out of order, and processes are cut off from the server while
// pushes still arrive: no two leases are valid at a time.
func TestUnreliablePushes(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for name, opts := range map[string][]lock.Option{"default": nil, "fair": {lock.WithFair()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			var (
				lockers []*lock.Locker
				proxies []*redistest.Proxy
			)
			for range 4 {
				proxy := redistest.NewProxy(t, server.Addr())
				proxy.Pushes(unreliable)
				client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: proxy.Addr()})
				st := must(redisstore.New(client, redisstore.WithTimeout(time.Second)))
				t.Cleanup(func() { _ = st.Close(); _ = client.Close() })
				proxies = append(proxies, proxy)
				lockers = append(lockers, newLocker(t, leasesOf(t, st), append(opts, lock.WithTTL(3*time.Second))...))
			}
			end, faults := make(chan struct{}), make(chan struct{})
			go func() {
				defer close(faults)
				for {
					proxy := proxies[rand.IntN(len(proxies))]
					proxy.CutOffCalls()
					select {
					case <-time.After(1200 * time.Millisecond):
					case <-end:
					}
					proxy.Mend()
					proxy.Pushes(unreliable)
					select {
					case <-end:
						return
					case <-time.After(200 * time.Millisecond):
					}
				}
			}()
			events := compete(t, 6*time.Second, lockers)
			close(end)
			<-faults
			history.WantGrants(t, events, 4)
			for _, wrong := range check(events, time.Minute) {
				t.Error(wrong)
			}
		})
	}
}
