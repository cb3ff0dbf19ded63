package storetest

import "time"

// zookeeperExceptions are those of core/zkstore. Holds of a dead process end with its session, of
// 40 s by default.
func zookeeperExceptions() Exceptions {
	e := Exceptions{Store: "zookeeper", Grace: 40 * time.Second, Leases: make(map[string]string)}
	const reserve = "ZooKeeper has no write that depends on the children of a node, so there are no requests with a reserve"
	for _, name := range []string{
		"lock: a full queue refuses requests",
		"semaphore: a full queue refuses requests",
		"semaphore: inspect returns the waiters in their order",
		"semaphore: a refusal says when enough holds expire",
		"semaphore: a waiting request that can never be granted is removed",
		"semaphore: a reserve is left to others",
		"semaphore: a smaller reserve goes first",
		"semaphore: a request is never behind one with a larger reserve",
		"semaphore: waiters with a smaller reserve count",
		"semaphore: waiters with a smaller reserve count at a release too",
		"semaphore: waiters with a larger reserve do not count",
		"semaphore: several tiers are served in their order",
		"semaphore: a withdrawal lets in a lower tier",
		"semaphore: a tier that is blocked blocks no other",
		"semaphore: a tier that is blocked blocks no other at a release",
		"semaphore: tiers keep their order among capacities",
		"semaphore: a larger capacity is no smaller reserve",
	} {
		e.Leases[name] = reserve
	}
	return e
}
