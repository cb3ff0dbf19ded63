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
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// stepBatch is a store with slow calls, of which as many are in flight as may be, so that further
// steps wait and share a batch.
type stepBatch struct {
	t     *testing.T
	proxy *redistest.Proxy
	store *redisstore.Store
	log   *logbook
	sizes *pipelineSizes
	first sync.WaitGroup
}

func newStepBatch(t *testing.T, server *redistest.Server) *stepBatch {
	c := &stepBatch{t: t, proxy: redistest.NewProxy(t, server.Addr()), log: new(logbook), sizes: new(pipelineSizes)}
	redisClient := pooled(t, c.proxy.Addr(), 5*time.Second, 10)
	redisClient.AddHook(c.sizes)
	c.store = newStore(t, redisClient, redisstore.WithTimeout(5*time.Second), c.log.option())
	warm(t, c.proxy, redisClient)
	newClaim("warm", "warm").gets(t, c.store, store.Granted) // loads the scripts, and finds that nothing is evicted
	return c
}

// ask runs steps concurrently, which all wait until calls in flight have ended.
func (c *stepBatch) ask(during func(), steps ...func()) {
	c.t.Helper()
	before := c.proxy.Seen("evalsha")
	c.proxy.Delay(300 * time.Millisecond)
	for i := range c.store.MaxInFlight() {
		c.first.Go(func() { _, _ = newClaim(fmt.Sprint("busy", i), "busy").acquire(c.store) })
		eventually(c.t, 10*time.Second, "a call is in flight", func() bool { return c.proxy.Seen("evalsha") == before+i+1 })
	}
	c.sizes.reset()
	var wg sync.WaitGroup
	for _, step := range steps {
		wg.Go(step)
	}
	during()
	wg.Wait()
	c.first.Wait()
	c.proxy.Delay(0)
}

// pipelineSizes records the numbers of commands in a client's pipelines.
type pipelineSizes struct {
	mu    sync.Mutex
	sizes []int
}

func (*pipelineSizes) DialHook(next redis.DialHook) redis.DialHook          { return next }
func (*pipelineSizes) ProcessHook(next redis.ProcessHook) redis.ProcessHook { return next }
func (p *pipelineSizes) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		p.mu.Lock()
		p.sizes = append(p.sizes, len(cmds))
		p.mu.Unlock()
		return next(ctx, cmds)
	}
}

func (p *pipelineSizes) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sizes = nil
}

func (p *pipelineSizes) seen() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.sizes)
}

func nothing() {}

// Concurrent steps of every kind share few pipelines, and each has the reply that it would have
// alone.
func TestStepsGoTogether(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newStepBatch(t, server)
	var held [60]claim
	for i := range held {
		held[i] = newClaim(fmt.Sprint("held", i), "holder")
		held[i].gets(t, c.store, store.Granted)
	}
	began := newOp("began")
	began.started(t, c.store)
	var granted, queued atomic.Int64
	var steps []func()
	for i := range held {
		steps = append(steps, func() {
			free, err := newClaim(fmt.Sprint("free", i), "holder").acquire(c.store)
			if err != nil || free.Outcome != store.Granted || free.Fence <= 0 || time.Since(free.Sent) > time.Minute {
				t.Errorf("a free lock: %+v, %v", free, err)
			}
		}, func() {
			taken, err := newClaim(held[i].Key, "other").acquire(c.store)
			if err != nil || taken.Outcome != store.Taken && taken.Outcome != store.Granted {
				t.Errorf("a lock that is held, or was: %+v, %v", taken, err)
			}
		}, func() {
			ok, err := held[i].release(c.store)
			wantOwned(t, "release", ok, err)
		}, func() {
			one, err := newClaim("contended", fmt.Sprint("n", i)).queued().acquire(c.store)
			switch {
			case err == nil && one.Outcome == store.Granted:
				granted.Add(1)
			case err == nil && one.Outcome == store.Queued:
				queued.Add(1)
			default:
				t.Errorf("a contended lock: %+v, %v", one, err)
			}
		}, func() { newOp(fmt.Sprint("op", i)).started(t, c.store) })
	}
	steps = append(steps, func() {
		ok, err := began.settle(c.store, "done")
		wantOwned(t, "settle", ok, err)
	})
	c.ask(nothing, steps...)
	if granted.Load() != 1 || queued.Load() != int64(len(held)-1) {
		t.Errorf("%d were granted the contended lock, and %d wait for it", granted.Load(), queued.Load())
	}
	total := 0
	sizes := c.sizes.seen()
	for _, n := range sizes {
		total += n
	}
	if total < len(steps)-1 || len(sizes) > len(steps)/10 || slices.Max(sizes) > 100 {
		t.Errorf("%d steps went in pipelines of %v", len(steps), sizes)
	}
	if reply, err := began.begin(c.store); err != nil || reply.Outcome != store.Settled || string(reply.Data) != "done" {
		t.Errorf("replayed %+v, %v", reply, err)
	}
}

