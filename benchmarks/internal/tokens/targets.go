package tokens

import (
	"fmt"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
)

// worst returns the worst of a value over the rates; NaN if one was not measured.
func worst(all map[string]tables, better bench.Better, of func(t tables) float64) float64 {
	value := of(all["allowed"])
	for _, r := range rates()[1:] {
		if v := of(all["allowed"+r.id]); better == bench.Less {
			value = max(value, v)
		} else {
			value = min(value, v)
		}
	}
	return value
}

func targets(b *bench.B, all map[string]tables) {
	at256 := throughput(crowd)
	faster := func(column, than string) float64 {
		return worst(all, bench.More, func(t tables) float64 { return t.speed.Ratio(column, lockkeeper, than) })
	}
	b.Target(bench.Target{
		What: "Redis, allowed, 256 goroutines: times redis_rate", Value: faster(at256, redisRate),
		AtLeast: 4, Reach: 5.5, Better: bench.More, Unit: "×",
	})
	b.Target(bench.Target{
		What: "Redis, allowed, 256 goroutines: times a script by hand on rueidis", Value: faster(at256, byHand),
		AtLeast: 2, Reach: 2.5, Better: bench.More, Unit: "×",
	})
	b.Target(bench.Target{
		What:  "Redis, allowed, 256 goroutines: share of what Redis can do with 64 keys in a call",
		Value: 100 * faster(at256, together), AtLeast: 85, Reach: 95, Better: bench.More, Unit: "%",
	})
	for _, t := range []struct {
		g              int
		atLeast, reach float64
	}{{64, 2.5, 3.5}, {16, 1.4, 2}, {1, 1, 1.2}} {
		b.Target(bench.Target{
			What:  fmt.Sprintf("Redis, allowed, %s: times redis_rate", throughput(t.g)),
			Value: faster(throughput(t.g), redisRate), AtLeast: t.atLeast, Reach: t.reach, Better: bench.More, Unit: "×",
		})
	}
	b.Target(bench.Target{
		What: "Redis, allowed, 1 goroutine: times ulule/limiter", Value: faster(throughput(1), ulule),
		AtLeast: 1, Reach: 1.1, Better: bench.More, Unit: "×",
	})
	b.Target(bench.Target{
		What: "Redis, allowed, 256 goroutines: p99, of redis_rate's",
		Value: worst(all, bench.Less, func(t tables) float64 {
			return t.latency.Ratio(p99(crowd), lockkeeper, redisRate)
		}),
		AtLeast: 0.25, Reach: 0.14, Better: bench.Less, Unit: "×",
	})
	perDecision := worst(all, bench.Less, func(t tables) float64 {
		return t.speed.Value(lockkeeper, allocations)
	})
	b.Target(bench.Target{
		What: "Redis, allowed, 256 goroutines: allocations", Value: perDecision, AtLeast: 3, Reach: 2, Better: bench.Less, Unit: "per decision",
	})
	denied := all["denied"].speed
	b.Target(bench.Target{
		What: "Redis, denied by the store, 256 goroutines: times redis_rate", Value: denied.Ratio(at256, asking, redisRate),
		AtLeast: 6, Reach: 8, Better: bench.More, Unit: "×",
	})
	b.Target(bench.Target{ // the memory store is the ceiling
		What: "Redis, denied from memory, 256 goroutines: times redis_rate", Value: denied.Ratio(at256, remembering, redisRate),
		AtLeast: 100, Reach: max(100, denied.Ratio(at256, inMemory, redisRate)), Better: bench.More, Unit: "×",
	})
}

// notes records how the contenders were used.
func notes(b *bench.B) {
	b.Note("redis_rate, ulule/limiter and throttled use a go-redis client with its default settings; Lockkeeper one with " +
		"ContextTimeoutEnabled and timeouts of 250 ms, as its documentation recommends. Each has ten connections per core.")
	b.Note("rueidis sends the shortest script that decides (that of \"What Redis can do\"), pipelines concurrent calls by " +
		"default, and has no client-side cache, which a script cannot use.")
	b.Note("ulule/limiter counts in a fixed window: at the edge of two windows the same limit admits twice as many.")
	b.Note("throttled compares and swaps at most ten times (its default); then the decision is an error.")
	b.Note("Lockkeeper batches concurrent decisions about many keys into one script call, and caches a denial for at most a " +
		"second. \"Denials from the store\" is with WithoutDenialCache.")
	if b.Setting() != bench.Full {
		b.Note("In this setting a measurement is much shorter than a denial is cached, so its first decisions, which miss the " +
			"cache, weigh more.")
	}
}
