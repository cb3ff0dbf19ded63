package idempotency

import (
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/floor"
)

// The targets: first those of a guard, then those of the middleware.
const (
	freshTrips        = "idempotency: round trips of a fresh request"
	replayTrips       = "idempotency: round trips of a replay"
	freshTime         = "idempotency: guard, fresh: p50 against " + floor.TwoScripts
	replayTime        = "idempotency: guard, replay: p50 against " + floor.OneScript
	freshAllocations  = "idempotency: guard, fresh: allocations"
	replayAllocations = "idempotency: guard, replay: allocations"

	adds                = "idempotency: what the middleware adds to "
	freshlyTime         = adds + "a fresh request: p50 against " + floor.TwoScripts
	freshlyAllocations  = adds + "a fresh request: allocations"
	replayedTime        = adds + "a replay: p50 against " + floor.OneScript
	replayedAllocations = adds + "a replay: allocations"

	listingAdds = "idempotency: what a listing among a million keys adds to the p99 of Begin, ms"
)

func targets() []bench.Target {
	return []bench.Target{
		{What: freshTrips, Bound: 2, Better: bench.Less},
		{What: replayTrips, Bound: 1, Better: bench.Less},
		{What: freshTime, Bound: 1.33, Better: bench.Less, Unit: "x",
			Floor: "the commands of a begin take the server 8 µs (TIME, EXISTS, HINCRBY, SET with PX, 3 keys, 8 arguments), a GET and a SET 3.5, beside a PING of 7.7, 41 and 18 µs " +
				"on A, B and C: 1.4, 1.1 and 1.2; 1.21 × 1.1"},
		{What: replayTime, Bound: 1.15, Better: bench.Less, Unit: "x"},
		{What: freshAllocations, Bound: 35, Better: bench.Less},
		{What: replayAllocations, Bound: 15, Better: bench.Less},
		{What: freshlyTime, Bound: 1.45, Better: bench.Less, Unit: "x",
			Floor: "the guard's 1.33; × 1.09 for reading the request and keeping the answer (29 allocations more)"},
		{What: freshlyAllocations, Bound: 60, Better: bench.Less},
		{What: replayedTime, Bound: 1.4, Better: bench.Less, Unit: "x",
			Floor: "the script of a replay takes the server 7.4 µs, a GET and a SET 3.5, beside a PING of 7.7, 41 and 18 µs on A, B and C: 1.35, 1.1 and 1.2; " +
				"1.18 × 1.1, and × 1.09 as in the row of the fresh request"},
		{What: replayedAllocations, Bound: 30, Better: bench.Less},
		{What: listingAdds, Bound: 0.5, Better: bench.Less},
	}
}
