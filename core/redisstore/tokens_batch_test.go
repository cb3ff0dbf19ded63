package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
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
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// decisionBatch is a store with slow calls, of which as many are in flight as may be, so that
// further decisions wait and share a batch.
type decisionBatch struct {
	t     *testing.T
	proxy *redistest.Proxy
	store *redisstore.Store
	log   *logbook
	first sync.WaitGroup
}

func newDecisionBatch(t *testing.T, server *redistest.Server) *decisionBatch {
	c := &decisionBatch{t: t, proxy: redistest.NewProxy(t, server.Addr()), log: new(logbook)}
	client := pooled(t, c.proxy.Addr(), 5*time.Second, 10)
	warm(t, c.proxy, client)
	c.store = newStore(t, client, redisstore.WithTimeout(5*time.Second), c.log.option())
	if _, err := c.limiter("warm", 1).Allow(t.Context(), "up"); err != nil { // loads the scripts
		t.Fatal(err)
	}
	return c
}

func (c *decisionBatch) limiter(name string, burst int64) *tokenbucket.Limiter {
	l, err := tokenbucket.New(c.store, name, tokenbucket.PerHour(1).Burst(burst))
	if err != nil {
		c.t.Fatal(err)
	}
	return l
}

// busy starts as many calls as may be in flight, whose replies are delayed until the proxy has no
// delay.
func (c *decisionBatch) busy() {
	c.t.Helper()
	before := c.proxy.Seen("evalsha")
	c.proxy.Delay(300 * time.Millisecond)
	for i := range c.store.MaxInFlight() {
		l := c.limiter("busy", 100)
		c.first.Go(func() { _, _ = l.Allow(context.Background(), fmt.Sprint(i)) })
		eventually(c.t, 10*time.Second, "a call is in flight", func() bool { return c.proxy.Seen("evalsha") == before+i+1 })
	}
}

// ask makes decisions concurrently, which all wait until calls in flight have ended.
func (c *decisionBatch) ask(decisions ...func()) {
	c.t.Helper()
	c.busy()
	var wg sync.WaitGroup
	for _, d := range decisions {
		wg.Go(d)
	}
	wg.Wait()
	c.first.Wait()
	c.proxy.Delay(0)
}

// Concurrent decisions share few calls, and each is as it would be alone.
func TestDecisionsGoTogether(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newDecisionBatch(t, server)
	one, other := c.limiter("one", 10), c.limiter("other", 3)
	both, err := tokenbucket.New(c.store, "both", tokenbucket.Limits{
		tokenbucket.PerHour(5).Named("hourly"), tokenbucket.Per(7, 90*time.Minute).Named("odd"),
	})
	if err != nil {
		t.Fatal(err)
	}
	var allowed [3]atomic.Int64
	var decisions []func()
	for i := range 120 {
		n, l := i%3, []*tokenbucket.Limiter{one, other, both}[i%3]
		decisions = append(decisions, func() {
			d, err := l.Allow(t.Context(), "key")
			if err != nil {
				t.Error(err)
			}
			if d.Allowed {
				allowed[n].Add(1)
			}
		})
	}
	before := c.proxy.Seen("evalsha")
	c.ask(decisions...)
	if calls := c.proxy.Seen("evalsha") - before; calls > 24 {
		t.Errorf("%d calls for 120 decisions", calls)
	}
	for n, want := range []int64{10, 3, 5} {
		if got := allowed[n].Load(); got != want {
			t.Errorf("limiter %d allowed %d, want %d", n, got, want)
		}
	}
	// The debts are the same as if each had been sent alone.
	for l, want := range map[*tokenbucket.Limiter]int64{one: 0, other: 0, both: 0} {
		d, err := l.Peek(t.Context(), "key")
		if err != nil || d.Limits()[0].Remaining != want || d.Allowed {
			t.Errorf("%+v, %v", d, err)
		}
	}
}

