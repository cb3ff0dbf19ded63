package idempotency

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
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/floor"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisinfo"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
)

const (
	identical = 64               // requests of a storm
	takes     = time.Millisecond // of the operation
)

// verdict is the outcome of one request of a storm.
type verdict int

const (
	ran verdict = iota
	replayedTwin
	inFlight
)

// storms sends the same request many times at once, to stores that share only the Redis.
func storms(ctx context.Context, b *bench.B, sites []*floor.Site) error {
	t := b.Table("idempotency-storms", fmt.Sprintf("%d identical requests at once", identical),
		"Sent through two stores that share only the Redis; the operation takes 1 ms. Requests during it get \"in flight\"; a request "+
			"after the storm must be replayed through each store. Any other number of runs than one is an error and ends the comparison.",
		bench.Column{Name: "runs", Unit: "per storm", Better: bench.Less},
		bench.Column{Name: "in flight", Unit: "per storm"},
		bench.Column{Name: "replays", Unit: "per storm"},
		bench.Column{Name: "all answered p50", Unit: "ms", Better: bench.Less},
		bench.Column{Name: "all answered p99", Unit: "ms", Better: bench.Less},
		bench.Column{Name: "commands", Unit: "per request", Better: bench.Less},
	)
	var runs atomic.Int64
	work := func() {
		runs.Add(1)
		<-time.After(takes)
	}
	do, through := make([]func(context.Context, string) (verdict, error), len(sites)), make([]func(context.Context, string) (verdict, error), len(sites))
	for i, s := range sites {
		g, err := guard.New(s.Store, "storm-do", guard.WithMaxPerScope(1<<20))
		if err != nil {
			return err
		}
		do[i] = byDo(g, work)
		if g, err = guard.New(s.Store, "storm-http"); err != nil {
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
			before, err := redisinfo.Read(ctx, sites[0].Client)
			if err != nil {
				return err
			}
			n := b.Count(200)
			var (
				took   []time.Duration
				counts [inFlight + 1]int
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
			after, err := redisinfo.Read(ctx, sites[0].Client)
			if err != nil {
				return err
			}
			t.Add(c.row, "runs", float64(counts[ran])/float64(n))
			t.Add(c.row, "in flight", float64(counts[inFlight])/float64(n))
			t.Add(c.row, "replays", float64(counts[replayedTwin])/float64(n))
			t.Add(c.row, "all answered p50", bench.Percentile(took, 0.50)/1e6)
			t.Add(c.row, "all answered p99", bench.Percentile(took, 0.99)/1e6)
			t.Add(c.row, "commands", float64(after.Sub(before).Sent)/float64(n*(identical+len(sites))))
			return nil
		}})
	}
	return b.Interleave(ctx, "idempotency, storms", contenders)
}

// storm sends the request at once from many goroutines, and counts the outcomes.
func storm(ctx context.Context, ask []func(context.Context, string) (verdict, error), key string, counts *[inFlight + 1]int) error {
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
			return inFlight, nil
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
			return inFlight, nil
		case w.Code != http.StatusOK:
			return ran, fmt.Errorf("answered %d: %s", w.Code, w.Body)
		case w.Header().Get("Idempotency-Replayed") == "true":
			return replayedTwin, nil
		}
		return ran, nil
	}
}
