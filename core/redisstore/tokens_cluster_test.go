package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// together calls ask n times concurrently, so that most calls share batches.
func together(n int, ask func(i int)) {
	var wg sync.WaitGroup
	begin := make(chan struct{})
	for i := range n {
		wg.Go(func() {
			<-begin
			ask(i)
		})
	}
	close(begin)
	wg.Wait()
}

// evals returns how many scripts the masters have run.
func evals(t *testing.T, cluster *redistest.Cluster) (n int) {
	t.Helper()
	for _, server := range cluster.Servers {
		for line := range strings.Lines(server.Client().Info(ctx(), "commandstats").Val()) {
			var calls int
			if _, err := fmt.Sscanf(line, "cmdstat_evalsha:calls=%d", &calls); err == nil {
				n += calls
			}
		}
	}
	return n
}

func TestDecisionsGoTogetherInACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client, proxies := cluster.ProxiedClient()
	s := newStore(t, client, redisstore.WithTimeout(5*time.Second), redisstore.WithoutDenialCache())
	limiter := func(name string, plan tokenbucket.Plan) *tokenbucket.Limiter {
		l, err := tokenbucket.New(s, name, plan)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if _, err := limiter("first", tokenbucket.PerHour(1)).Allow(ctx(), "k"); err != nil {
		t.Fatal(err)
	}
	slow := func(d time.Duration) {
		for _, p := range proxies {
			p.Delay(d)
		}
	}

	t.Run("one key, one call", func(t *testing.T) {
		l := limiter("hot", tokenbucket.PerHour(1).Burst(50))
		slow(20 * time.Millisecond)
		defer slow(0)
		before := evals(t, cluster)
		var allowed atomic.Int64
		together(300, func(int) {
			if d, err := l.Allow(ctx(), "k"); err != nil {
				t.Error(err)
			} else if d.Allowed {
				allowed.Add(1)
			}
		})
		if got := allowed.Load(); got != 50 {
			t.Errorf("%d of 300 were allowed, want 50", got)
		}
		if calls := evals(t, cluster) - before; calls > 30 {
			t.Errorf("%d calls for 300 decisions about a key", calls)
		}
	})

	t.Run("many keys, all masters, scripts gone", func(t *testing.T) {
		l := limiter("many", tokenbucket.Limits{tokenbucket.PerHour(3).Named("hourly"), tokenbucket.PerMinute(7).Named("odd")})
		slow(20 * time.Millisecond)
		defer slow(0)
		for _, server := range cluster.Servers {
			if err := server.Client().ScriptFlush(ctx()).Err(); err != nil {
				t.Fatal(err)
			}
		}
		var allowed [60]atomic.Int64
		together(300, func(i int) {
			if d, err := l.Allow(ctx(), fmt.Sprint("k", i%60)); err != nil {
				t.Error(err)
			} else if d.Allowed {
				allowed[i%60].Add(1)
			}
		})
		for i := range allowed {
			if got := allowed[i].Load(); got != 3 {
				t.Errorf("key %d was allowed %d times, want 3", i, got)
			}
		}
	})

	t.Run("a key of another type fails its callers only", func(t *testing.T) {
		l := limiter("odd", tokenbucket.PerHour(1).Burst(100))
		for i := range 20 {
			if _, err := l.Allow(ctx(), fmt.Sprint("k", i)); err != nil {
				t.Fatal(err)
			}
		}
		var spoilt int64
		for _, server := range cluster.Servers[:1] { // all that it has
			direct := server.Client()
			for _, key := range direct.Keys(ctx(), "*").Val() {
				direct.Del(ctx(), key)
				direct.LPush(ctx(), key, "x")
				direct.Expire(ctx(), key, time.Minute)
				spoilt++
			}
		}
		slow(20 * time.Millisecond)
		defer slow(0)
		var failed, worked atomic.Int64
		together(200, func(i int) {
			if _, err := l.Allow(ctx(), fmt.Sprint("k", i%20)); err != nil {
				failed.Add(1)
			} else {
				worked.Add(1)
			}
		})
		if spoilt == 0 || failed.Load() == 0 || worked.Load() < 60 {
			t.Errorf("%d keys were spoilt, %d decisions failed and %d were made", spoilt, failed.Load(), worked.Load())
		}
	})

	t.Run("canceled decisions are not charged", func(t *testing.T) {
		l := limiter("canceled", tokenbucket.PerHour(1).Burst(1000))
		seen := func() (n int) {
			for _, p := range proxies {
				n += p.Seen("evalsha")
			}
			return n
		}
		// New connections would be held too.
		err := client.ForEachMaster(ctx(), func(ctx context.Context, master *redis.Client) (failed error) {
			for range s.MaxInFlight() {
				conn := master.Conn()
				defer func() { _ = conn.Close() }()
				failed = errors.Join(failed, conn.Ping(ctx).Err())
			}
			return failed
		})
		if err != nil {
			t.Fatal(err)
		}
		before := seen()
		release := func() {
			for _, p := range proxies {
				p.Release()
			}
		}
		defer release()
		for _, p := range proxies { // a further call would send the decisions that are about to be canceled
			p.Hold()
		}
		var patient sync.WaitGroup
		for i := range s.MaxInFlight() {
			patient.Go(func() { _, _ = l.Allow(ctx(), "k") })
			eventually(t, 3*time.Second, "a call is in flight", func() bool { return seen() == before+i+1 })
		}
		var left atomic.Int64
		together(100, func(i int) {
			c, cancel := context.WithTimeout(ctx(), 10*time.Millisecond)
			defer cancel()
			if _, err := l.Allow(c, "k"); err != nil {
				left.Add(1)
			}
		})
		release()
		patient.Wait()
		eventually(t, 3*time.Second, "no call is in flight", func() bool { return s.InFlight() == 0 })
		if left.Load() != 100 {
			t.Fatalf("%d were canceled", left.Load())
		}
		d, err := l.Allow(ctx(), "k")
		if err != nil {
			t.Fatal(err)
		}
		if used := 1000 - d.Limits()[0].Remaining; used != int64(s.MaxInFlight())+1 {
			t.Errorf("%d tokens were charged by %d", used, s.MaxInFlight()+1)
		}
	})

	t.Run("charges that may have run are not sent again", func(t *testing.T) {
		l := limiter("lossy", tokenbucket.PerHour(1).Burst(1000))
		if _, err := l.Allow(ctx(), "k"); err != nil {
			t.Fatal(err)
		}
		slow(20 * time.Millisecond)
		for _, p := range proxies {
			p.LoseReplies("evalsha", 1000, redistest.Cut)
		}
		var confirmed atomic.Int64
		together(100, func(int) {
			if _, err := l.Allow(ctx(), "k"); err == nil {
				confirmed.Add(1)
			} else if !errors.Is(err, store.ErrUnavailable) {
				t.Error(err)
			}
		})
		slow(0)
		for _, p := range proxies {
			p.LoseReplies("evalsha", 0, redistest.Cut)
		}
		var d tokenbucket.Decision
		eventually(t, 5*time.Second, "it works again", func() (ok bool) {
			var err error
			d, err = l.Peek(ctx(), "k")
			return err == nil
		})
		if used := 1000 - d.Limits()[0].Remaining - 1; used > 100 || used < confirmed.Load() || confirmed.Load() == 100 {
			t.Errorf("of 100 decisions, %d were confirmed, and %d charged", confirmed.Load(), used)
		}
	})

	t.Run("a master without replies delays its own keys only", func(t *testing.T) {
		l := limiter("split", tokenbucket.PerHour(1).Burst(1000))
		for i := range 30 {
			if _, err := l.Allow(ctx(), fmt.Sprint("k", i)); err != nil {
				t.Fatal(err)
			}
		}
		proxies[0].BlackHole()
		defer proxies[0].Mend()
		var worked, failed atomic.Int64
		together(300, func(i int) {
			c, cancel := context.WithTimeout(ctx(), time.Second)
			defer cancel()
			if _, err := l.Allow(c, fmt.Sprint("k", i%30)); err != nil {
				failed.Add(1)
			} else {
				worked.Add(1)
			}
		})
		if worked.Load() < 100 || failed.Load() == 0 {
			t.Errorf("%d were decided and %d failed", worked.Load(), failed.Load())
		}
	})
}
