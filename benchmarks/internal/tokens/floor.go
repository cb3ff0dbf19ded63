package tokens

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisserver"
)

// The rows of the limits of Redis itself.
const (
	nothing  = "a script that does nothing"
	oneByOne = "a GCRA script for each key"
	together = "one GCRA script for 64 keys"
)

// batch is the number of decisions in one pipeline or call, and pipes the number of connections.
const (
	batch = 64
	pipes = 4
)

// The columns of the limits of Redis itself.
const (
	floorAllowed = "allowed"
	floorDenied  = "denied"
	floorCPU     = "Redis CPU, allowed"
)

// floor makes decisions as a row does, as fast as the server can.
type floor struct {
	bench.Contender
	server *redisserver.Server
	client *redis.Client
	names  []string
	send   func(ctx context.Context, keys []string) error
}

func newFloor(ctx context.Context, server *redisserver.Server, row string, limit limit, names []string) (*floor, error) {
	f := &floor{server: server, client: redis.NewClient(&redis.Options{Addr: server.Addr()}), names: names}
	text := map[string]string{nothing: "return 1", oneByOne: gcra, together: gcraMany}[row]
	script, args := redis.NewScript(text), []any{limit.cost(), limit.capacity()}
	if err := script.Load(ctx, f.client).Err(); err != nil {
		f.close()
		return nil, err
	}
	f.send = func(ctx context.Context, keys []string) error {
		_, err := f.client.Pipelined(ctx, func(p redis.Pipeliner) error {
			for _, key := range keys {
				script.EvalSha(ctx, p, []string{key}, args...)
			}
			return nil
		})
		return err
	}
	if row == together {
		f.send = func(ctx context.Context, keys []string) error {
			return script.EvalSha(ctx, f.client, keys, args...).Err()
		}
	}
	return f, nil
}

func (f *floor) close() { _ = f.client.Close() }

// load returns the decisions per second, and the server's processor time for each in µs.
func (f *floor) load(ctx context.Context, b *bench.B) (perSecond, cpu float64, err error) {
	before, err := f.server.CPU(ctx)
	if err != nil {
		return 0, 0, err
	}
	r := bench.Load(ctx, pipes, b.Time(lasts), func(ctx context.Context, worker, i int) error {
		some := make([]string, batch)
		for j := range some {
			some[j] = f.names[bench.Pick(worker, i*batch+j, len(f.names))]
		}
		return f.send(ctx, some)
	})
	if r.Err != nil {
		return 0, 0, r.Err
	}
	after, err := f.server.CPU(ctx)
	if err != nil {
		return 0, 0, err
	}
	return batch * r.PerSecond, micros(after-before) / float64(batch*max(r.Ops, 1)), nil
}

// exhaust takes the only token of every key.
func (f *floor) exhaust(ctx context.Context) error {
	for some := range slices.Chunk(f.names, batch) {
		if err := f.send(ctx, some); err != nil {
			return err
		}
	}
	return nil
}

// measureFloor measures what the server can do if only the server is the bottleneck.
func measureFloor(ctx context.Context, b *bench.B, server *redisserver.Server) error {
	t := b.Table("tokens-floor", "What Redis can do", fmt.Sprintf("%d connections, each with pipelines of %d decisions or one call for %d keys, of %s keys: "+
		"%d decisions in flight. The scripts are the shortest that decide.",
		pipes, batch, batch, count(manyKeys(b)), pipes*batch),
		bench.Column{Name: floorAllowed, Unit: "1000/s", Better: bench.More},
		bench.Column{Name: floorDenied, Unit: "1000/s", Better: bench.More},
		bench.Column{Name: floorCPU, Unit: "µs per decision", Better: bench.Less},
	)
	t.Reference(nothing, oneByOne, together)
	t.Chart("What Redis can do", floorAllowed, floorDenied)
	if err := server.Flush(ctx); err != nil {
		return err
	}
	for column, limit := range map[string]limit{floorAllowed: perDay(1_000_000), floorDenied: perDay(1)} {
		var contenders []bench.Contender
		for _, row := range []string{nothing, oneByOne, together} {
			f, err := newFloor(ctx, server, row, limit, keys("floor "+column, manyKeys(b)))
			if err != nil {
				return err
			}
			defer f.close()
			if column == floorDenied {
				if err := f.exhaust(ctx); err != nil {
					return err
				}
			}
			contenders = append(contenders, bench.Contender{Row: row, Run: func(ctx context.Context) error {
				rate, cpu, err := f.load(ctx, b)
				if err != nil {
					return err
				}
				t.Add(row, column, rate/1000)
				if column == floorAllowed {
					t.Add(row, floorCPU, cpu)
				}
				return nil
			}})
		}
		if err := b.Interleave(ctx, "what Redis can do, "+column, contenders); err != nil {
			return err
		}
	}
	return nil
}

// measureMemory measures the memory of a key on the server.
func measureMemory(ctx context.Context, b *bench.B, server *redisserver.Server, l *limiters) error {
	const column = "memory"
	n := manyKeys(b)
	t := b.Table("tokens-memory", "Redis memory of a key", fmt.Sprintf("%s keys of 28 characters with one decision each, at one a day.", count(n)), bench.Column{Name: column, Unit: "bytes per key", Better: bench.Less, Format: "%.0f"})
	t.Chart("Redis memory of a key", column)
	var contenders []bench.Contender
	for _, row := range []string{lockkeeper, redisRate, ulule, throttledGo, byHand} {
		limiter, err := l.of(row, perDay(1))
		if err != nil {
			return err
		}
		contenders = append(contenders, bench.Contender{Row: row, Run: func(ctx context.Context) error {
			if _, err := limiter(ctx, "warm"); err != nil { // without what is kept once
				return err
			}
			if err := server.Flush(ctx); err != nil {
				return err
			}
			before, err := server.UsedMemory(ctx)
			if err != nil {
				return err
			}
			if err := ask(ctx, limiter, keys(fmt.Sprintf("%020d", time.Now().UnixNano()), n)); err != nil {
				return err
			}
			after, err := server.UsedMemory(ctx)
			if err != nil {
				return err
			}
			t.Add(row, column, float64(after-before)/float64(n))
			return nil
		}})
	}
	return b.Interleave(ctx, "memory of a key", contenders)
}
