package locks

import (
	"context"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisinfo"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
)

const contestJob = "lock contest"

// task is the work of a process in a contest.
type task struct {
	Addr, Row         string
	Goroutines, First int
	Held, For         time.Duration
}

func runContest(ctx context.Context, args []byte, begin func() error) (any, error) {
	var t task
	if err := json.Unmarshal(args, &t); err != nil {
		return nil, err
	}
	for _, c := range Contenders() {
		if c.Row != t.Row {
			continue
		}
		client, err := c.Open(t.Addr)
		if err != nil {
			return nil, err
		}
		defer client.Close()
		if err := warm(ctx, client); err != nil {
			return nil, err
		}
		if err := begin(); err != nil {
			return nil, err
		}
		return contest(ctx, []Client{client}, t.Goroutines, t.First, t.Held, t.For), nil
	}
	return nil, fmt.Errorf("no contender %q", t.Row)
}

// crowd is a number of goroutines, in one process or several, that contend for one lock.
type crowd struct {
	observer              *redis.Client
	addr                  string
	processes, goroutines int
}

func (c crowd) measure(ctx context.Context, b *bench.B) error {
	where := "one process"
	if c.processes > 1 {
		where = fmt.Sprintf("%d processes", c.processes)
	}
	title := fmt.Sprintf("One lock, %d goroutines in %s", c.goroutines, where)
	t := b.Table(fmt.Sprintf("locks-contended-%d-in-%d", c.goroutines, c.processes), title,
		"Each holder keeps the lock for 1 ms. A script counts as one command. Waits include those that had not ended. Most and fewest "+
			"are acquisitions of one goroutine: the rate alone misleads, since a goroutine that starves the others scores well.",
		bench.Column{Name: "acquisitions", Unit: "per s", Better: bench.More},
		bench.Column{Name: "hand-off p50", Unit: "µs", Better: bench.Less},
		bench.Column{Name: "hand-off p99", Unit: "µs", Better: bench.Less},
		bench.Column{Name: "handed on", Unit: "% of acquisitions", Better: bench.More},
		bench.Column{Name: "most", Unit: "per goroutine", Better: bench.Less},
		bench.Column{Name: "fewest", Unit: "per goroutine", Better: bench.More},
		bench.Column{Name: "wait p99", Unit: "ms", Better: bench.Less},
		bench.Column{Name: "commands", Unit: "per acquisition", Better: bench.Less},
		bench.Column{Name: "Redis CPU", Unit: "µs per acquisition", Better: bench.Less},
		bench.Column{Name: "failures", Unit: "calls", Better: bench.Less},
	)
	t.Reference(ceiling)
	var remarks failures
	contenders := []bench.Contender{{Row: ceiling, Run: func(ctx context.Context) error {
		d := b.Time(2 * time.Second)
		r := judge([]record{contest(ctx, []Client{&mutex{}}, c.goroutines, 0, held, d)}, c.goroutines, d)
		t.Add(ceiling, "acquisitions", r.perSecond)
		return nil
	}}}
	for _, contender := range Contenders() {
		contenders = append(contenders, bench.Contender{Row: contender.Row, Run: func(ctx context.Context) error {
			d := b.Time(2 * time.Second)
			r, load, err := c.run(ctx, contender, d)
			if err != nil && ctx.Err() == nil && !strings.HasPrefix(contender.Row, "Lockkeeper") { // a peer may block forever on its first lock
				b.Note(fmt.Sprintf("%s, %s: a round has failed: %v", contender.Row, title, err))
				return nil
			}
			if err != nil {
				return err
			}
			row := contender.Row
			remarks.add(row, r)
			t.Add(row, "acquisitions", r.perSecond)
			t.Add(row, "hand-off p50", r.handOffP50)
			t.Add(row, "hand-off p99", r.handOffP99)
			t.Add(row, "handed on", 100*r.handOffShare)
			t.Add(row, "most", float64(r.most))
			t.Add(row, "fewest", float64(r.fewest))
			t.Add(row, "wait p99", r.waitP99)
			t.Add(row, "failures", float64(r.failures))
			if r.acquisitions > 0 {
				t.Add(row, "commands", float64(load.Sent)/float64(r.acquisitions))
				t.Add(row, "Redis CPU", micros(load.CPU)/float64(r.acquisitions))
			}
			return nil
		}})
	}
	if err := b.Interleave(ctx, fmt.Sprintf("locks, %d goroutines in %s", c.goroutines, where), contenders); err != nil {
		return err
	}
	t.Chart(title, "acquisitions")
	remarks.note(b, title)
	if c.goroutines == 64 {
		targets(b, t, fmt.Sprintf("lock, 64 goroutines in %s: ", where))
	}
	return nil
}

