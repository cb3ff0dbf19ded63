package overload

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/failsafe-go/failsafe-go/adaptivelimiter"
	"github.com/failsafe-go/failsafe-go/failsafehttp"
	"github.com/failsafe-go/failsafe-go/priority"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/concurrency"
)

// The service and its load. A busy machine can serve and send as many requests, too.
const (
	workers  = 10
	work     = 40 * time.Millisecond
	patience = 500 * time.Millisecond
	target   = 200 * time.Millisecond // the slowest answer that is still of use
	rate     = 3 * workers * float64(time.Second/work)
	highPath = "/high"
	lowPath  = "/low"
)

// gate puts a gate in front of a handler. end is called when the last request has ended.
type gate func(ctx context.Context, h http.Handler) (gated http.Handler, end func(), err error)

// The rows.
const (
	none       = "no gate"
	adaptive   = "Lockkeeper, adaptive, target 200 ms, 25 to 1,000"
	failsafe   = "failsafe-go, adaptive limiter"
	prioritise = "failsafe-go, prioritised adaptive limiter"
)

func static(n int) string { return fmt.Sprintf("Lockkeeper, static %d", n) }

// bounds are static ones. That of Little's law is rate × target: 50.
var bounds = []int{25, 50, 100}

func noGate(_ context.Context, h http.Handler) (http.Handler, func(), error) {
	return h, func() {}, nil
}

// tiered is Lockkeeper's gate, in which low requests may use 70 % of the capacity.
func tiered(capacity int, opts ...semaphore.Option) gate {
	return func(_ context.Context, h http.Handler) (http.Handler, func(), error) {
		st := memstore.New()
		sem, err := semaphore.New(st, "gate", capacity, opts...)
		if err != nil {
			return nil, nil, errors.Join(err, st.Close())
		}
		through := concurrency.New(sem, nethttp.Global(), policy.Overload(), concurrency.Tiers(func(r *http.Request) policy.Tier {
			if r.URL.Path == lowPath {
				return policy.Low
			}
			return policy.Critical
		}))
		return through(h), func() { _, _ = sem.Close(), st.Close() }, nil
	}
}

// limited is failsafe-go's adaptive limiter, as its documentation has it, with room for as much as
// ours.
func limited(_ context.Context, h http.Handler) (http.Handler, func(), error) {
	limiter := adaptivelimiter.NewBuilder[*http.Response]().WithLimits(1, 1000, 20).Build() //nolint:bodyclose // there is no response
	return failsafehttp.NewHandler(h, limiter), func() {}, nil
}

func prioritised(ctx context.Context, h http.Handler) (http.Handler, func(), error) {
	prioritizer := adaptivelimiter.NewPrioritizer()
	end := prioritizer.ScheduleCalibrations(ctx, 500*time.Millisecond)
	limiter := adaptivelimiter.NewBuilder[*http.Response]().WithLimits(1, 1000, 20).BuildPrioritized(prioritizer) //nolint:bodyclose // there is no response
	gated := failsafehttp.NewHandler(h, limiter)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p := priority.VeryHigh
		if r.URL.Path == lowPath {
			p = priority.Low
		}
		gated.ServeHTTP(w, r.WithContext(p.AddTo(r.Context())))
	}), end, nil
}

// goodput measures what each gate has served.
func goodput(ctx context.Context, b *bench.B) error {
	const good, high, low, late, p99 = "goodput", "high", "low", "late", "p99"
	t := b.Table("overload-goodput", fmt.Sprintf("%.0f requests a second, of which %.0f can be served", rate, rate/3),
		"Rows of Lockkeeper have two tiers, of which the low one may use 70 % of the capacity. failsafe-go's limiters have their defaults, with "+
			"limits of up to 1,000; the prioritised one queues. Low is what is answered in time of low requests; late are clients that have left; "+
			"p99 is of answers.",
		bench.Column{Name: good, Unit: "per s", Better: bench.More},
		bench.Column{Name: high, Unit: "per s", Better: bench.More},
		bench.Column{Name: low, Unit: "per s"},
		bench.Column{Name: late, Unit: "per s", Better: bench.Less},
		bench.Column{Name: p99, Unit: "ms", Better: bench.Less})
	settle, measure := times(b.Setting())
	var all []bench.Contender
	add := func(row string, g gate) {
		all = append(all, bench.Contender{Row: row, Run: func(ctx context.Context) error {
			r, err := overloaded(ctx, g, settle, measure)
			if err != nil {
				return err
			}
			if r.failed > 0 {
				b.Note(fmt.Sprintf("%s: %d requests have failed.", row, r.failed))
			}
			per := measure.Seconds()
			t.Add(row, high, float64(r.high)/per)
			t.Add(row, low, float64(r.low)/per)
			t.Add(row, good, float64(r.high+r.low)/per)
			t.Add(row, late, float64(r.late)/per)
			t.Add(row, p99, bench.Percentile(r.times, .99)/1e6)
			return nil
		}})
	}
	add(none, noGate)
	t.Reference(none)
	for _, n := range bounds {
		add(static(n), tiered(n))
	}
	add(adaptive, tiered(25, semaphore.WithAdaptiveCapacity(target, 25, 1000)))
	add(failsafe, limited)
	add(prioritise, prioritised)
	if err := b.Interleave(ctx, "overload, over HTTP", all); err != nil {
		return err
	}
	best := slices.MaxFunc(bounds, func(x, y int) int { return compare(t.Value(static(x), good), t.Value(static(y), good)) })
	peer := failsafe
	if t.Value(prioritise, good) > t.Value(failsafe, good) {
		peer = prioritise
	}
	b.Measured(served, 100*t.Ratio(good, adaptive, static(best)))
	b.Measured(highTier, 100*t.Ratio(high, adaptive, static(best)))
	b.Measured(besides, 100*t.Ratio(good, adaptive, peer))
	return nil
}

