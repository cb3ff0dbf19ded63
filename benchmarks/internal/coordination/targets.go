package coordination

import (
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
)

// pair are the rows of a server that are compared with each other, and the names of its targets.
type pair struct {
	server                   kind
	ours, peer, floor        string
	own, crowd, handOver     string
	ownMost, crowdLeast      float64
	ownFloor, crowdFloor     string
	handOverMost             float64 // no target if it is 0
	watches                  string
	holder, behindDeadQueues string
}

func (p pair) on() kind { return p.server }

func pairs() []pair {
	all := []pair{
		{server: etcd, ours: lockkeeperEtcd, peer: concurrencyLock, floor: etcdFloor, ownMost: 1.28, crowdLeast: 4, handOverMost: 2.3,
			ownFloor: "1.15 and 1.22 in two runs: the transaction has two more conditions, and its entry a weight, a TTL and a label; × 1.05"},
		{server: zooKeeper, ours: lockkeeperZK, peer: zkLock, floor: zkFloor, ownMost: 1.25, crowdLeast: 1.6,
			crowdFloor: "a mutex of one process, the ceiling, has 887 acquisitions a second, 1.86 of zk.Lock's; × 0.86"},
	}
	for i := range all {
		p := &all[i]
		p.own = fmt.Sprintf("%s, lock and unlock of an own key: p50 against %s", p.server, p.peer)
		p.crowd = fmt.Sprintf("%s, lock, %d goroutines in %d processes: acquisitions against %s", p.server, goroutines, processes, p.peer)
		p.handOver = fmt.Sprintf("%s, lock, from one process to another: p50 against a delete and a watch event", p.server)
		p.watches = fmt.Sprintf("%s, 10000 waiters of one process for one lock: watches", p.server)
		p.holder = fmt.Sprintf("%s, a killed holder: time until the next one, of the lease", p.server)
		p.behindDeadQueues = fmt.Sprintf("%s, a killed holder with %d killed waiters behind it: time until the next one, of the lease", p.server, deadWaiters)
	}
	return all
}

// keepAlives names the numbers of the full setting.
const keepAlives = "etcd, 10000 locks of one process: keep-alives per s"

// deadLease is the lease of killed processes.
const deadLease = 5 * time.Second

func targets() []bench.Target {
	var all []bench.Target
	for _, p := range pairs() {
		all = append(all,
			bench.Target{What: p.own, Bound: p.ownMost, Better: bench.Less, Unit: "x", Floor: p.ownFloor},
			bench.Target{What: p.crowd, Bound: p.crowdLeast, Better: bench.More, Unit: "x", Floor: p.crowdFloor},
			bench.Target{What: p.holder, Bound: 1.3, Better: bench.Less, Unit: "x"},
			bench.Target{What: p.behindDeadQueues, Bound: 1.3, Better: bench.Less, Unit: "x"},
			bench.Target{What: p.watches, Bound: 1, Better: bench.Less},
		)
		if p.handOverMost > 0 {
			all = append(all, bench.Target{What: p.handOver, Bound: p.handOverMost, Better: bench.Less, Unit: "x",
				Floor: "2.0 to 2.2: after the event the waiter reads the entries of the key, since a request may have been queued anew before it; × 1.05"})
		}
	}
	return append(all, bench.Target{What: keepAlives, Bound: 1, Better: bench.Less})
}
