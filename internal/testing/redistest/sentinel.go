package redistest

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/internal/testing/testproc"
)

// Sentinel is a master with a replica, and a sentinel that promotes the replica when the master is
// down.
type Sentinel struct {
	Master, Replica *Server
	sentinel        *Server
	t               testing.TB
}

const masterName = "lockkeeper"

// StartSentinel starts the three, and ends them with the test. It skips or fails the test as
// [Start] does. When it returns, the replica is in sync, and the sentinel monitors it.
func StartSentinel(t testing.TB) *Sentinel {
	t.Helper()
	s := &Sentinel{t: t, Master: Start(t)}
	s.Replica = Start(t, "--replicaof", "127.0.0.1", strconv.Itoa(s.Master.port))
	s.sentinel = &Server{t: t, path: s.Master.path, dir: newDir(t)}
	t.Cleanup(s.sentinel.Stop)
	var err error
	if s.sentinel.port, err = testproc.FreePort(); err != nil {
		t.Fatal(err)
	}
	s.sentinel.conf = filepath.Join(s.sentinel.dir, "sentinel.conf")
	conf := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor %s 127.0.0.1 %d 1\n"+
		"sentinel down-after-milliseconds %s 500\nsentinel failover-timeout %s 5000\n",
		s.sentinel.port, s.sentinel.dir, masterName, s.Master.port, masterName, masterName)
	if err := os.WriteFile(s.sentinel.conf, []byte(conf), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := s.sentinel.start(); err != nil {
		t.Fatalf("redis sentinel: %v", err)
	}
	replica, sentinel := s.Replica.Client(), s.sentinel.Client()
	until(t, "the replica is in step, and known", func() bool {
		known, err := sentinel.Do(t.Context(), "sentinel", "replicas", masterName).Slice()
		return err == nil && len(known) == 1 && strings.Contains(replica.Info(t.Context(), "replication").Val(), "master_link_status:up")
	})
	return s
}

// SentinelAddr is the address of the sentinel.
func (s *Sentinel) SentinelAddr() string { return s.sentinel.Addr() }

// Client returns a client that gets the master's address from the sentinel, with a short timeout
// unless opts set another one. It is closed when the test ends.
func (s *Sentinel) Client(opts ...func(*redis.FailoverOptions)) *redis.Client {
	o := &redis.FailoverOptions{
		ContextTimeoutEnabled: true,
		MasterName:            masterName, SentinelAddrs: []string{s.sentinel.Addr()},
		ReadTimeout: 500 * time.Millisecond, WriteTimeout: 500 * time.Millisecond, DialTimeout: 500 * time.Millisecond,
	}
	for _, set := range opts {
		set(o)
	}
	client := redis.NewFailoverClient(o)
	s.t.Cleanup(func() { _ = client.Close() })
	return client
}

// SetDownAfter sets how long a server has to be silent before the sentinel takes it to be down:
// half a second at first, for which a busy machine may not run it.
func (s *Sentinel) SetDownAfter(downAfter time.Duration) {
	s.t.Helper()
	client := s.sentinel.Client()
	if err := client.Do(s.t.Context(), "sentinel", "set", masterName, "down-after-milliseconds", downAfter.Milliseconds()).Err(); err != nil {
		s.t.Fatalf("redis sentinel: %v", err)
	}
}

// Promote has the sentinel promote the replica while the master works, and returns when the
// sentinel names the replica. The old master remains one for up to 10 seconds, until the
// sentinel demotes it and ends its connections.
func (s *Sentinel) Promote() {
	s.t.Helper()
	sentinel := s.sentinel.Client()
	until(s.t, "the sentinel has heard from the replica, and promotes it", func() bool {
		return sentinel.Do(s.t.Context(), "sentinel", "failover", masterName).Err() == nil
	})
	s.AwaitPromotion()
}

// AwaitPromotion returns when the sentinel names the replica as the master.
func (s *Sentinel) AwaitPromotion() {
	s.t.Helper()
	sentinel := s.sentinel.Client()
	until(s.t, "the sentinel names the replica", func() bool {
		addr, err := sentinel.Do(s.t.Context(), "sentinel", "get-master-addr-by-name", masterName).StringSlice()
		return err == nil && len(addr) == 2 && addr[1] == strconv.Itoa(s.Replica.port)
	})
}

// Failover kills the master, and returns when the replica is the master.
func (s *Sentinel) Failover() {
	s.t.Helper()
	s.Master.Stop()
	replica := s.Replica.Client()
	until(s.t, "the replica is the master", func() bool {
		return strings.Contains(replica.Info(s.t.Context(), "replication").Val(), "role:master")
	})
}