// run runs a contest of a contender, and returns its result and the load on Redis.
func (c crowd) run(ctx context.Context, contender Contender, d time.Duration) (result, redisinfo.Reading, error) {
	var (
		load    redisinfo.Reading
		loadErr error
		reading sync.WaitGroup
	)
	read := func() { // only during the contest
		before, err := redisinfo.Read(ctx, c.observer, contender.Sends...)
		if loadErr = err; err != nil {
			return
		}
		reading.Go(func() {
			rest(d)
			var after redisinfo.Reading
			after, loadErr = redisinfo.Read(ctx, c.observer, contender.Sends...)
			load = after.Sub(before)
		})
	}
	var records []record
	if c.processes == 1 {
		client, err := contender.Open(c.addr)
		if err != nil {
			return result{}, load, err
		}
		defer client.Close()
		if err := warm(ctx, client); err != nil {
			return result{}, load, err
		}
		read()
		records = []record{contest(ctx, []Client{client}, c.goroutines, 0, held, d)}
	} else {
		var err error
		each := c.goroutines / c.processes
		records, err = worker.Group[record](ctx, c.processes, contestJob, func(i int) any {
			return task{Addr: c.addr, Row: contender.Row, Goroutines: each, First: i * each, Held: held, For: d}
		}, read)
		if err != nil {
			return result{}, load, err
		}
	}
	reading.Wait()
	return judge(records, c.goroutines, d), load, loadErr
}

func targets(b *bench.B, t *bench.Table, prefix string) {
	const row = "Lockkeeper"
	if v, ok := ratio(t, "acquisitions", row, ceiling); ok {
		b.Target(bench.Target{What: prefix + "acquisitions against the ceiling", Value: 100 * v, AtLeast: 91, Reach: 97,
			Better: bench.More, Unit: "%"})
	}
	most, _ := t.Median(row, "most")
	if fewest, ok := t.Median(row, "fewest"); ok && fewest >= 10 { // with fewer, a difference of one exceeds the bound
		b.Target(bench.Target{What: prefix + "most against fewest per goroutine", Value: most / fewest, AtLeast: 1.1, Reach: 1.05,
			Better: bench.Less, Unit: "x"})
	}
	if v, ok := t.Median(row, "commands"); ok {
		b.Target(bench.Target{What: prefix + "Redis commands per acquisition", Value: v, AtLeast: 2, Reach: 0.5,
			Better: bench.Less})
	}
}

// failures are the notes on failures in the contests of a table.
type failures struct {
	rows  []string
	words map[string]string
}

func (f *failures) add(row string, r result) {
	var words []string
	if r.failures > 0 {
		words = append(words, fmt.Sprintf("calls failed (%s)", r.failure))
	}
	if r.overlaps > 0 {
		words = append(words, fmt.Sprintf("two goroutines held the lock at once, %d times in a round", r.overlaps))
	}
	if len(words) == 0 {
		return
	}
	if f.words == nil {
		f.words = make(map[string]string)
	}
	if f.words[row] == "" {
		f.rows = append(f.rows, row)
	}
	f.words[row] = strings.Join(words, "; ")
}

func (f *failures) note(b *bench.B, title string) {
	for _, row := range f.rows {
		b.Note(fmt.Sprintf("%s, %s: %s.", title, row, f.words[row]))
	}
}

// mutex is a lock without Redis.
type mutex struct{ mu sync.Mutex }

func (m *mutex) Lock(context.Context, string) (Held, error) {
	m.mu.Lock()
	return m, nil
}

// Unlock releases the lock.
func (m *mutex) Unlock(context.Context) error {
	m.mu.Unlock()
	return nil
}

// Close does nothing.
func (m *mutex) Close() {}
