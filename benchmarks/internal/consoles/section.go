// Package consoles measures what the console costs the processes that it shows, and their store.
package consoles

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisinfo"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp/console"
)

// The targets.
const (
	inMemory  = "console, a decision in memory: with presence, more than without"
	allocates = "console, a decision in memory: allocations with presence"
	onRedis   = "console, a decision on Redis: what presence adds in memory, of its time"
	documents = "console, a page over 100 processes: documents a second"
	share     = "console, a page over 100 processes: Redis's time"
	viewers   = "console, ten viewers: Redis's commands, of those of one"
	listing   = "console, a listing of 1,000 locks among a million keys: p99 of decisions beside it, more than without"
)

// Sections are the measurements of the console.
func Sections() []bench.Section {
	return []bench.Section{{
		Name:  "console",
		Title: "The console",
		About: "What presence costs a decision, what a page over a hundred processes costs Redis, and what a listing costs the decisions beside it.",
		Full:  200 * time.Second,
		Run:   run,
		Targets: []bench.Target{
			{What: inMemory, Bound: 60, Better: bench.Less, Unit: "ns"},
			{What: allocates, Bound: 0, Better: bench.Less},
			{What: onRedis, Bound: 1, Better: bench.Less, Unit: "%"},
			{What: documents, Bound: 75, Better: bench.Less, Unit: "per s",
				Floor: "50 histories, one per process every 2 s, and 20 descriptions, one every 5 s; and what renews the page's wish"},
			{What: share, Bound: 2, Better: bench.Less, Unit: "% of a core"},
			{What: viewers, Bound: 1.05, Better: bench.Less, Unit: "x"},
			{What: listing, Bound: 1, Better: bench.Less, Unit: "ms"},
		},
	}}
}

var quiet = slog.New(slog.DiscardHandler)

func run(ctx context.Context, b *bench.B) error {
	adds, err := memory(ctx, b)
	if err != nil {
		return err
	}
	takes, err := remote(ctx, b)
	if err != nil {
		return err
	}
	b.Measured(onRedis, 100*adds/(1000*takes))
	if err := fleet(ctx, b); err != nil {
		return err
	}
	return beside(ctx, b)
}

// The rows.
const (
	without = "without presence"
	with    = "with presence"
	watched = "with presence, a page is open"
)

// modes have a process that has no presence, that has one, and one that a page shows.
func modes(ctx context.Context, st store.Documents, mode string) (end func(), err error) {
	if mode == without {
		return func() {}, nil
	}
	p, err := presence.Start(st, presence.WithLogger(quiet))
	if err != nil {
		return nil, err
	}
	if mode == with {
		return func() { _ = p.Stop(ctx) }, nil
	}
	_, err = presence.Watch(ctx, st)
	return func() { _ = p.Stop(ctx) }, err
}

// memory measures decisions in memory, and returns how many nanoseconds presence adds to one.
func memory(ctx context.Context, b *bench.B) (adds float64, err error) {
	const allocations, keys = "allocations", 1000
	t := b.Table("console-memory", "A decision in memory", "One goroutine takes tokens of a thousand keys. All are allowed.",
		bench.Column{Name: "time", Unit: "ns", Better: bench.Less},
		bench.Column{Name: allocations, Unit: "per decision", Better: bench.Less, Format: "%.2f"})
	names := make([]string, keys)
	for i := range names {
		names[i] = "user:" + strconv.Itoa(i)
	}
	var all []bench.Contender
	for _, mode := range []string{without, with, watched} {
		all = append(all, bench.Contender{Row: mode, Run: func(ctx context.Context) error {
			st := memstore.New()
			defer func() { _ = st.Close() }()
			l, err := tokenbucket.New(st, "api", tokenbucket.PerSecond(1e6).Burst(1e9))
			if err != nil {
				return err
			}
			defer func() { _ = l.Close() }()
			end, err := modes(ctx, st, mode)
			if err != nil {
				return err
			}
			defer end()
			call := func(worker, i int) error {
				_, err := l.Allow(ctx, names[bench.Pick(worker, i, keys)])
				return err
			}
			bench.Spin(ctx, 1, b.Time(50*time.Millisecond), call) // makes the buckets
			r := bench.Spin(ctx, 1, b.Time(2*time.Second), call)
			t.Add(mode, "time", r.NsPerCall)
			t.Add(mode, allocations, r.AllocsPerOp)
			return r.Err
		}})
	}
	if err := b.InterleaveFinely(ctx, "console, decisions in memory", bench.PartsOfWaits, all); err != nil {
		return 0, err
	}
	adds = t.Value(with, "time") - t.Value(without, "time")
	b.Measured(inMemory, adds)
	b.Measured(allocates, float64(int(t.Value(with, allocations)*100))/100)
	return adds, nil
}

