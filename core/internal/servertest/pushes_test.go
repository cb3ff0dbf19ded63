package servertest

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/history"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
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

// late delays the pushes of grants.
func late(message string, deliver func(string)) {
	if strings.HasPrefix(message, "lease ") {
		time.AfterFunc(rand.N(3*time.Second), func() { deliver(message) })
	} else {
		deliver(message)
	}
}

// rival is a process that competes for a lock.
type rival struct {
	*lock.Locker
	proxies []*redistest.Proxy // to its servers
	pushes  func(string, func(string))
	alone   atomic.Bool // it is cut off from the servers, while pushes still arrive
}

// newRival returns a process that reaches its servers through proxies.
func newRival(t *testing.T, client redis.UniversalClient, proxies []*redistest.Proxy, pushes func(string, func(string)), opts ...lock.Option) *rival {
	t.Helper()
	for _, p := range proxies {
		p.Pushes(pushes)
	}
	st := newStore(t, client, redisstore.WithTimeout(2*time.Second))
	l := newLocker(t, st, append(opts, lock.WithTTL(3*time.Second))...)
	return &rival{Locker: l, proxies: proxies, pushes: pushes}
}

// newRivals returns processes that share a server, with unreliable pushes.
func newRivals(t *testing.T, n int, server *redistest.Server, opts ...lock.Option) (all []*rival) {
	t.Helper()
	for range n {
		proxy := redistest.NewProxy(t, server.Addr())
		all = append(all, newRival(t, connect(t, proxy.Addr()), []*redistest.Proxy{proxy}, unreliable, opts...))
	}
	return all
}

// cutOff cuts off one process after the other, each for longer than a pushed grant.
func cutOff(rivals []*rival, during time.Duration) {
	for end := time.Now().Add(during); time.Now().Before(end); {
		r := rivals[rand.IntN(len(rivals))]
		r.alone.Store(true)
		for _, p := range r.proxies {
			p.CutOffCalls()
		}
		<-time.After(3 * time.Second)
		r.alone.Store(false)
		for _, p := range r.proxies {
			p.Mend()
			p.Pushes(r.pushes)
		}
		<-time.After(200 * time.Millisecond)
	}
}

// compete has goroutines of several processes compete for a lock while faults runs, which gets the
// number of grants so far, and returns what they held. A process that is cut off keeps what it has.
// With readers, one goroutine in three locks it shared.
func compete(t *testing.T, rivals []*rival, readers bool, faults func(granted func() int)) []history.Event {
	t.Helper()
	var (
		mu      sync.Mutex
		events  []history.Event
		granted atomic.Int64
		over    atomic.Bool
		wg      sync.WaitGroup
	)
	leave := func() {
		over.Store(true)
		wg.Wait()
	}
	defer leave() // also if faults ends the test
	record := func(e history.Event) {
		mu.Lock()
		defer mu.Unlock()
		events = append(events, e)
	}
	once := func(r *rival, reads bool, name string) {
		ctx, cancel := context.WithTimeout(context.Background(), rand.N(3*time.Second))
		defer cancel()
		acquire := r.Lock
		if reads {
			acquire, name = r.RLock, name+reader
		}
		lease, err := acquire(ctx, "k")
		if err != nil {
			return
		}
		if now := time.Now(); now.Before(lease.ValidUntil()) {
			granted.Add(1)
			record(history.Event{At: now, What: history.Granted, Hold: name, N: lease.Fence().Number})
			for more := true; more && lease.Context().Err() == nil; more = r.alone.Load() {
				select {
				case <-time.After(rand.N(3 * time.Millisecond)):
				case <-lease.Context().Done():
				}
			}
			now = time.Now()
			if until := lease.ValidUntil(); until.Before(now) {
				now = until
			}
			record(history.Event{At: now, What: history.Ended, Hold: name, N: lease.Fence().Number})
		}
		_ = lease.Unlock(context.Background())
	}
	for i, r := range rivals {
		for g := range 3 {
			wg.Go(func() {
				for n := 0; !over.Load(); n++ {
					once(r, readers && g == 0, fmt.Sprintf("%d/%d.%d", i, g, n))
				}
			})
		}
	}
	faults(func() int { return int(granted.Load()) })
	leave()
	t.Logf("%d grants", granted.Load())
	slices.SortStableFunc(events, func(a, b history.Event) int { return a.At.Compare(b.At) })
	return events
}

// Pushes are late, lost, repeated and out of order, and processes are cut off from the server while
// pushes still arrive: no two leases are valid at a time.
func TestUnreliablePushes(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]lock.Option{"default": nil, "fair": {lock.WithFair()}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rivals := newRivals(t, 4, redistest.Start(t), opts...)
			events := compete(t, rivals, false, func(granted func() int) {
				cutOff(rivals, 6*time.Second)
				eventually(t, "the lock is handed on", func() bool { return granted() >= 4 })
			})
			for _, wrong := range check(events, time.Minute) {
				t.Error(wrong)
			}
		})
	}
}
