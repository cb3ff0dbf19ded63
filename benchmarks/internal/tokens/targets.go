package tokens

import (
	"fmt"
	"math"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
)

// ratio is the median of a column in one row against that in another; not a number if it was not measured.
func ratio(t *bench.Table, column, row, to string) float64 {
	v, ok := t.Median(row, column)
	base, has := t.Median(to, column)
	if !ok || !has || base == 0 {
		return math.NaN()
	}
	return v / base
}

func targets(b *bench.B, all map[string]tables) {
	allowed := all["allowed"]
	at256 := throughput(crowd)
	b.Target(bench.Target{
		What: "Redis, allowed, 256 goroutines: times redis_rate", Value: ratio(allowed.speed, at256, lockkeeper, redisRate),
		AtLeast: 4, Reach: 5.5, Better: bench.More, Unit: "×",
	})
	b.Target(bench.Target{
		What: "Redis, allowed, 256 goroutines: times a script by hand on rueidis", Value: ratio(allowed.speed, at256, lockkeeper, byHand),
		AtLeast: 2, Reach: 2, Better: bench.More, Unit: "×",
	})
	b.Target(bench.Target{
		What:  "Redis, allowed, 256 goroutines: share of what Redis can do with 64 keys in a call",
		Value: 100 * ratio(allowed.speed, at256, lockkeeper, together),
		Reach: 80, Better: bench.More, Unit: "%",
	})
	for _, t := range []struct {
		g              int
		atLeast, reach float64
	}{{64, 2.5, 3.5}, {16, 1.2, 1.4}, {1, 0.95, 1.1}} {
		b.Target(bench.Target{
			What:  fmt.Sprintf("Redis, allowed, %s: times redis_rate", throughput(t.g)),
			Value: ratio(allowed.speed, throughput(t.g), lockkeeper, redisRate), AtLeast: t.atLeast, Reach: t.reach, Better: bench.More, Unit: "×",
		})
	}
	b.Target(bench.Target{
		What: "Redis, allowed, 256 goroutines: p99, of redis_rate's", Value: ratio(allowed.latency, p99(crowd), lockkeeper, redisRate),
		AtLeast: 1. / 4, Reach: 1. / 7, Better: bench.Less, Unit: "×",
	})
	perDecision := math.NaN()
	if v, ok := allowed.speed.Median(lockkeeper, allocations); ok {
		perDecision = v
	}
	b.Target(bench.Target{
		What: "Redis, allowed, 256 goroutines: allocations", Value: perDecision, AtLeast: 6, Reach: 3, Better: bench.Less, Unit: "per decision",
	})
	denied := all["denied"].speed
	b.Target(bench.Target{
		What: "Redis, denied by the store, 256 goroutines: times redis_rate", Value: ratio(denied, at256, asking, redisRate),
		AtLeast: 5, Reach: 8, Better: bench.More, Unit: "×",
	})
	b.Target(bench.Target{ // to reach is the speed of a limiter that is in memory altogether
		What: "Redis, denied from memory, 256 goroutines: times redis_rate", Value: ratio(denied, at256, remembering, redisRate),
		AtLeast: 100, Reach: max(100, ratio(denied, at256, inMemory, redisRate)), Better: bench.More, Unit: "×",
	})
}

// notes says how the contenders were used.
func notes(b *bench.B) {
	b.Note("redis_rate, ulule/limiter and throttled use a go-redis client with its own settings; Lockkeeper one with " +
		"ContextTimeoutEnabled and time-outs of 250 ms, as it recommends. Each has go-redis's ten connections for each core.")
	b.Note("rueidis sends the shortest script that decides (the one under \"What Redis can do\"), with its default of pipelining " +
		"concurrent calls, and without the client-side cache, which a script cannot use.")
	b.Note("ulule/limiter counts in a fixed window: the same limit lets twice as many through at the edge of two windows.")
	b.Note("throttled compares and swaps, at most ten times (its own limit); after that the decision is an error.")
	b.Note("Lockkeeper decides about many keys in one script call when many ask at once, and remembers a denial for a second at " +
		"most. \"Denials from the store\" is with WithoutRememberedDenials.")
	if b.Setting() != bench.Full {
		b.Note("In this setting a measurement is much shorter than a denial is remembered, so the questions with which it begins " +
			"weigh more than they do in a second.")
	}
}
