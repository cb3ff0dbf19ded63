package postgres

import (
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
)

// notified is the floor of a hand-over.
const notified = "a commit, a notification, a commit (the floor)"

// The targets. Those of many locks name the numbers of the full setting.
const (
	ownTime       = "PostgreSQL, lock and unlock of an own key against pglock's statements: p50"
	ownRate       = "PostgreSQL, lock and unlock of an own key against pglock's statements: rate of 64 goroutines"
	crowdShare    = "PostgreSQL, lock, 64 goroutines in 4 processes: acquisitions against the ceiling"
	crowdEvenness = "PostgreSQL, lock, 64 goroutines in 4 processes: most against fewest per goroutine"
	handOver      = "PostgreSQL, lock, from one process to another: p50 against " + notified

	allowedRate = "PostgreSQL, tokens, allowed, 256 goroutines: decisions a second against " + upserts
	deniedTrips = "PostgreSQL, tokens, denied: round trips per 1,000 decisions"
	deniedRate  = "PostgreSQL, tokens, denied: decisions a second against those on Redis"

	guardFresh  = "PostgreSQL, guard: fresh: p50 against two commits"
	guardReplay = "PostgreSQL, guard: replay: p50 against a SELECT by key"
	guardDo     = "PostgreSQL, guard: pgstore.Do: p50 against begin, effect and settle apart"
	guardTrips  = "PostgreSQL, guard: pgstore.Do: round trips"

	besideLone   = "PostgreSQL, beside an old transaction, slower: a lock, one goroutine"
	besideCrowd  = "PostgreSQL, beside an old transaction, slower: a lock, 64 goroutines on two stores"
	besideBucket = "PostgreSQL, beside an old transaction, slower: a bucket, 64 goroutines"

	heldRenewals = "PostgreSQL, 10000 locks of one process: renewals per round trip"
	waitingTrips = "PostgreSQL, 10000 waiters of one process: round trips per s"
)

func lockTargets() []bench.Target {
	return append([]bench.Target{
		{What: ownTime, Bound: 1.1, Better: bench.Less, Unit: "x"},
		{What: ownRate, Bound: 1.3, Better: bench.More, Unit: "x"},
		{What: crowdShare, Bound: 90, Better: bench.More, Unit: "%"},
		{What: crowdEvenness, Bound: 1.05, Better: bench.Less, Unit: "x"},
		{What: handOver, Bound: 1.5, Better: bench.Less, Unit: "x"},
	}, contest.DeadTargets(queued().Row, 3)...)
}

func tokenTargets() []bench.Target {
	return []bench.Target{
		{What: allowedRate, Bound: 4, Better: bench.More, Unit: "x"},
		{What: deniedTrips, Bound: 1, Better: bench.Less},
		{What: deniedRate, Bound: 0.9, Better: bench.More, Unit: "x"},
	}
}

func guardTargets() []bench.Target {
	return []bench.Target{
		{What: guardFresh, Bound: 1.5, Better: bench.Less, Unit: "x",
			Floor: "the rows of a record and of its scope's count, without any check, take 1.15 of the floor's on A; × 1.3 for the checks (is there a record, has the scope room)"},
		{What: guardReplay, Bound: 1.5, Better: bench.Less, Unit: "x"},
		{What: guardDo, Bound: 0.6, Better: bench.Less, Unit: "x"},
		{What: guardTrips, Bound: 3, Better: bench.Less},
	}
}

func besideTargets() []bench.Target {
	return []bench.Target{
		{What: besideLone, Bound: 1.5, Better: bench.Less, Unit: "x"},
		{What: besideCrowd, Bound: 1.5, Better: bench.Less, Unit: "x"},
		{What: besideBucket, Bound: 3, Better: bench.Less, Unit: "x"},
	}
}

func manyTargets() []bench.Target {
	return []bench.Target{
		{What: heldRenewals, Bound: 90, Better: bench.More},
		{What: waitingTrips, Bound: 2, Better: bench.Less},
	}
}