func TestALoneStepHasACallOfItsOwn(t *testing.T) {
	testpace.Parallel(t)
	c := newStepBatch(t, redistest.Start(t))
	c.sizes.reset()
	for i := range 10 {
		one := newClaim(fmt.Sprint(i), "one")
		one.gets(t, c.store, store.Granted)
		one.ends(t, c.store, true)
	}
	if sizes := c.sizes.seen(); len(sizes) > 0 {
		t.Errorf("pipelines of %v", sizes)
	}
}

// A damaged key fails its own steps, and no others.
func TestADamagedKeyFailsItsOwnStepAlone(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newStepBatch(t, server)
	bad := newClaim("bad", "bad")
	bad.gets(t, c.store, store.Granted)
	key := stemOf(t, server.Client(), "bad") + ":ljobs"
	must(t, server.Client().Del(ctx(), key).Err())
	must(t, server.Client().SAdd(ctx(), key, "what is this").Err())
	var steps []func()
	for i := range 20 {
		steps = append(steps,
			func() { newClaim(fmt.Sprint(i), "fine").gets(t, c.store, store.Granted) },
			func() {
				_, err := newClaim("bad", fmt.Sprint(i)).acquire(c.store)
				wantUnavailable(t, err, false)
			})
	}
	c.ask(nothing, steps...)
	if !c.log.has("a record is damaged") {
		t.Error("it was not logged")
	}
	if c.log.has(tripped) {
		t.Error("the breaker opened")
	}
}

// A call that is canceled before its step was sent holds nothing, returns at once, and delays no
// other.
func TestACanceledStepHoldsNothing(t *testing.T) {
	server := redistest.Start(t)
	c := newStepBatch(t, server)
	leaving, leave := context.WithCancel(t.Context())
	var steps []func()
	for i := range 20 {
		steps = append(steps, func() {
			start := time.Now()
			_, err := c.store.AcquireLease(leaving, newClaim(fmt.Sprint("left", i), "leaver").LeaseRequest)
			if !errors.Is(err, context.Canceled) && !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrUnconfirmed) {
				t.Errorf("a canceled call: %v", err)
			}
			if took := time.Since(start); took > 200*time.Millisecond {
				t.Errorf("after %v", took)
			}
		}, func() { newClaim(fmt.Sprint("stayed", i), "holder").gets(t, c.store, store.Granted) })
	}
	c.ask(leave, steps...)
	for i := range 20 {
		newClaim(fmt.Sprint("left", i), "next").gets(t, c.store, store.Granted)
	}
}

// Steps of a batch are sent again after a lost reply.
func TestABatchIsSentAgainAfterALostReply(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newStepBatch(t, server)
	var steps []func()
	for i := range 20 {
		steps = append(steps, func() {
			one := newClaim(fmt.Sprint(i), "holder")
			one.gets(t, c.store, store.Granted)
			one.gets(t, c.store, store.Granted)
			one.ends(t, c.store, true)
			newClaim(fmt.Sprint(i), "next").gets(t, c.store, store.Granted)
		})
	}
	before := c.proxy.Seen("evalsha")
	c.ask(func() {
		c.proxy.Delay(0)
		c.proxy.LoseReplies("evalsha", 1, redistest.Cut)
	}, steps...)
	if sent := c.proxy.Seen("evalsha") - before; sent <= c.store.MaxInFlight()+4*len(steps) {
		t.Errorf("%d steps were sent: none twice", sent)
	}
}

// A batch succeeds after the server lost the scripts.
func TestABatchAfterScriptFlush(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newStepBatch(t, server)
	var steps []func()
	for i := range 20 {
		steps = append(steps, func() { newClaim(fmt.Sprint(i), "holder").gets(t, c.store, store.Granted) })
	}
	c.ask(func() { must(t, server.Client().ScriptFlush(ctx()).Err()) }, steps...)
}

