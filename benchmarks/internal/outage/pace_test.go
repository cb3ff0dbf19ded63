package outage

import (
	"context"
	"os"
	"os/exec"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisserver"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

func TestMain(m *testing.M) {
	worker.Main(Jobs()...)
	os.Exit(m.Run())
}

func start(t *testing.T) *redisserver.Server {
	t.Helper()
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("LOCKKEEPER_REQUIRE_REDIS") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	server, err := redisserver.Start(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Stop)
	return server
}

// Four processes take what there is of one key, and no more.
func TestPaceOfProcesses(t *testing.T) {
	if testing.Short() {
		t.Skip("takes 15 s")
	}
	server := start(t)
	for _, p := range pacers() {
		if p.row == "redis_rate" {
			continue
		}
		t.Run(p.row, func(t *testing.T) {
			sum, err := p.run(context.Background(), server.Addr(), p.row, paceFor)
			if err != nil {
				t.Fatal(err)
			}
			if n := p.excess(sum); n > 0 {
				t.Errorf("%d tokens are %.1f beyond %.1f and %d", sum.tokens, n, sum.room, p.beyond)
			}
			if sum.failed > 0 { // where the machine has no time for a call; it may have been charged
				t.Logf("%d calls failed, %d were denied", sum.failed, sum.denied)
				return
			}
			// A reservation needs five tokens at once, and the last ones give some back.
			if share := float64(sum.tokens) / sum.room; share < 0.99 && p.row != reserved || share < 0.9 {
				t.Errorf("%d tokens are %.1f %% of %.1f", sum.tokens, 100*share, sum.room)
			}
			if sum.denied == 0 {
				t.Error("nothing was denied")
			}
		})
	}
}

// Reservations that are made at the same time are charged before they are used.
func TestConcurrentReservationsHaveRoomForTen(t *testing.T) {
	server := start(t)
	ctx := context.Background()
	var limiters [2]*tokenbucket.Limiter // of two stores, as of two processes
	for i := range limiters {
		l, end, err := openLimiter(server.Addr(), tokenbucket.PerDay(100).Named("tokens"), 5*time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer end()
		limiters[i] = l
	}
	reserve := func() (all []*tokenbucket.Reservation) {
		var (
			mu      sync.Mutex
			running sync.WaitGroup
			begin   = make(chan struct{})
		)
		for i := range 100 {
			running.Go(func() {
				<-begin
				r, err := limiters[i%2].Reserve(ctx, "key", tokenbucket.Cost{"tokens": 10})
				switch {
				case err != nil:
					t.Error(err)
				case r.Allowed:
					mu.Lock()
					defer mu.Unlock()
					all = append(all, r)
				}
			})
		}
		close(begin)
		running.Wait()
		return all
	}
	all := reserve()
	if len(all) != 10 {
		t.Fatalf("%d of 100 reservations were allowed, with room for 10", len(all))
	}
	for _, r := range all {
		if err := r.Use("tokens", 5); err != nil {
			t.Fatal(err)
		}
		if err := r.Settle(ctx); err != nil {
			t.Fatal(err)
		}
	}
	if again := reserve(); len(again) != 5 {
		t.Errorf("%d were allowed after half of it was given back", len(again))
	}
}