// Common decisions of a batch are read and written together, also with damaged buckets among them,
// and by a user without the right to MGET.
func TestQuickDecisionsGoTogether(t *testing.T) {
	t.Parallel()
	for name, forbidden := range map[string]string{"": "", "without MGET": "-mget"} {
		t.Run(name, func(t *testing.T) {
			server := redistest.Start(t)
			direct := server.Client()
			if forbidden != "" {
				must(t, direct.Do(t.Context(), "ACL", "SETUSER", "default", forbidden).Err())
			}
			c := newDecisionBatch(t, server)
			one, other := c.limiter("one", 10), c.limiter("other", 3)
			type question struct {
				limiter *tokenbucket.Limiter
				key     string
				peek    bool
			}
			var mu sync.Mutex
			allowed, failed := make(map[question]int), make(map[question]int)
			ask := func(times int, q question) (decisions []func()) {
				for range times {
					decisions = append(decisions, func() {
						decide := q.limiter.Allow
						if q.peek {
							decide = q.limiter.Peek
						}
						d, err := decide(t.Context(), q.key)
						mu.Lock()
						defer mu.Unlock()
						if err != nil {
							failed[q]++
						} else if d.Allowed {
							allowed[q]++
						}
					})
				}
				return decisions
			}
			// Damaged buckets.
			must(t, direct.FlushAll(t.Context()).Err())
			if _, err := other.Allow(t.Context(), "spoilt"); err != nil {
				t.Fatal(err)
			}
			spoilt := onlyKey(t, direct)
			if _, err := other.Allow(t.Context(), "spoilt too"); err != nil {
				t.Fatal(err)
			}
			for _, key := range keysOf(t, direct, "*") {
				must(t, direct.Del(t.Context(), key).Err())
				must(t, direct.HSet(t.Context(), key, "f", "v").Err())
			}

			questions := map[question]int{
				{one, "key", false}: 50, {other, "key", false}: 50, {other, "spoilt", false}: 10, {other, "spoilt", true}: 5,
				{one, "peeked at", true}: 10, {other, "spoilt too", true}: 5,
			}
			for i := range 20 {
				questions[question{one, fmt.Sprint(i), false}] = 1
			}
			var decisions []func()
			for q, times := range questions {
				decisions = append(decisions, ask(times, q)...)
			}
			c.ask(decisions...)
			for q, times := range questions {
				want, fails := min(times, 10), 0
				switch {
				case strings.HasPrefix(q.key, "spoilt"):
					want, fails = 0, times
				case q.limiter == other:
					want = 3
				}
				if allowed[q] != want || failed[q] != fails {
					t.Errorf("%s: %d allowed and %d failed of %d, want %d and %d", q.key, allowed[q], failed[q], times, want, fails)
				}
			}
			if v := direct.HGet(t.Context(), spoilt, "f").Val(); v != "v" {
				t.Errorf("a damaged bucket was written: %q", v)
			}
			for _, key := range keysOf(t, direct, "lk:t:*") {
				if ttl := direct.PTTL(t.Context(), key).Val(); direct.Type(t.Context(), key).Val() == "string" && (ttl <= 0 || ttl > 10*time.Hour+time.Second) {
					t.Errorf("%s lives for %v", key, ttl)
				}
			}
		})
	}
}

// A bucket that another plan has charged counts in a batch as it does alone, to the nanosecond.
func TestAnotherPlansBucketInABatch(t *testing.T) {
	t.Parallel()
	c := newDecisionBatch(t, redistest.Start(t))
	l := c.limiter("changed", 10)
	must(t, l.SetPlan(tokenbucket.Per(7, 90*time.Minute)))
	if _, err := l.Allow(t.Context(), "k"); err != nil { // a debt of 771.428571429 s
		t.Fatal(err)
	}
	must(t, l.SetPlan(tokenbucket.PerHour(1).Burst(10)))
	var allowed atomic.Int64
	var decisions []func()
	for range 50 {
		decisions = append(decisions, func() {
			if d, err := l.Allow(t.Context(), "k"); err != nil {
				t.Error(err)
			} else if d.Allowed {
				allowed.Add(1)
			}
		})
	}
	c.ask(decisions...)
	if n := allowed.Load(); n != 9 {
		t.Errorf("%d allowed, want 9", n)
	}
}

