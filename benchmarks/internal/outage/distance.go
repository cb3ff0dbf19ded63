package outage

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/delayproxy"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/locks"
)

// busy is the number of goroutines on a Redis that is distant, or dies.
const busy = 16

// patience is the limit of a call whose library may block forever.
func patience(s bench.Setting) time.Duration { return 8 * away(s) }

// away is the round trip to the distant Redis.
func away(s bench.Setting) time.Duration {
	switch s {
	case bench.Tiny:
		return 20 * time.Millisecond
	case bench.Quick:
		return 50 * time.Millisecond
	}
	return 200 * time.Millisecond
}

// distance measures locks and limits on a distant Redis.
func distance(ctx context.Context, b *bench.B) error {
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	far := away(b.Setting())
	proxy, err := delayproxy.Start(server.Addr(), far)
	if err != nil {
		return err
	}
	defer proxy.Close()
	t := b.Table("outage-distance", fmt.Sprintf("Redis at %v", far),
		fmt.Sprintf("%d goroutines. Apart, each uses a lock or a limited key of its own; together, all share a lock and keep it for 1 ms. "+
			"A call fails after %v.", busy, patience(b.Setting())),
		bench.Column{Name: "apart p50", Unit: "ms", Better: bench.Less},
		bench.Column{Name: "apart p99", Unit: "ms", Better: bench.Less},
		bench.Column{Name: "apart failed", Unit: "% of calls", Better: bench.Less},
		bench.Column{Name: "together", Unit: "acquisitions per s", Better: bench.More},
		bench.Column{Name: "together failed", Unit: "calls", Better: bench.Less},
	)
	var all []bench.Contender
	words := make(bench.Remarks)
	for _, c := range locks.Distant() {
		row := c.Row
		all = append(all, bench.Contender{Row: row, Run: func(ctx context.Context) error {
			client, err := c.Open(proxy.Addr())
			if err != nil {
				words[row] = err.Error()
				return nil
			}
			defer client.Close()
			do := func(ctx context.Context, key string, keep time.Duration) error {
				ctx, cancel := context.WithTimeout(ctx, patience(b.Setting()))
				defer cancel()
				held, err := client.Lock(ctx, key)
				if err != nil {
					return err
				}
				if keep > 0 {
					<-time.After(keep)
				}
				return held.Unlock(ctx)
			}
			apart(ctx, b, t, row, words, func(ctx context.Context, key string) error { return do(ctx, key, 0) })
			together(ctx, b, t, row, words, func(ctx context.Context) error { return do(ctx, "together", time.Millisecond) })
			return nil
		}})
	}
	for _, l := range limiters() {
		for _, timeout := range []time.Duration{usual, time.Second} {
			row := l.row + ", one token"
			if timeout != usual {
				if l.row != "Lockkeeper" {
					continue
				}
				row = l.row + ", WithTimeout(1s), one token"
			}
			all = append(all, bench.Contender{Row: row, Run: func(ctx context.Context) error {
				process, err := l.open(proxy.Addr(), 1_000_000, timeout)
				if err != nil {
					return errOf(row, err)
				}
				defer process.close()
				apart(ctx, b, t, row, words, func(ctx context.Context, key string) error {
					_, err := process.allow(ctx, key)
					return err
				})
				return nil
			}})
		}
	}
	if err := b.Interleave(ctx, fmt.Sprintf("outage, Redis at %v", far), all); err != nil {
		return err
	}
	words.Note(b, fmt.Sprintf("Redis at %v", far), all)
	return nil
}

// apart runs do on each goroutine with a key of its own. The first calls, which connect, are not
// counted, and are retried for a while if they fail.
func apart(ctx context.Context, b *bench.B, t *bench.Table, row string, words bench.Remarks, do func(ctx context.Context, key string) error) {
	var (
		mu   sync.Mutex
		warm sync.WaitGroup
	)
	for i := range busy {
		warm.Go(func() {
			for end := time.Now().Add(15 * away(b.Setting())); time.Now().Before(end); {
				err := do(ctx, "apart-"+strconv.Itoa(i))
				if err == nil {
					return
				}
				mu.Lock()
				words[row] = "while connecting: " + err.Error()
				mu.Unlock()
				<-time.After(away(b.Setting()))
			}
		})
	}
	warm.Wait()
	r := bench.Load(ctx, busy, b.Time(1500*time.Millisecond), func(ctx context.Context, worker, _ int) error {
		err := do(ctx, "apart-"+strconv.Itoa(worker))
		if err != nil {
			<-time.After(time.Millisecond) // calls that fail at once must not use all of the processor
		}
		return err
	})
	if r.Err != nil {
		words[row] = r.Err.Error()
	}
	if r.Ops > 0 {
		t.Add(row, "apart p50", millis(r.P50))
		t.Add(row, "apart p99", millis(r.P99))
	}
	t.Add(row, "apart failed", 100*float64(r.Errors)/float64(r.Ops+r.Errors))
}

// together runs do, which acquires the same lock, on all goroutines.
func together(ctx context.Context, b *bench.B, t *bench.Table, row string, words bench.Remarks, do func(ctx context.Context) error) {
	var (
		mu             sync.Mutex
		running        sync.WaitGroup
		locked, failed int
	)
	d := max(b.Time(1500*time.Millisecond), 2*away(b.Setting()))
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	for range busy {
		running.Go(func() {
			for ctx.Err() == nil {
				err := do(ctx)
				mu.Lock()
				switch {
				case err == nil:
					locked++
				case ctx.Err() == nil:
					failed++
					words[row] = err.Error()
				}
				mu.Unlock()
				if err != nil {
					<-time.After(time.Millisecond)
				}
			}
		})
	}
	running.Wait()
	t.Add(row, "together", float64(locked)/d.Seconds())
	t.Add(row, "together failed", float64(failed))
}
