package nethttp_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
)

// Of equal requests to two servers on one Redis one runs, and all others are given its answer,
// about as fast as if they had run: as many requests without a key do. Nothing of the waits is left.
// The test is not parallel, since it measures latencies, and looks at all goroutines.
func TestTwinsOfTwoServersOnRedis(t *testing.T) {
	const (
		requests = 64
		rounds   = 5
		took     = 200 * time.Millisecond
		goal     = took*12/10 + 10*time.Millisecond // at the 99th percentile of a machine that is not busy
	)
	server := redistest.Start(t)
	watch := server.Client()
	subscriptions := func() int { return len(must(watch.PubSubChannels(t.Context(), "*").Result())) }
	var runs atomic.Int64
	place := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Idempotency-Key") != "" {
			runs.Add(1)
		}
		<-time.After(took)
		w.WriteHeader(http.StatusCreated)
		_, _ = io.WriteString(w, "placed")
	})
	var urls []string
	var shops []func()
	for range 2 {
		store := must(redisstore.New(server.Client(), patient))
		once := idempotency.New(must(guard.New(store, "orders")), nethttp.Unscoped(), policy.Wait(10*time.Second), policy.MaxWaiting(requests))
		shop := httptest.NewServer(once(place))
		urls, shops = append(urls, shop.URL), append(shops, func() {
			shop.Close()
			_ = store.Close()
		})
	}
	closeAll := sync.OnceFunc(func() {
		for _, shut := range shops {
			shut()
		}
	})
	t.Cleanup(closeAll)

	client := &http.Client{Transport: &http.Transport{MaxIdleConnsPerHost: requests}}
	t.Cleanup(client.CloseIdleConnections)
	// send returns how long the answer took, and whether it is a replay.
	send := func(url, key string) (time.Duration, bool) {
		req := must(http.NewRequestWithContext(t.Context(), http.MethodPost, url, strings.NewReader("tea")))
		req.Host = "shop.example"
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		began := time.Now()
		resp, err := client.Do(req)
		if err != nil {
			t.Error(err)
			return 0, false
		}
		defer resp.Body.Close() //nolint:errcheck // it has been read
		body, err := io.ReadAll(resp.Body)
		if err != nil || resp.StatusCode != http.StatusCreated || string(body) != "placed" {
			t.Errorf("%s %q, %v", resp.Status, body, err)
		}
		return time.Since(began), resp.Header.Get("Idempotency-Replayed") == "true"
	}
	// crowd sends all requests at once.
	crowd := func(key string) (times []time.Duration, replays int) {
		var (
			all sync.WaitGroup
			mu  sync.Mutex
		)
		for n := range requests {
			all.Go(func() {
				waited, replayed := send(urls[n%2], key)
				mu.Lock()
				defer mu.Unlock()
				if replayed {
					replays++
				}
				times = append(times, waited)
			})
		}
		all.Wait()
		return times, replays
	}
	// late measures the rounds from first on.
	late := func(first int) bool {
		var times, control []time.Duration
		for round := first; round <= first+rounds; round++ {
			waited, replays := crowd(fmt.Sprint(round))
			ran, _ := crowd("")
			if round > first { // the first one makes the connections
				times, control = append(times, waited...), append(control, ran...)
			}
			if got := runs.Load(); got != int64(round)+1 || replays != requests-1 {
				t.Errorf("round %d: %d runs in all, %d replays", round, got, replays)
			}
		}
		slices.Sort(times)
		slices.Sort(control)
		p99, ran := times[len(times)*99/100], control[len(control)*99/100]
		t.Logf("p99 is %v, of those that run %v, goal %v, median %v", p99, ran, goal, times[len(times)/2])
		return p99 > 3*max(goal, ran)
	}
	for first := 0; late(first); first += rounds + 1 { // the machine may be busy
		if first > 3*rounds {
			t.Error("the 99th percentile is more than three times the goal, and than that of those that run, each time")
			break
		}
	}

	eventually(t, "no wait is left", func() bool {
		stacks := make([]byte, 1<<20)
		text := string(stacks[:runtime.Stack(stacks, true)])
		return !strings.Contains(text, ".AwaitOperation(") && !strings.Contains(text, "guard.(*Guard).await(")
	})
	if n := subscriptions(); n != len(shops) {
		t.Errorf("%d subscriptions of %d processes", n, len(shops))
	}
	client.CloseIdleConnections()
	closeAll()
	eventually(t, "no subscription is left", func() bool { return subscriptions() == 0 })
}

// eventually polls until the condition holds.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	testpace.Eventually(t, 10*time.Second, what, condition)
}
