package once

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisinfo"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
)

// identical is how many requests a storm consists of.
const identical = 64

// verdict is what came of one request of a storm.
type verdict int

const (
	ran verdict = iota
	replayedTwin
	toldInFlight
)

// storms sends the same request many times at once, to stores that share nothing but the Redis.
func storms(ctx context.Context, b *bench.B, sites []*site) error {
	t := b.Table("idempotency-storms", fmt.Sprintf("%d identical requests at once", identical),
		"Sent through two stores that share nothing but the Redis; the operation takes 1 ms. Twins of a request that is under "+
			"way are told so. When the storm is over, the request is sent once more through each store, and must be replayed. "+
			"That it ran more or less than once is an error, and would end this comparison.",
		bench.Column{Name: "runs", Unit: "per storm", Better: bench.Less},
		bench.Column{Name: "told in flight", Unit: "per storm"},
		bench.Column{Name: "replays", Unit: "per storm"},
		bench.Column{Name: "all answered p50", Unit: "ms", Better: bench.Less},
		bench.Column{Name: "all answered p99", Unit: "ms", Better: bench.Less},
		bench.Column{Name: "commands", Unit: "per request", Better: bench.Less},
	)
	var runs atomic.Int64
	work := func() {
		runs.Add(1)
		<-time.After(held)
	}
	do, through := make([]func(context.Context, string) (verdict, error), len(sites)), make([]func(context.Context, string) (verdict, error), len(sites))
	for i, s := range sites {
		g, err := guard.New(s.store, "storm-do", guard.WithMaxPerScope(1<<20))
		if err != nil {
			return err
		}
		do[i] = byDo(g, work)
		if g, err = guard.New(s.store, "storm-http"); err != nil {
			return err
		}
		through[i] = byHandler(g, work)
	}
	unused := keys{name: "storm-"}
	var contenders []bench.Contender
	for _, c := range []struct {
		row string
		ask []func(context.Context, string) (verdict, error)
	}{
		{"guard.Do", do},
		{"net/http middleware", through},
	} {
		contenders = append(contenders, bench.Contender{Row: c.row, Run: func(ctx context.Context) error {
			before, err := redisinfo.Read(ctx, sites[0].client)
			if err != nil {
				return err
			}
			n := b.Count(200)
			var (
				took   []time.Duration
				counts [toldInFlight + 1]int
			)
			for range n {
				runs.Store(0)
				key := unused.next()
				start := time.Now()
				if err := storm(ctx, c.ask, key, &counts); err != nil {
					return err
				}
				took = append(took, time.Since(start))
				for _, ask := range c.ask {
					if v, err := ask(ctx, key); err != nil || v != replayedTwin {
						return fmt.Errorf("after the storm: not replayed (%d): %w", v, err)
					}
				}
				if got := runs.Load(); got != 1 {
					return fmt.Errorf("the operation ran %d times", got)
				}
			}
			after, err := redisinfo.Read(ctx, sites[0].client)
			if err != nil {
				return err
			}
			add(t, c.row, "runs", float64(counts[ran])/float64(n))
			add(t, c.row, "told in flight", float64(counts[toldInFlight])/float64(n))
			add(t, c.row, "replays", float64(counts[replayedTwin])/float64(n))
			add(t, c.row, "all answered p50", micros(percentile(took, 0.50))/1e3)
			add(t, c.row, "all answered p99", micros(percentile(took, 0.99))/1e3)
			add(t, c.row, "commands", float64(after.Sub(before).Sent)/float64(n*(identical+len(sites))))
			return nil
		}})
	}
	return b.Interleave(ctx, "idempotency, storms", contenders)
}

// storm sends the request at once from many goroutines, and counts what came of it.
func storm(ctx context.Context, ask []func(context.Context, string) (verdict, error), key string, counts *[toldInFlight + 1]int) error {
	var (
		mu      sync.Mutex
		failure error
		running sync.WaitGroup
		begin   = make(chan struct{})
	)
	for i := range identical {
		running.Go(func() {
			<-begin
			v, err := ask[i%len(ask)](ctx, key)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				failure = err
				return
			}
			counts[v]++
		})
	}
	close(begin)
	running.Wait()
	return failure
}

func byDo(g *guard.Guard, work func()) func(context.Context, string) (verdict, error) {
	return func(ctx context.Context, key string) (verdict, error) {
		_, replayed, err := guard.Do(ctx, g, guard.Operation{Scope: "subject", Key: key}, func(context.Context) (int, error) {
			work()
			return 42, nil
		})
		switch {
		case errors.Is(err, guard.ErrInFlight):
			return toldInFlight, nil
		case replayed:
			return replayedTwin, err
		}
		return ran, err
	}
}

func byHandler(g *guard.Guard, work func()) func(context.Context, string) (verdict, error) {
	h := idempotency.New(g, nethttp.Unscoped())(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { work() }))
	return func(ctx context.Context, key string) (verdict, error) {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders", strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		switch {
		case w.Code == http.StatusConflict:
			return toldInFlight, nil
		case w.Code != http.StatusOK:
			return ran, fmt.Errorf("answered %d: %s", w.Code, w.Body)
		case w.Header().Get("Idempotency-Replayed") == "true":
			return replayedTwin, nil
		}
		return ran, nil
	}
}
