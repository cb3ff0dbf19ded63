package etcdstore

import (
	"context"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/internal/testing/etcdtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
	"github.com/lockkeeper/lockkeeper/internal/testing/history"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

const (
	historyEndpoints = "ETCDSTORE_TEST_ENDPOINTS"
	historyPrefix    = "ETCDSTORE_TEST_PREFIX"
	historyRounds    = "ETCDSTORE_TEST_ROUNDS" // of faults of a cluster, 3 by default
	// historyTTL is longer than a leader is paused: a server without the correction that Check asks for ends
	// leases by the clock of the leader that it was.
	historyTTL      = 5 * time.Second
	historyKeys     = 4
	historyCapacity = 5
)

// longestGap is how long a lock may be free while processes wait for it: for a dead process, the lease of its
// waiting requests, and a second and a half until the server has noticed. A new leader counts leases anew,
// after an election, with steps that are sent again.
const (
	longestGap        = historyTTL + (slack+2)*time.Second
	longestGapOfFault = 2 * longestGap
)

func historyStore(t *testing.T) *Store {
	return open(t, connect(t, strings.Split(os.Getenv(historyEndpoints), ",")...), WithPrefix(os.Getenv(historyPrefix)), WithTimeout(time.Second))
}

// keyOfProcess returns the key of the locks of a process, such as "3" or "3-7".
func keyOfProcess(name string) string {
	number, _, _ := strings.Cut(name, "-")
	n, _ := strconv.Atoi(number)
	return "k" + strconv.Itoa(n%historyKeys)
}

// TestHistoryOfLocks is one of the processes of tests of locks. Every other one of its leases is shared.
func TestHistoryOfLocks(t *testing.T) {
	child := history.NewChild(t)
	l, err := lock.New(historyStore(t), "history", lock.WithTTL(historyTTL), lock.WithHolder(child.Name))
	if err != nil {
		t.Fatal(err)
	}
	child.Compete(2, 20*time.Millisecond, func(ctx context.Context) (history.Hold, int64, func(), error) {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 20*time.Second)
		lease, err := l.Lock(ctx, keyOfProcess(child.Name))
		if err != nil {
			cancel()
			return nil, 0, nil, err
		}
		return lease, lease.Fence().Number, func() { _ = lease.Unlock(ctx); cancel() }, nil
	})
	_ = l.Close()
}

func noneShared(string) bool { return false }

// checkLocks checks the history of each key.
func checkLocks(t *testing.T, events []history.Event, gap time.Duration) {
	t.Helper()
	for key := range historyKeys {
		var of []history.Event
		for _, e := range events {
			if keyOfProcess(e.Process()) == "k"+strconv.Itoa(key) {
				of = append(of, e)
			}
		}
		history.WantGrants(t, of, 10)
		for _, wrong := range history.CheckLock(of, noneShared, time.Hour) {
			t.Error(wrong)
		}
		for _, late := range history.CheckLock(of, noneShared, testpace.Scale(gap)) {
			t.Error(late)
		}
	}
}

// Processes that are killed one after the other: the leases of live ones never overlap, and fences grow.
func TestLockHistory(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), newPrefix()
	r := &history.Recording{Test: "TestHistoryOfLocks", Env: []string{historyEndpoints + "=" + server.URL(), historyPrefix + "=" + prefix}}
	checkLocks(t, r.Run(t, 8, 4), longestGap)
	noEntriesLeft(t, connect(t, server.URL()), prefix)
}

// noEntriesLeft checks that no entries are left once the leases of dead processes have ended.
func noEntriesLeft(t *testing.T, c *clientv3.Client, prefix string) {
	t.Helper()
	testpace.Eventually(t, 15*time.Second, "no entries are left", func() bool {
		reply, err := c.Get(context.Background(), prefix+"/l/", clientv3.WithPrefix(), clientv3.WithCountOnly())
		return err == nil && reply.Count == 0
	})
}

