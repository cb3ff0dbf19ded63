package bench

// peers returns the libraries with which the report begins. The first pair of each is what it is
// taken for most, the second one where it does best.
func peers() []peer {
	const (
		script     = "rueidis, GCRA script by hand"
		inMap      = "x/time/rate in a map with a mutex"
		ulule      = "ulule/limiter"
		redislock  = "redislock, polling every 100 ms"
		pglock     = "pglock's statements"
		advisory   = "session advisory lock"
		fiber      = "fiber's own, fiber v3"
		onNetHTTP  = "Lockkeeper, net/http"
		onRedis    = "Lockkeeper on Redis"
		onPostgres = "Lockkeeper on PostgreSQL"
	)
	decisions := func(goroutines, theirs string) pair {
		return pair{what: "decisions on Redis, " + goroutines, table: "tokens-allowed", column: goroutines, ours: ours, theirs: theirs}
	}
	memory := func(keys, theirs string) pair {
		return pair{what: "a decision in memory, " + keys, table: "memory", column: keys, ours: ours, theirs: theirs}
	}
	heap := func(theirs string) pair {
		return pair{what: "heap of a million keys", table: "memory", column: "heap", ours: ours, theirs: theirs}
	}
	inRedis := func(theirs string) pair {
		return pair{what: "memory of Redis for a key", table: "tokens-memory", column: "memory", ours: ours, theirs: theirs}
	}
	added := func(framework, table, ours, theirs string) pair {
		return pair{what: "time added to a request, " + framework, table: table, column: "added time", ours: ours, theirs: theirs}
	}
	denials := func(theirs string) pair {
		return pair{what: "denials, 256 goroutines", table: "tokens-denied", column: "256 goroutines", ours: "Lockkeeper, denials from memory", theirs: theirs}
	}
	contended := func(what, column, theirs string) pair {
		return pair{what: what + ", 64 goroutines in 4 processes", table: "locks-contended-64-in-4", column: column, ours: ours, theirs: theirs}
	}
	// locks compares a lock of a library; polling is its row where it hands over fastest.
	locks := func(row, polling string) []pair {
		how := ""
		if polling != row {
			how = ", which polls every 1 ms"
		}
		return []pair{
			contended("acquisitions of one lock", "acquisitions", row),
			{what: "from one client to another" + how, table: "locks-remote", column: "hand-off p50", ours: ours, theirs: polling},
			{what: "lock and unlock, uncontended", table: "locks-uncontended", column: "p50", ours: ours, theirs: row},
			contended("p99 of a wait", "wait p99", row),
			contended("commands of an acquisition", "commands", row),
		}
	}
	return []peer{
		{name: "redis_rate", pairs: []pair{
			decisions("256 goroutines", "redis_rate"), decisions("1 goroutine", "redis_rate"), decisions("16 goroutines", "redis_rate"),
			{what: "decisions on a Cluster, 256 goroutines", table: "cluster", column: "throughput", ours: ours, theirs: "redis_rate"},
			denials("redis_rate"),
			{what: "p99 of a decision, 256 goroutines", table: "tokens-allowed-latency", column: "p99 at 256", ours: ours, theirs: "redis_rate"},
			inRedis("redis_rate"),
		}},
		{name: ulule, pairs: []pair{
			added("gin", "middleware-gin", ours, ulule), decisions("1 goroutine", ulule), decisions("256 goroutines", ulule),
			denials(ulule), inRedis(ulule), memory("1M keys, 1 goroutine", ulule), heap(ulule),
		}},
		{name: "httprate", pairs: []pair{
			added("net/http", "middleware-http", ours, "httprate"), heap("httprate's counter"),
			memory("1 key, 1 goroutine", "httprate's counter"), memory("1M keys, 1 goroutine", "httprate's counter"),
		}},
		{name: "echo's own limiter", pairs: []pair{
			added("echo v5", "middleware-echov5", ours, "echo's own"), added("echo v4", "middleware-echov4", ours, "echo's own"),
			heap("echo's RateLimiterMemoryStore"),
		}},
		{name: "x/time/rate", pairs: []pair{
			memory("10k keys, 2 goroutines", inMap), memory("1 key, 2 goroutines", inMap), memory("1 key, 1 goroutine", inMap),
			memory("1M keys, 1 goroutine", inMap), heap(inMap),
		}},
		{name: "go-limiter", pairs: []pair{
			memory("1M keys, 1 goroutine", "go-limiter"), memory("1 key, 1 goroutine", "go-limiter"), memory("10k keys, 2 goroutines", "go-limiter"),
			heap("go-limiter"),
		}},
		{name: "throttled", pairs: []pair{
			decisions("256 goroutines", "throttled"), inRedis("throttled"), decisions("1 goroutine", "throttled"), denials("throttled"),
		}},
		{name: "a script on rueidis", pairs: []pair{
			decisions("256 goroutines", script), inRedis(script), decisions("16 goroutines", script), decisions("1 goroutine", script), denials(script),
			{what: "decisions on a Cluster, 256 goroutines", table: "cluster", column: "throughput", ours: ours, theirs: script},
		}},
		{name: "redsync", pairs: locks("redsync", "redsync, polling every 1 ms")},
		{name: "redislock", pairs: locks(redislock, "redislock, polling every 1 ms")},
		{name: "rueidislock", pairs: locks("rueidislock", "rueidislock")},
		{name: "pglock", pairs: []pair{
			{what: "locks a second, 64 goroutines", table: "postgres-locks", column: "rate of 64", ours: ours, theirs: pglock},
			{what: "lock and unlock, uncontended", table: "postgres-locks", column: "p50", ours: ours, theirs: pglock},
			{what: "slower beside an old transaction", table: "postgres-old", column: "slower", ours: "Lockkeeper, a lock, one goroutine", theirs: "pglock's statements, one goroutine"},
		}},
		{name: "advisory locks", pairs: []pair{
			{what: "one lock, 64 goroutines in 4 processes", table: "postgres-contended", column: "acquisitions", ours: ours, theirs: advisory},
			{what: "lock and unlock, uncontended", table: "postgres-locks", column: "p50", ours: ours, theirs: advisory},
			{what: "from one process to another", table: "postgres-remote", column: "hand-off p50", ours: ours, theirs: advisory},
		}},
		{name: "fiber's idempotency", pairs: []pair{
			added("fresh", "middleware-fresh", onNetHTTP, fiber), added("replay", "middleware-replay", onNetHTTP, fiber),
		}},
		{name: "asynq", pairs: []pair{
			{what: "tasks on Redis: put, take and done", table: "delay-redis", column: "rate", ours: onRedis, theirs: "asynq"},
			{what: "lateness", table: "delay-lateness", column: "p50", ours: onRedis, theirs: "asynq"},
		}},
		{name: "river", pairs: []pair{
			{what: "tasks on PostgreSQL: put, take and done", table: "delay-postgres", column: "rate", ours: onPostgres, theirs: "river, with the settings of its benchmark"},
			{what: "lateness", table: "delay-lateness", column: "p50", ours: onPostgres, theirs: "river"},
		}},
		{name: "failsafe-go", pairs: []pair{
			{
				what: "goodput at three times the load", table: "overload-goodput", column: "goodput",
				ours: "Lockkeeper, adaptive, target 200 ms, 25 to 1,000", theirs: "failsafe-go, adaptive limiter",
			},
		}},
	}
}