// Results of the largest size go in pipelines that are still short.
func TestLargeResultsGoInShortPipelines(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	c := newStepBatch(t, server)
	data := strings.Repeat("x", 64<<10)
	var steps []func()
	for i := range 40 {
		o := newOp(fmt.Sprint("large", i))
		o.started(t, c.store)
		steps = append(steps, func() {
			ok, err := o.settle(c.store, data)
			wantOwned(t, "settle", ok, err)
		})
	}
	c.ask(nothing, steps...)
	sizes := c.sizes.seen()
	if len(sizes) == 0 || slices.Max(sizes) > 6 || slices.Max(sizes) < 2 {
		t.Errorf("pipelines of %v", sizes)
	}
}

// In a burst, the last calls are served even after the store's own deadline, while the server
// replies to others.
func TestABurstIsServedLate(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	const timeout = 2 * time.Second
	redisClient := pooled(t, proxy.Addr(), timeout, 8)
	warm(t, proxy, redisClient)
	s := newStore(t, redisClient, redisstore.WithTimeout(timeout))
	newClaim("warm", "warm").gets(t, s, store.Granted)
	proxy.Delay(timeout / 4) // and four calls of a hundred steps at a time
	var late atomic.Int64
	together(2400, func(i int) {
		began := time.Now()
		newClaim(fmt.Sprint(i), "holder").gets(t, s, store.Granted)
		if time.Since(began) > timeout {
			late.Add(1)
		}
	})
	if late.Load() == 0 {
		t.Error("no call was late: the test does not test what it says")
	}
}

// If the server does not reply, waiting steps fail at the store's own deadline.
func TestWaitingStepsFailAtTheDeadline(t *testing.T) {
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	const timeout = time.Second
	redisClient := pooled(t, proxy.Addr(), 5*time.Second, 8)
	warm(t, proxy, redisClient)
	s := newStore(t, redisClient, redisstore.WithTimeout(timeout))
	newClaim("warm", "warm").gets(t, s, store.Granted)
	proxy.BlackHole()
	var unsent atomic.Int64
	together(1200, func(i int) {
		began := time.Now()
		_, err := newClaim(fmt.Sprint(i), "holder").acquire(s)
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("got %v", err)
		}
		if !errors.Is(err, store.ErrUnconfirmed) {
			unsent.Add(1)
		}
		if took := time.Since(began); took > timeout*9/5 {
			t.Errorf("after %v", took)
		}
	})
	if unsent.Load() < 600 {
		t.Errorf("%d of 1200 were not sent: the test does not test what it says", unsent.Load())
	}
	proxy.Mend()
}

// Releases are sent although the breaker is open, also in batches.
func TestABatchOfReleasesPassesTheBreaker(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	log := new(logbook)
	s := newStore(t, dial(t, proxy.Addr(), 50*time.Millisecond), redisstore.WithTimeout(100*time.Millisecond), log.option())
	patient, held := newStore(t, server.Client()), make([]claim, 40)
	for i := range held {
		held[i] = newClaim(fmt.Sprint(i), "holder")
		held[i].gets(t, patient, store.Granted)
	}
	proxy.BlackHole()
	eventually(t, 10*time.Second, "the breaker opens", func() bool {
		_, _ = newClaim("k", "k").acquire(s)
		return log.has(tripped)
	})
	proxy.Mend()
	proxy.Delay(20 * time.Millisecond)
	together(len(held), func(i int) {
		// A quarter of the connections are for releases, and each of these may still wait for a
		// reply.
		eventually(t, 5*time.Second, "released", func() bool { ok, err := held[i].release(s); return ok && err == nil })
	})
}

// Permits and steps of every mechanism share pipelines in a Cluster too, one for each master.
func TestStepsGoTogetherInACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client, proxies := cluster.ProxiedClient()
	sizes := new(pipelineSizes)
	client.AddHook(sizes)
	s := newStore(t, client, redisstore.WithTimeout(5*time.Second))
	newClaim("warm", "warm").gets(t, s, store.Granted)
	for _, p := range proxies {
		p.Delay(20 * time.Millisecond)
	}
	for _, server := range cluster.Servers {
		must(t, server.Client().ScriptFlush(ctx()).Err())
	}
	const n = 300
	together(n, func(i int) {
		one := newClaim(fmt.Sprint(i), "holder")
		one.gets(t, s, store.Granted)
		permit := newPermit(fmt.Sprint(i), "holder", 1, 1)
		permit.gets(t, s, store.Granted)
		newOp(fmt.Sprint("op", i)).started(t, s)
		permit.ends(t, s, true)
		one.ends(t, s, true)
	})
	all, most := sizes.seen(), 0
	for _, size := range all {
		most = max(most, size)
	}
	if len(all) == 0 || len(all) > 5*n/4 || most < 10 || most > 100 {
		t.Errorf("%d steps in %d pipelines of up to %d", 5*n, len(all), most)
	}
}
