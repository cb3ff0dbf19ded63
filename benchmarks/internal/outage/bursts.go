package outage

import (
	"context"
	"crypto/rand"
	"fmt"
	"strconv"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/locks"
)

// tooLong is when a call of a burst counts as failed: a library may block forever.
const tooLong = 3 * time.Second

// bursts measures many simultaneous calls on an idle client.
func bursts(ctx context.Context, b *bench.B) error {
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	n := max(b.Count(10_000), 1_000)
	t := b.Table("outage-burst", fmt.Sprintf("%d goroutines lock at the same moment, each a lock of its own", n),
		fmt.Sprintf("All locks are free, and released at once. A call fails after %v.", tooLong),
		bench.Column{Name: "failed", Unit: "calls", Better: bench.Less},
		bench.Column{Name: "p50", Unit: "ms", Better: bench.Less},
		bench.Column{Name: "p99", Unit: "ms", Better: bench.Less},
	)
	var all []bench.Contender
	words := make(bench.Remarks)
	patient := locks.Patient()
	for _, c := range append(locks.Contenders(), patient) {
		if c.Tuned && c.Row != patient.Row { // for contended locks
			continue
		}
		all = append(all, bench.Contender{Row: c.Row, Run: func(ctx context.Context) error {
			client, err := c.Open(server.Addr())
			if err != nil {
				return err
			}
			defer client.Close()
			first, cancel := context.WithTimeout(ctx, tooLong)
			defer cancel()
			held, err := client.Lock(first, "warm")
			if err != nil {
				return err
			}
			if err := held.Unlock(ctx); err != nil {
				return err
			}
			var (
				mu      sync.Mutex
				took    []time.Duration
				failed  int
				running sync.WaitGroup
				begin   = make(chan struct{})
			)
			keys := "burst-" + rand.Text() + "-" // new keys, without what failed calls may have left
			for i := range n {
				running.Go(func() {
					<-begin
					ctx, cancel := context.WithTimeout(ctx, tooLong)
					defer cancel()
					start := time.Now()
					held, err := client.Lock(ctx, keys+strconv.Itoa(i))
					elapsed := time.Since(start)
					if err == nil {
						err = held.Unlock(ctx)
					}
					mu.Lock()
					defer mu.Unlock()
					took = append(took, elapsed)
					if err != nil {
						failed++
						words[c.Row] = err.Error()
					}
				})
			}
			close(begin)
			running.Wait()
			t.Add(c.Row, "failed", float64(failed))
			t.Add(c.Row, "p50", bench.Percentile(took, 0.50)/1e6)
			t.Add(c.Row, "p99", bench.Percentile(took, 0.99)/1e6)
			return nil
		}})
	}
	if err := b.Interleave(ctx, "outage, burst", all); err != nil {
		return err
	}
	words.Note(b, "a burst", all)
	return nil
}