// remote measures decisions on Redis, and returns how many microseconds one takes.
func remote(ctx context.Context, b *bench.B) (takes float64, err error) {
	server, err := b.Redis(ctx)
	if err != nil {
		return 0, err
	}
	t := b.Table("console-redis", "A decision on Redis", "Rows differ by less than rounds do, so the target takes what presence adds to a decision in memory.",
		bench.Column{Name: "1 goroutine", Unit: "µs", Better: bench.Less},
		bench.Column{Name: "64 goroutines", Unit: "per s", Better: bench.More})
	var all []bench.Contender
	for _, mode := range []string{without, with, watched} {
		all = append(all, bench.Contender{Row: mode, Run: func(ctx context.Context) error {
			p, err := open(server.Addr())
			if err != nil {
				return err
			}
			defer p.close()
			end, err := modes(ctx, p.store, mode)
			if err != nil {
				return err
			}
			defer end()
			bench.Load(ctx, 64, b.Time(200*time.Millisecond), p.decide) // connects
			alone := bench.Load(ctx, 1, b.Time(5*time.Second), p.decide)
			crowd := bench.Load(ctx, 64, b.Time(5*time.Second), p.decide)
			if alone.Err != nil || crowd.Err != nil {
				return fmt.Errorf("%w %w", alone.Err, crowd.Err)
			}
			t.Add(mode, "1 goroutine", 1e6/alone.PerSecond)
			t.Add(mode, "64 goroutines", crowd.PerSecond)
			return nil
		}})
	}
	if err := b.InterleaveFinely(ctx, "console, decisions on Redis", bench.PartsOfCalls, all); err != nil {
		return 0, err
	}
	return t.Value(without, "1 goroutine"), nil
}

// process is one of a fleet.
type process struct {
	client  *redis.Client
	store   *redisstore.Store
	limiter *tokenbucket.Limiter
}

func open(addr string) (*process, error) {
	p := &process{client: redis.NewClient(&redis.Options{Addr: addr, PoolSize: 8, ContextTimeoutEnabled: true})}
	var err error
	if p.store, err = redisstore.New(p.client, redisstore.WithTimeout(5*time.Second)); err == nil {
		p.limiter, err = tokenbucket.New(p.store, "api", tokenbucket.PerSecond(1e5).Burst(1e6))
	}
	return p, err
}

func (p *process) close() {
	_ = p.limiter.Close()
	_ = p.store.Close()
	_ = p.client.Close()
}

func (p *process) decide(ctx context.Context, worker, i int) error {
	_, err := p.limiter.Allow(ctx, "user:"+strconv.Itoa(bench.Pick(worker, i, 1000)))
	return err
}

// counted counts the documents that are put.
type counted struct {
	store.Documents
	puts *atomic.Int64
}

func (c counted) PutDocument(ctx context.Context, req store.DocumentRequest) (int64, bool, error) {
	c.puts.Add(1)
	return c.Documents.PutDocument(ctx, req)
}