// After the clock stepped back, decisions are denied until it has caught up, and say so.
func TestABatchAfterTheClockSteppedBack(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newDecisionBatch(t, server)
	l := c.limiter("l", 10)
	must(t, server.Client().FlushAll(t.Context()).Err())
	if _, err := l.Allow(t.Context(), "k"); err != nil {
		t.Fatal(err)
	}
	direct := server.Client()
	value := fmt.Sprintf("%d%d", time.Now().Add(1000*time.Hour).UnixNano(), time.Hour)
	must(t, direct.Set(t.Context(), onlyKey(t, direct), value, time.Hour).Err())
	var decisions []func()
	for range 50 {
		decisions = append(decisions, func() {
			d, err := l.Allow(t.Context(), "k")
			if err != nil || d.Allowed || d.RetryAfter < 990*time.Hour || d.RetryAfter > 991*time.Hour {
				t.Errorf("%+v, %v", d, err)
			}
		})
	}
	c.ask(decisions...)
}

func TestALoneCallerHasACallOfItsOwn(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	c := newDecisionBatch(t, server)
	l := c.limiter("l", 100)
	before := c.proxy.Seen("evalsha")
	for range 10 {
		if _, err := l.Allow(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
	}
	if calls := c.proxy.Seen("evalsha") - before; calls != 10 {
		t.Errorf("%d calls", calls)
	}
}

// A damaged bucket fails its own decisions, and no others.
func TestADamagedBucketFailsItsOwnCallerAlone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newDecisionBatch(t, server)
	l := c.limiter("l", 100)
	if _, err := l.Allow(t.Context(), "damaged"); err != nil {
		t.Fatal(err)
	}
	client := server.Client()
	for _, key := range client.Keys(t.Context(), "*").Val() {
		client.Del(t.Context(), key)
		client.LPush(t.Context(), key, "what", "is", "this")
	}
	fine := c.limiter("fine", 100)
	var decisions []func()
	for i := range 20 {
		decisions = append(decisions, func() {
			if _, err := fine.Allow(t.Context(), fmt.Sprint(i)); err != nil {
				t.Errorf("another key: %v", err)
			}
		}, func() {
			if _, err := l.Allow(t.Context(), "damaged"); !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrUnconfirmed) {
				t.Errorf("the damaged key: %v", err)
			}
		})
	}
	c.ask(decisions...)
	if !c.log.has("a record is damaged") {
		t.Error("it was not logged")
	}
}

// A call that is canceled before its decision was sent is not charged, and delays no other.
func TestACanceledDecisionIsNotCharged(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	c := newDecisionBatch(t, server)
	l := c.limiter("l", 100)
	leaving, leave := context.WithCancel(t.Context())
	time.AfterFunc(20*time.Millisecond, leave)
	var decisions []func()
	for range 10 {
		decisions = append(decisions, func() {
			start := time.Now()
			_, err := l.Allow(leaving, "k")
			if !errors.Is(err, context.Canceled) && !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrUnconfirmed) {
				t.Errorf("a canceled call: %v", err)
			}
			if took := time.Since(start); took > 150*time.Millisecond {
				t.Errorf("after %v", took)
			}
		}, func() {
			if _, err := l.Allow(t.Context(), "k"); err != nil {
				t.Error(err)
			}
		})
	}
	c.ask(decisions...)
	if d, err := l.Peek(t.Context(), "k"); err != nil || d.Limits()[0].Remaining != 90 {
		t.Errorf("%+v, %v; want 90 of 100 to remain", d, err)
	}
}

// If the reply of a batch is lost, its decisions are unconfirmed, and charged once.
func TestALostReplyOfManyIsUnconfirmedAndChargedOnce(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newDecisionBatch(t, server)
	l := c.limiter("l", 100)
	var decisions []func()
	var unconfirmed atomic.Int64
	for range 20 {
		decisions = append(decisions, func() {
			if _, err := l.Allow(t.Context(), "k"); errors.Is(err, store.ErrUnconfirmed) {
				unconfirmed.Add(1)
			} else if err != nil {
				t.Error(err)
			}
		})
	}
	c.busy()
	var wg sync.WaitGroup
	for _, d := range decisions {
		wg.Go(d)
	}
	c.proxy.Delay(0)
	c.proxy.LoseReplies("evalsha", 1, redistest.Cut)
	wg.Wait()
	c.first.Wait()
	if d, err := l.Peek(t.Context(), "k"); err != nil || d.Limits()[0].Remaining != 80 {
		t.Errorf("%+v, %v; want 80 of 100 to remain", d, err)
	}
}

