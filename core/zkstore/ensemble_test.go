package zkstore

import (
	"context"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/internal/testing/zktest"
)

// Three servers whose leader is killed, then paused, and one of which is then cut off from its
// clients: eight stores compete for four locks. No valid leases overlap, fenced writes come in order,
// every lock is granted again soon, and nothing is left behind.
func TestFaultsOfAnEnsemble(t *testing.T) {
	t.Parallel()
	servers := zktest.StartThree(t)
	var proxies []*faultproxy.Proxy
	var addresses []string
	for _, s := range servers {
		proxy := zktest.NewProxy(t, s.Addr())
		proxies, addresses = append(proxies, proxy), append(addresses, proxy.Addr())
	}
	chroot := WithChroot(zktest.NewChroot())
	var stores []*Store
	for range 8 {
		stores = append(stores, open(t, addresses, chroot, WithSession(6*time.Second), WithTimeout(testpace.Scale(time.Second))))
	}
	for _, s := range stores {
		testpace.Eventually(t, patience, "the store is connected", func() bool { return s.Ping(t.Context()) == nil })
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := newContest(t, 4)
	c.run(ctx, 2, stores...)
	const again = 20 * time.Second
	for round := range rounds(1) {
		zktest.AwaitAll(t, servers)
		c.progress(time.Now(), again)
		leader, i := zktest.Leader(t, servers)
		leader.Kill()
		zktest.AwaitAll(t, slices.Delete(slices.Clone(servers), i, i+1)) // ZooKeeper may take long to elect a leader
		c.progress(time.Now(), again)
		leader.Restart()

		zktest.AwaitAll(t, servers)
		leader, _ = zktest.Leader(t, servers)
		must(t, leader.Process().Signal(syscall.SIGSTOP))
		<-time.After(3 * time.Second)
		must(t, leader.Process().Signal(syscall.SIGCONT))
		zktest.AwaitAll(t, servers)
		c.progress(time.Now(), again)

		cut := proxies[round%len(proxies)]
		cut.BlackHole()
		<-time.After(5 * time.Second)
		cut.Mend()
		c.progress(time.Now(), again)
	}
	cancel()
	c.end(10)
	watcher := open(t, zktest.Addrs(servers), chroot)
	testpace.Eventually(t, 10*time.Second, "nothing is left", func() bool {
		for state, err := range watcher.ListLeases(t.Context(), store.LockKind+"locks") {
			if err != nil || state.InUse+state.Waiting > 0 {
				return false
			}
		}
		return true
	})
	for i, s := range stores {
		if !s.entries.empty() || s.calls.givenUp.Load() != 0 {
			t.Errorf("store %d has entries, or calls in flight", i)
		}
	}
	findings, err := watcher.Check(t.Context())
	if err != nil || len(findings) != 0 {
		t.Errorf("Check: %v, %v", findings, err)
	}
}

// Fences grow over a restart of the server, a change of the leader, the deletion of a container, and
// another session.
func TestFencesGrow(t *testing.T) {
	t.Parallel()
	servers := zktest.StartThree(t)
	began := time.Now().UnixMicro()
	chroot := WithChroot(zktest.NewChroot())
	s := open(t, zktest.Addrs(servers), chroot)
	last := int64(0)
	grows := func(what string, s *Store) {
		t.Helper()
		l, err := lock.New(s, "locks")
		must(t, err)
		var lease *lock.Lease
		testpace.Eventually(t, patience, what, func() bool {
			lease, err = l.Lock(t.Context(), "k")
			return err == nil
		})
		if n := lease.Fence().Number; n <= last {
			t.Errorf("%s: fence %d after %d", what, n, last)
		} else {
			last = n
		}
		must(t, lease.Unlock(t.Context()))
	}
	grows("at first", s)
	if last < began {
		t.Errorf("fence %d is smaller than one that another store gave before, such as %d", last, began)
	}
	at := s.placeOf(store.LockKind+"locks", "k").path
	testpace.Eventually(t, patience, "the container is deleted", func() bool {
		stat, err := s.exists(t.Context(), at, reads)
		return err == nil && stat == nil
	})
	grows("after the container was deleted", s)
	for range 2 {
		leader, _ := zktest.Leader(t, servers)
		leader.Kill()
		grows("after a change of the leader", s)
		leader.Restart()
		grows("after a restart", s)
	}
	must(t, s.Close())
	grows("in another session", open(t, zktest.Addrs(servers), chroot))
	for _, server := range servers {
		server.Kill()
	}
	restarted := make(chan struct{}, len(servers))
	for _, server := range servers { // none serves without another
		go func() { server.Restart(); restarted <- struct{}{} }()
	}
	for range servers {
		<-restarted
	}
	grows("after a restart of all", open(t, zktest.Addrs(servers), chroot))
}
