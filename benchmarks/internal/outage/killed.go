package outage

import (
	"context"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/locks"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisserver"
)

// every is the interval of each goroutine's calls during an outage.
const every = 5 * time.Millisecond

// call is the time and outcome of one call.
type call struct {
	start, end time.Time
	err        error
}

// outages measures calls while Redis is dead, and how soon they succeed again.
func outages(ctx context.Context, b *bench.B) error {
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	down := max(b.Time(5*time.Second), 300*time.Millisecond)
	t := b.Table("outage-killed", fmt.Sprintf("Redis is killed for %v under load", down),
		fmt.Sprintf("%d goroutines lock and unlock a lock of their own, or take a token, at most every %v. Recovery counts from the restarted "+
			"server's first reply.", busy, every),
		bench.Column{Name: "failed", Unit: "calls", Better: bench.Neither},
		bench.Column{Name: "failing p50", Unit: "ms", Better: bench.Less},
		bench.Column{Name: "failing p99", Unit: "ms", Better: bench.Less},
		bench.Column{Name: "longest call", Unit: "ms", Better: bench.Less},
		bench.Column{Name: "first success", Unit: "ms after the restart", Better: bench.Less},
		bench.Column{Name: "last failure", Unit: "ms after the restart", Better: bench.Less},
	)
	words := make(bench.Remarks)
	var all []bench.Contender
	for _, l := range limiters() {
		row := l.row + ", one token"
		all = append(all, bench.Contender{Row: row, Run: func(ctx context.Context) error {
			process, err := l.open(server.Addr(), 1_000_000, usual)
			if err != nil {
				return errOf(row, err)
			}
			defer process.close()
			return outage(ctx, b, t, row, words, server, down, func(ctx context.Context, key string) error {
				_, err := process.allow(ctx, key)
				return err
			})
		}})
	}
	for _, c := range locks.Contenders() {
		if c.Tuned || c.Row == "Lockkeeper, WithFair" { // differ only in waiting
			continue
		}
		all = append(all, bench.Contender{Row: c.Row, Run: func(ctx context.Context) error {
			client, err := c.Open(server.Addr())
			if err != nil {
				return errOf(c.Row, err)
			}
			defer client.Close()
			return outage(ctx, b, t, c.Row, words, server, down, func(ctx context.Context, key string) error {
				held, err := client.Lock(ctx, key)
				if err != nil {
					return err
				}
				return held.Unlock(context.WithoutCancel(ctx))
			})
		}})
	}
	if err := b.Interleave(ctx, "outage, Redis killed", all); err != nil {
		return err
	}
	words.Note(b, "Redis killed", all)
	return nil
}

// outage kills the server under load, restarts it, and continues until all goroutines have
// succeeded, at most for as long as it was down.
func outage(
	ctx context.Context, b *bench.B, t *bench.Table, row string, words bench.Remarks, server *redisserver.Server, down time.Duration,
	do func(ctx context.Context, key string) error,
) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		mu        sync.Mutex
		calls     []call
		running   sync.WaitGroup
		recovered sync.WaitGroup
		restarted = make(chan struct{})
	)
	recovered.Add(busy)
	for i := range busy {
		running.Go(func() {
			once := sync.OnceFunc(recovered.Done)
			defer once()
			for ctx.Err() == nil {
				start := time.Now()
				err := do(ctx, "outage-"+strconv.Itoa(i))
				end := time.Now()
				if ctx.Err() != nil {
					return
				}
				mu.Lock()
				calls = append(calls, call{start, end, err})
				mu.Unlock()
				if err == nil {
					select {
					case <-restarted:
						once()
					default:
					}
				}
				<-time.After(every)
			}
		})
	}
	<-time.After(max(b.Time(500*time.Millisecond), 50*time.Millisecond))
	server.Kill()
	<-time.After(down)
	if err := server.Restart(ctx); err != nil {
		cancel()
		running.Wait()
		return err
	}
	answers := time.Now()
	close(restarted)
	done := make(chan struct{})
	go func() {
		recovered.Wait()
		close(done)
	}()
	select {
	case <-done:
		<-time.After(max(b.Time(500*time.Millisecond), 50*time.Millisecond)) // for late failures
	case <-time.After(down):
		words[row] = fmt.Sprintf("not all goroutines have succeeded in the %v after the restart", down)
	}
	cancel()
	running.Wait()

	var (
		failing            []time.Duration
		longest            time.Duration
		firstGood, lastBad time.Duration
		first              = true
	)
	for _, c := range calls {
		longest = max(longest, c.end.Sub(c.start))
		switch {
		case c.err != nil:
			failing = append(failing, c.end.Sub(c.start))
			lastBad = max(lastBad, c.end.Sub(answers))
			if words[row] == "" {
				words[row] = c.err.Error()
			}
		case c.end.After(answers) && (first || c.end.Sub(answers) < firstGood):
			first, firstGood = false, c.end.Sub(answers)
		}
	}
	t.Add(row, "failed", float64(len(failing)))
	if len(failing) > 0 {
		t.Add(row, "failing p50", bench.Percentile(failing, 0.50)/1e6)
		t.Add(row, "failing p99", bench.Percentile(failing, 0.99)/1e6)
	}
	t.Add(row, "longest call", millis(longest))
	if !first {
		t.Add(row, "first success", millis(firstGood))
	}
	t.Add(row, "last failure", millis(lastBad))
	return nil
}