// With many goroutines on few keys, none is allowed more than its burst.
func TestNoOvershootUnderContention(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	s := newStore(t, server.Client())
	l, err := tokenbucket.New(s, "l", tokenbucket.PerHour(1).Burst(50))
	if err != nil {
		t.Fatal(err)
	}
	var allowed [4]atomic.Int64
	var wg sync.WaitGroup
	for g := range 64 {
		wg.Go(func() {
			for i := range 20 {
				n := (g + i) % len(allowed)
				d, err := l.Allow(t.Context(), fmt.Sprint(n))
				if err != nil {
					t.Error(err)
				}
				if d.Allowed {
					allowed[n].Add(1)
				}
			}
		})
	}
	wg.Wait()
	for n := range allowed {
		if got := allowed[n].Load(); got != 50 {
			t.Errorf("key %d: %d allowed, want 50", n, got)
		}
	}
}

// With many concurrent decisions over several limits, a call takes the server less than a
// millisecond.
func TestABatchIsShort(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	s := newStore(t, server.Client(), redisstore.WithTimeout(5*time.Second), redisstore.WithoutDenialCache())
	l, err := tokenbucket.New(s, "l", tokenbucket.Limits{
		tokenbucket.PerHour(1000).Named("a"), tokenbucket.Per(7, time.Minute).Named("b"), tokenbucket.Per(11, time.Second).Named("c"),
	})
	if err != nil {
		t.Fatal(err)
	}
	const askers, each = 500, 20
	client := server.Client()
	calls := func() int { return int(number(t, client.Info(ctx(), "commandstats").Val(), "cmdstat_evalsha:calls=")) }
	_, err = l.Allow(ctx(), "first")
	must(t, err)
	least := time.Hour
	for range 5 { // what else a core does costs CPU time, too
		used, sent := redisCPU(client), calls()
		together(askers, func(i int) {
			for range each {
				if _, err := l.Allow(ctx(), fmt.Sprint(i)); err != nil {
					t.Error(err)
				}
			}
		})
		used, sent = redisCPU(client)-used, calls()-sent
		if sent > askers*each/10 {
			t.Fatalf("%d calls for %d decisions", sent, askers*each)
		}
		if least = min(least, used/time.Duration(sent)); least < time.Millisecond {
			return
		}
	}
	t.Errorf("a call takes %v", least)
}

// redisCPU returns the CPU time that a server has used.
func redisCPU(client *redis.Client) (used time.Duration) {
	for line := range strings.Lines(client.Info(ctx(), "cpu").Val()) {
		for _, name := range []string{"used_cpu_user", "used_cpu_sys"} {
			var seconds float64
			if _, err := fmt.Sscanf(line, name+":%f", &seconds); err == nil {
				used += time.Duration(seconds * float64(time.Second))
			}
		}
	}
	return used
}

// If round trips are long, no decision waits for a second one.
func TestDecisionsFarAway(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	c := newDecisionBatch(t, server)
	l := c.limiter("far", 1000)
	const trip = 100 * time.Millisecond
	c.proxy.Delay(trip / 2)
	var mu sync.Mutex
	var took []time.Duration
	together(32, func(i int) {
		for range 5 {
			began := time.Now()
			if _, err := l.Allow(ctx(), fmt.Sprint(i)); err != nil {
				t.Error(err)
			}
			mu.Lock()
			took = append(took, time.Since(began))
			mu.Unlock()
		}
	})
	slices.Sort(took)
	if p50 := took[len(took)/2]; p50 > trip*3/2 {
		t.Errorf("half of the decisions took more than %v, and a round trip is %v", p50, trip)
	}
}

// A server that became a replica refuses to write: the cause names that.
func TestDecisionsOnAReplica(t *testing.T) {
	testpace.Parallel(t)
	eachForm(t, func(t *testing.T, server *redistest.Server, client *redis.Client) {
		s := newStore(t, client, redisstore.WithoutDenialCache())
		l := newLimiter(t, s)
		if _, err := l.Allow(t.Context(), "k"); err != nil {
			t.Fatal(err)
		}
		must(t, server.Client().ReplicaOf(t.Context(), "127.0.0.1", "1").Err())
		for _, n := range []int{1, 300} {
			together(n, func(int) {
				if _, err := l.Allow(t.Context(), "k"); store.CauseOf(err) != store.ReadOnly {
					t.Errorf("%d decisions: %v", n, err)
				}
			})
		}
	})
}
