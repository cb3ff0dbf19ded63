package locks

import (
	"slices"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/floor"
)

// The targets.
const (
	aloneToScripts   = "lock and unlock, uncontended: p50 against " + floor.TwoScripts
	aloneToRedislock = "lock and unlock, uncontended: p50 against redislock"
	aloneAllocations = "lock and unlock, uncontended: allocations"
	remoteToPing     = "lock, from one client to another: p50 against a PING after the same rest"
	remoteToPolling  = "lock, from one client to another: p50 against " + polling
	releasedKeys     = "a lock that was released: keys in Redis"
)

// crowdTargets names the targets of 64 goroutines by where they are.
type crowdTargets string

const (
	oneProcess       crowdTargets = "one process"
	severalProcesses crowdTargets = "4 processes"
)

// orderly is in the names of targets of WithFair.
const orderly = "WithFair, "

func (c crowdTargets) name(what string) string {
	return "lock, 64 goroutines in " + string(c) + ": " + what
}

func (c crowdTargets) share(mode string) string {
	return c.name(mode + "acquisitions against the ceiling")
}

func (c crowdTargets) evenness() string { return c.name("most against fewest per goroutine") }

func (c crowdTargets) commands(mode string) string {
	return c.name(mode + "Redis commands per acquisition")
}

func targets() []bench.Target {
	return slices.Concat([]bench.Target{
		{What: aloneToScripts, Bound: 1.2, Better: bench.Less, Unit: "x"},
		{What: aloneToRedislock, Bound: 1.2, Better: bench.Less, Unit: "x"},
		{What: aloneAllocations, Bound: 20, Better: bench.Less},
		{What: oneProcess.share(""), Bound: 99, Better: bench.More, Unit: "%"},
		{What: oneProcess.evenness(), Bound: 1.05, Better: bench.Less, Unit: "x"},
		{What: oneProcess.commands(""), Bound: 0.5, Better: bench.Less},
		{What: severalProcesses.share(""), Bound: 97, Better: bench.More, Unit: "%"},
		{What: severalProcesses.evenness(), Bound: 1.05, Better: bench.Less, Unit: "x"},
		{What: severalProcesses.commands(""), Bound: 0.5, Better: bench.Less},
		{What: severalProcesses.share(orderly), Bound: 75, Better: bench.More, Unit: "%",
			Floor: "each hand-over takes a script with a PUBLISH until its message arrives, 156, 237 and 84 µs on A, B and C, beside the ceiling's 1.15, 1.21 and 1.12 ms: " +
				"88, 84 and 93 %; the median × 0.85"},
		{What: severalProcesses.commands(orderly), Bound: 2.1, Better: bench.Less},
		{What: remoteToPing, Bound: 3.9, Better: bench.Less, Unit: "x",
			Floor: "a script with a PUBLISH takes 2.1, 1.7 and 1.9 PINGs on A, B and C until its message arrives: 1.95; × 2 (rueidislock, which waits for messages as well, takes 1.6 to 1.9 of it)"},
		{What: remoteToPolling, Bound: 2.15, Better: bench.Less, Unit: "x",
			Floor: "a script with a PUBLISH takes 156, 237 and 84 µs on A, B and C until its message arrives, a whole polling hand-over 146, 207 and 84: 1.07; × 2, as in the row before"},
	}, contest.DeadTargets(fair, 2), []bench.Target{
		{What: releasedKeys, Bound: 1, Better: bench.Less},
	})
}