func compare(x, y float64) int { return int(math.Copysign(1, x-y)) }

// times are how long a gate has to settle, and how long it is measured after that: not less than it
// takes, but to see that all runs.
func times(s bench.Setting) (settle, measure time.Duration) {
	switch s {
	case bench.Quick:
		return time.Second, 2 * time.Second
	case bench.Tiny:
		return 100 * time.Millisecond, 200 * time.Millisecond
	default:
		return 5 * time.Second, 20 * time.Second
	}
}

// outcome is what became of requests.
type outcome struct {
	high, low, refused, late, failed int
	times                            []time.Duration // of answers
}

// overloaded runs the service behind a gate, and its load.
func overloaded(ctx context.Context, g gate, settle, measure time.Duration) (o outcome, err error) {
	idle, killed := make(chan struct{}, workers), make(chan struct{})
	for range workers {
		idle <- struct{}{}
	}
	h, end, err := g(ctx, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		select {
		case <-idle:
		case <-killed:
			return
		}
		time.Sleep(work) //nolint:forbidigo // the work
		idle <- struct{}{}
		w.WriteHeader(http.StatusOK)
	}))
	if err != nil {
		return o, err
	}
	defer end()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return o, err
	}
	server := &http.Server{Handler: h}
	var serving sync.WaitGroup
	serving.Go(func() { _ = server.Serve(listener) })
	defer serving.Wait()
	defer func() { _ = server.Close() }()
	defer close(killed)

	c := newClients("http://" + listener.Addr().String())
	loading, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	running.Go(func() { c.run(loading) })
	defer running.Wait()
	defer stop()
	if err := rest(ctx, settle); err != nil {
		return o, err
	}
	c.take()
	if err := rest(ctx, measure); err != nil {
		return o, err
	}
	return c.take(), nil
}

func rest(ctx context.Context, d time.Duration) error {
	select {
	case <-time.After(d):
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// clients send requests at a steady rate, whatever becomes of them.
type clients struct {
	url    string
	client *http.Client

	mu  sync.Mutex
	now outcome
}

func newClients(url string) *clients {
	var dialer net.Dialer
	return &clients{url: url, client: &http.Client{Transport: &http.Transport{
		MaxIdleConnsPerHost: 1000,
		DialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			c, err := dialer.DialContext(ctx, network, address)
			if tcp, ok := c.(*net.TCPConn); ok {
				err = tcp.SetLinger(0) // or else ports of connections that were left stay in use for a minute
			}
			return c, err
		},
	}}}
}

// run sends requests until ctx ends, and waits for those in flight.
func (c *clients) run(ctx context.Context) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	var requests sync.WaitGroup
	defer c.client.CloseIdleConnections()
	defer requests.Wait()
	began := time.Now()
	for sent := 0.0; ; {
		for due := time.Since(began).Seconds() * rate; sent < due; sent++ {
			requests.Go(c.request)
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// request sends a request, and counts what becomes of it.
func (c *clients) request() {
	path := lowPath
	if rand.N(2) == 0 {
		path = highPath
	}
	ctx, leave := context.WithTimeout(context.Background(), patience)
	defer leave()
	began, status := time.Now(), 0
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, c.url+path, http.NoBody)
	if err == nil {
		var answer *http.Response
		if answer, err = c.client.Do(r); err == nil {
			_, err = io.Copy(io.Discard, answer.Body)
			_ = answer.Body.Close()
			status = answer.StatusCode
		}
	}
	took := time.Since(began)
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case ctx.Err() != nil:
		c.now.late++
	case err != nil:
		c.now.failed++
	case status == http.StatusServiceUnavailable, status == http.StatusTooManyRequests:
		c.now.refused++
	case status != http.StatusOK:
		c.now.failed++
	case path == highPath:
		c.now.high++
		c.now.times = append(c.now.times, took)
	default:
		c.now.low++
		c.now.times = append(c.now.times, took)
	}
}

// take returns the requests that have ended since the last call.
func (c *clients) take() outcome {
	c.mu.Lock()
	defer c.mu.Unlock()
	o := c.now
	c.now = outcome{}
	return o
}