// noneLeftOf waits until there are no entries of a dead process.
func noneLeftOf(t *testing.T, c *clientv3.Client, prefix, process string) {
	t.Helper()
	testpace.Eventually(t, longestGapOfFault, "no entries of a dead process are left", func() bool {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second)
		defer cancel()
		reply, err := c.Get(ctx, prefix+"/l/", clientv3.WithPrefix())
		if err != nil {
			return false
		}
		for _, kv := range reply.Kvs {
			if e, err := read(kv); err != nil || e.label == process {
				return false
			}
		}
		return true
	})
}

// TestHistoryOfPermits is one of the processes of TestSemaphoreHistory.
func TestHistoryOfPermits(t *testing.T) {
	child := history.NewChild(t)
	s, err := semaphore.New(historyStore(t), "history", historyCapacity, semaphore.WithTTL(historyTTL))
	if err != nil {
		t.Fatal(err)
	}
	child.Compete(8, 20*time.Millisecond, func(ctx context.Context) (history.Hold, int64, func(), error) {
		permit, err := s.AcquireN(ctx, "k", 1+int(time.Now().UnixNano()%3))
		if err != nil {
			return nil, 0, nil, err
		}
		return permit, int64(permit.Weight()), func() { _ = permit.Release(ctx) }, nil
	})
	_ = s.Close()
}

func TestSemaphoreHistory(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), newPrefix()
	r := &history.Recording{Test: "TestHistoryOfPermits", Env: []string{historyEndpoints + "=" + server.URL(), historyPrefix + "=" + prefix}}
	events := r.Run(t, 4, 3)
	history.WantGrants(t, events, 100)
	for _, wrong := range history.CheckSemaphore(events, historyCapacity) {
		t.Error(wrong)
	}
	noEntriesLeft(t, connect(t, server.URL()), prefix)
}

// rounds returns how many faults each test of a cluster makes: 30 in a long run.
func rounds() int {
	if n, err := strconv.Atoi(os.Getenv(historyRounds)); err == nil {
		return n
	}
	return 3
}

// Three members: their leader is killed and started again, or paused for 3 s, or the clients are cut off
// from one of them for 5 s; and a process is killed each time. No leases overlap, fences grow, nothing is
// left, and no process waits without end.
func TestClusterFaults(t *testing.T) {
	t.Parallel()
	for name, fault := range map[string]func(t *testing.T, members []*etcdtest.Server, proxies []*faultproxy.Proxy){
		"the leader is killed": func(t *testing.T, members []*etcdtest.Server, _ []*faultproxy.Proxy) {
			leader := etcdtest.Leader(t, members)
			leader.Stop()
			<-time.After(time.Second)
			leader.Restart()
		},
		"the leader is paused": func(t *testing.T, members []*etcdtest.Server, _ []*faultproxy.Proxy) {
			leader := etcdtest.Leader(t, members)
			leader.Pause()
			<-time.After(3 * time.Second)
			leader.Continue()
		},
		"the clients are cut off from a member": func(t *testing.T, members []*etcdtest.Server, proxies []*faultproxy.Proxy) {
			cut := proxies[slices.Index(members, etcdtest.Leader(t, members))]
			cut.BlackHole()
			<-time.After(5 * time.Second)
			cut.Mend()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			members := etcdtest.StartCluster(t, 3)
			var (
				proxies   []*faultproxy.Proxy
				endpoints []string
			)
			for _, m := range members {
				p := faultproxy.New(t, bytes{}, m.Addr())
				proxies, endpoints = append(proxies, p), append(endpoints, "http://"+p.Addr())
			}
			prefix := newPrefix()
			c := connect(t, members[0].URL(), members[1].URL(), members[2].URL())
			r := &history.Recording{
				Test: "TestHistoryOfLocks",
				Env:  []string{historyEndpoints + "=" + strings.Join(endpoints, ","), historyPrefix + "=" + prefix},
				Dead: func(process string) {
					fault(t, members, proxies)
					noneLeftOf(t, c, prefix, process) // or the next leader would count its leases anew
				},
			}
			checkLocks(t, r.Run(t, 8, rounds()), longestGapOfFault)
			noEntriesLeft(t, c, prefix)
		})
	}
}
