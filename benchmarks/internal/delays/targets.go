package delays

import "github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"

// The targets. Those of waiting tasks name the numbers of the full setting.
const (
	redisRate    = "delay on Redis, put, take and done: rate, of that of " + scriptsFloor
	postgresRate = "delay on PostgreSQL, put, take and done: rate, of that of " + statementsFloor

	redisMedian    = "delay on Redis, 4 idle processes: lateness, p50"
	redisTail      = "delay on Redis, 4 idle processes: lateness, p99"
	redisAsynq     = "delay on Redis, 4 idle processes: lateness, p50, of that of asynq"
	postgresMedian = "delay on PostgreSQL, 4 idle processes: lateness, p50, of that of " + timersFloor
	postgresTail   = "delay on PostgreSQL, 4 idle processes: lateness, p99"
	postgresRiver  = "delay on PostgreSQL, 4 idle processes: lateness, p50, of that of river"

	redisIdle    = "delay on Redis, an idle process: calls per queue in 3 s"
	postgresIdle = "delay on PostgreSQL, an idle process: calls per queue in 3 s"

	redisMillion    = "delay on Redis, 1,000,000 waiting: put, cancel or take, p50, of that with 1,000"
	postgresMillion = "delay on PostgreSQL, 1,000,000 waiting: put, cancel or take, p50, of that with 1,000"
)

func targets() []bench.Target {
	return []bench.Target{
		{What: redisRate, Bound: 0.18, Better: bench.More, Unit: "x",
			Floor: "the server takes 26 µs for a task of the floor, with 7 commands, and 121 for one that may be repeated, moved, followed, " +
				"cancelled and lost, with 23 (asynq: 129): 0.21; / 1.2"},
		{What: postgresRate, Bound: 0.18, Better: bench.More, Unit: "x",
			Floor: "a put that returns is a commit of its own, of 1.2 ms, on 8 connections, and the floor's is a tenth of one: 0.23, and 0.32 with " +
				"puts in transactions of ten; / 1.2"},
		{What: redisMedian, Bound: 5, Better: bench.Less, Unit: "ms"},
		{What: redisTail, Bound: 100, Better: bench.Less, Unit: "ms"},
		{What: redisAsynq, Bound: 0.02, Better: bench.Less, Unit: "x"},
		{What: postgresMedian, Bound: 4, Better: bench.Less, Unit: "x",
			Floor: "4.3 to 5.7 ms, where an UPDATE and its commit take 1.3 to 1.8: 3.4; the take is one statement, and idle processes take at " +
				"random times of 8 ms, since most of them would find the task taken; × 1.2"},
		{What: postgresTail, Bound: 100, Better: bench.Less, Unit: "ms"},
		{What: postgresRiver, Bound: 0.02, Better: bench.Less, Unit: "x"},
		// A twentieth is for calls of the store itself.
		{What: redisIdle, Bound: 1.05, Better: bench.Less},
		{What: postgresIdle, Bound: 1.05, Better: bench.Less},
		{What: redisMillion, Bound: 1.5, Better: bench.Less, Unit: "x"},
		{What: postgresMillion, Bound: 1.5, Better: bench.Less, Unit: "x"},
	}
}
