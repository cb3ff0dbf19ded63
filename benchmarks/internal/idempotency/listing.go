package idempotency

import (
	"context"
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/floor"
	"github.com/lockkeeper/lockkeeper/core/guard"
)

const unresolved = 1000 // operations

// listing measures Begin while an operator lists the unresolved operations among many other keys.
func listing(ctx context.Context, b *bench.B, sites []*floor.Site) error {
	const (
		alone  = "Begin"
		beside = "Begin, while operations are listed"
		askers = 4
	)
	others := b.Count(1_000_000)
	t := b.Table("idempotency-listing", fmt.Sprintf("%d unresolved operations are listed", unresolved),
		fmt.Sprintf("A process lists them with Guard.Unresolved, which scans all keys of the server, again and again; another one replays "+
			"results with Guard.Begin, on %d goroutines. The server has %d other keys.", askers, others),
		bench.Column{Name: "p50", Unit: "µs"}, bench.Column{Name: "p99", Unit: "µs"}, bench.Column{Name: "a listing", Unit: "s"})
	t.Reference(alone)
	const perCall = 1000
	for i := 0; i < others; i += perCall {
		_, err := sites[0].Client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for j := i; j < min(i+perCall, others); j++ {
				p.Set(ctx, "other-"+strconv.Itoa(j), "value", 0)
			}
			return nil
		})
		if err != nil {
			return err
		}
	}
	var guards [2]*guard.Guard // of the operator, and of the service
	for i := range guards {
		var err error
		if guards[i], err = guard.New(sites[i].Store, "listing", guard.WithMaxPerScope(1<<20)); err != nil {
			return err
		}
	}
	for i := range unresolved {
		attempt, _, err := guards[0].Begin(ctx, guard.Operation{Scope: "subject", Key: "lost-" + strconv.Itoa(i)})
		if err != nil {
			return err
		}
		if err := attempt.CompleteUnknown(ctx); err != nil {
			return err
		}
	}
	kept := guard.Operation{Scope: "subject", Key: "kept"}
	attempt, _, err := guards[1].Begin(ctx, kept)
	if err != nil {
		return err
	}
	if err := attempt.Complete(ctx, guard.Result{Data: []byte(strings.Repeat("x", 256))}); err != nil {
		return err
	}
	replays := func(row string, d time.Duration) error {
		r := bench.Load(ctx, askers, d, func(ctx context.Context, _, _ int) error {
			_, _, err := guards[1].Begin(ctx, kept)
			return err
		})
		t.Add(row, "p50", floor.Micros(r.P50))
		t.Add(row, "p99", floor.Micros(r.P99))
		return r.Err
	}
	d := b.Time(3 * time.Second)
	contenders := []bench.Contender{
		{Row: alone, Run: func(context.Context) error { return replays(alone, d) }},
		{Row: beside, Run: func(ctx context.Context) error {
			var stop atomic.Bool
			failed := make(chan error, 1)
			go func() {
				for {
					began, n := time.Now(), 0
					for _, err := range guards[0].Unresolved(ctx) {
						if err != nil {
							failed <- err
							return
						}
						n++
					}
					if n != unresolved {
						failed <- fmt.Errorf("%d operations are listed, not %d", n, unresolved)
						return
					}
					t.Add(beside, "a listing", time.Since(began).Seconds())
					if stop.Load() {
						failed <- nil
						return
					}
				}
			}()
			err := replays(beside, d)
			stop.Store(true)
			if listed := <-failed; err == nil {
				err = listed
			}
			return err
		}},
	}
	if err := b.Interleave(ctx, "idempotency, listing", contenders); err != nil {
		return err
	}
	b.Measured(listingAdds, (t.Value(beside, "p99")-t.Value(alone, "p99"))/1e3)
	return nil
}
