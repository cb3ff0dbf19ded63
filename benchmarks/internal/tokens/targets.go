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

// The targets of the tokens section.
const (
	toRedisRate     = "Redis, allowed, 256 goroutines: times redis_rate"
	toByHand        = "Redis, allowed, 256 goroutines: times a script by hand on rueidis"
	toTogether      = "Redis, allowed, 256 goroutines: share of what Redis can do with 64 keys in a call"
	toUlule         = "Redis, allowed, 1 goroutine: times ulule/limiter"
	toP99           = "Redis, allowed, 256 goroutines: p99, of redis_rate's"
	toAllocations   = "Redis, allowed, 256 goroutines: allocations"
	toDenied        = "Redis, denied by the store, 256 goroutines: times redis_rate"
	toDeniedByCache = "Redis, denied from memory, 256 goroutines: times redis_rate"
)

// toRedisRateWith names the target of less than 256 goroutines.
func toRedisRateWith(goroutines int) string {
	return fmt.Sprintf("Redis, allowed, %s: times redis_rate", throughput(goroutines))
}

func targets() []bench.Target {
	return []bench.Target{
		{What: toRedisRate, Bound: 4, Better: bench.More, Unit: "×"},
		{What: toByHand, Bound: 1.5, Better: bench.More, Unit: "×",
			Floor: "one script for 64 keys makes 2.0, 2.4 and 2.3 times rueidis's decisions on A, B and C: 2.3; × 0.67, as in the next row"},
		{What: toTogether, Bound: 67, Better: bench.More, Unit: "%",
			Floor: "a small program with the same 256 callers makes 91 % of it, and one binary 228,000 to 310,000 decisions a second from run to run, " +
				"since one takes the server 2.0 to 3.6 µs: 0.91 × 0.74"},
		{What: toRedisRateWith(64), Bound: 2.5, Better: bench.More, Unit: "×"},
		{What: toRedisRateWith(16), Bound: 1.4, Better: bench.More, Unit: "×"},
		{What: toRedisRateWith(1), Bound: 0.9, Better: bench.More, Unit: "×",
			Floor: "one script in one round trip each, of 7.9 µs of the server's time (redis_rate's: 8.5): 1; × 0.9 for deadlines and the breaker, 2 to 3 µs of a call"},
		{What: toUlule, Bound: 0.73, Better: bench.More, Unit: "×",
			Floor: "redis_rate, which needs TIME, GET and SET as well (9 µs of the server's time; ulule/limiter's INCR and PEXPIRE: 5.3), makes 0.81, 0.97 and 0.75 " +
				"of its decisions on A, B and C: 0.81; × 0.9, as in the row before"},
		{What: toP99, Bound: 0.325, Better: bench.Less, Unit: "×",
			Floor: "four times the decisions are a fourth of the wait: 0.25; × 1.3, since the p99 of batches is 2.1 to 2.6 times their p50, and that of redis_rate 1.6 to 1.8 times"},
		{What: toAllocations, Bound: 3, Better: bench.Less, Unit: "per decision"},
		{What: toDenied, Bound: 6, Better: bench.More, Unit: "×"},
		{What: toDeniedByCache, Bound: 100, Better: bench.More, Unit: "×"},
	}
}

// judge gives the targets their values.
func judge(b *bench.B, all map[string]tables) {
	at256 := throughput(crowd)
	faster := func(column, than string) float64 {
		return worst(all, bench.More, func(t tables) float64 { return t.speed.Ratio(column, lockkeeper, than) })
	}
	b.Measured(toRedisRate, faster(at256, redisRate))
	b.Measured(toByHand, faster(at256, byHand))
	b.Measured(toTogether, 100*faster(at256, together))
	for _, g := range []int{64, 16, 1} {
		b.Measured(toRedisRateWith(g), faster(throughput(g), redisRate))
	}
	b.Measured(toUlule, faster(throughput(1), ulule))
	b.Measured(toP99, worst(all, bench.Less, func(t tables) float64 { return t.latency.Ratio(p99(crowd), lockkeeper, redisRate) }))
	b.Measured(toAllocations, worst(all, bench.Less, func(t tables) float64 { return t.speed.Value(lockkeeper, allocations) }))
	denied := all["denied"].speed
	b.Measured(toDenied, denied.Ratio(at256, asking, redisRate))
	b.Measured(toDeniedByCache, denied.Ratio(at256, remembering, redisRate))
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