// fleet measures Redis while pages show a hundred processes, which decide now and then.
func fleet(ctx context.Context, b *bench.B) error {
	processes := b.Count(100)
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	var puts atomic.Int64
	var all []*process
	for range processes {
		p, err := open(server.Addr())
		if err != nil {
			return err
		}
		defer p.close()
		here, err := presence.Start(counted{p.store, &puts}, presence.Including(p.store), presence.WithLogger(quiet))
		if err != nil {
			return err
		}
		defer func() { _ = here.Stop(context.WithoutCancel(ctx)) }()
		all = append(all, p)
	}
	observer := redis.NewClient(&redis.Options{Addr: server.Addr()})
	defer func() { _ = observer.Close() }()
	c := console.New(all[0].store, console.AllowAnyone(), console.WithLogger(quiet))
	defer func() { _ = c.Close() }()
	t := b.Table("console-fleet", fmt.Sprintf("A page over %d processes", processes),
		"Each process makes five decisions a second, which are in all rows. A viewer gets the page Monitor every 2 s.",
		bench.Column{Name: "documents", Unit: "per s", Better: bench.Less},
		bench.Column{Name: "commands", Unit: "per s", Better: bench.Less},
		bench.Column{Name: "Redis CPU", Unit: "% of a core", Better: bench.Less})
	deciding, stop := context.WithCancel(ctx)
	var running sync.WaitGroup
	defer running.Wait()
	defer stop()
	for _, p := range all {
		running.Go(func() { every(deciding, 200*time.Millisecond, func() { _ = p.decide(ctx, 0, 0) }) })
	}
	rows := map[int]string{0: "nobody looks", 1: "one viewer", 10: "ten viewers"}
	for _, n := range []int{0, 1, 10} { // each needs the time that the one before takes to end
		viewing, leave := context.WithCancel(ctx)
		for range n {
			running.Go(func() {
				every(viewing, 2*time.Second, func() {
					c.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/monitor", nil))
				})
			})
		}
		contest.Rest(b.Time(6 * time.Second)) // until all write what is asked for
		before, err := redisinfo.Read(ctx, observer)
		put, start := puts.Load(), time.Now()
		if err == nil {
			contest.Rest(b.Time(20 * time.Second))
			var after redisinfo.Reading
			after, err = redisinfo.Read(ctx, observer)
			r, seconds := after.Sub(before), time.Since(start).Seconds()
			t.Add(rows[n], "documents", float64(puts.Load()-put)/seconds)
			t.Add(rows[n], "commands", float64(r.Sent)/seconds)
			t.Add(rows[n], "Redis CPU", 100*r.CPU.Seconds()/seconds)
		}
		leave()
		if err != nil {
			return err
		}
	}
	b.Measured(documents, t.Value(rows[1], "documents"))
	b.Measured(share, t.Value(rows[1], "Redis CPU")-t.Value(rows[0], "Redis CPU"))
	b.Measured(viewers, t.Value(rows[10], "commands")/t.Value(rows[1], "commands"))
	return nil
}

// every calls f now and then, until the context ends.
func every(ctx context.Context, pause time.Duration, f func()) {
	tick := time.NewTicker(pause)
	defer tick.Stop()
	for {
		f()
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// beside measures decisions beside a page that lists the locks that are held, among many other keys.
func beside(ctx context.Context, b *bench.B) error {
	keys, locks := b.Count(1_000_000), b.Count(1000)
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	p, err := open(server.Addr())
	if err != nil {
		return err
	}
	defer p.close()
	for i := 0; i < keys; i += 1000 {
		pipe := p.client.Pipeline()
		for j := range 1000 {
			pipe.Set(ctx, "other:"+strconv.Itoa(i+j), "x", 0)
		}
		if _, err := pipe.Exec(ctx); err != nil {
			return err
		}
	}
	locker, err := lock.New(p.store, "stock", lock.WithTTL(10*time.Minute), lock.WithLogger(quiet))
	if err != nil {
		return err
	}
	defer func() { _ = locker.Close() }()
	for i := range locks {
		if _, err := locker.Lock(ctx, strconv.Itoa(i)); err != nil {
			return err
		}
	}
	c := console.New(p.store, console.AllowAnyone(), console.WithLogger(quiet))
	defer func() { _ = c.Close() }()
	t := b.Table("console-listing", fmt.Sprintf("Decisions beside a listing of %d locks among %d keys", locks, keys),
		"One goroutine decides without a pause. The page is got again as soon as it is there.",
		bench.Column{Name: "p50", Unit: "ms", Better: bench.Less}, bench.Column{Name: "p99", Unit: "ms", Better: bench.Less},
		bench.Column{Name: "a page", Unit: "ms", Better: bench.Less})
	bench.Load(ctx, 1, b.Time(200*time.Millisecond), p.decide) // connects
	var all []bench.Contender
	for _, row := range []string{"no listing", "listing"} {
		all = append(all, bench.Contender{Row: row, Run: func(ctx context.Context) error {
			listing, end := context.WithCancel(ctx)
			var pages sync.WaitGroup
			if row == "listing" {
				pages.Go(func() {
					for listing.Err() == nil {
						began := time.Now()
						c.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, http.MethodGet, "/locks/stock", nil))
						t.Add(row, "a page", float64(time.Since(began))/1e6)
					}
				})
			}
			r := bench.Load(ctx, 1, b.Time(10*time.Second), p.decide)
			end()
			pages.Wait()
			t.Add(row, "p50", float64(r.P50)/1e6)
			t.Add(row, "p99", float64(r.P99)/1e6)
			return r.Err
		}})
	}
	if err := b.InterleaveFinely(ctx, "console, decisions beside a listing", bench.PartsOfWaits, all); err != nil {
		return err
	}
	b.Measured(listing, t.Value("listing", "p99")-t.Value("no listing", "p99"))
	return nil
}
