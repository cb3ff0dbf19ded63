package storetest

import "time"

// Exceptions are the tests of each suite that a store cannot pass, and why: for [Harness.Except]. The
// page of the promises lists them.
type Exceptions struct {
	Store                    string
	Leases, Latches, Crashes map[string]string // reasons, by the names of tests
	Grace                    time.Duration     // for [Harness.Grace]
}

// ExceptionsOf returns the exceptions of a store: "quorum", "etcd" or "zookeeper". Others have none.
func ExceptionsOf(name string) Exceptions {
	for _, e := range AllExceptions() {
		if e.Store == name {
			return e
		}
	}
	return Exceptions{Store: name}
}

// AllExceptions returns the exceptions of all stores.
func AllExceptions() []Exceptions {
	return []Exceptions{
		{Store: "etcd", Grace: 2 * time.Second},
		quorumExceptions(),
		zookeeperExceptions(),
	}
}
