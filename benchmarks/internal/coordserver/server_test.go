package coordserver

import (
	"context"
	"errors"
	"os"
	"regexp"
	"testing"
)

// A server serves when it has started, tells its version, counts what its clients do, and is at its old
// address again after it was killed.
func TestServers(t *testing.T) {
	for name, of := range map[string]struct {
		start             func(context.Context) (*Server, error)
		require, counters string
	}{
		"etcd":      {StartEtcd, "LOCKKEEPER_REQUIRE_ETCD", "etcd_debugging_mvcc_watcher_total"},
		"ZooKeeper": {StartZooKeeper, "LOCKKEEPER_REQUIRE_ZOOKEEPER", "zk_watch_count"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, err := of.start(t.Context())
			if errors.Is(err, ErrNotInstalled) && os.Getenv(of.require) != "1" {
				t.Skip(err)
			}
			if err != nil {
				t.Fatal(err)
			}
			defer s.Stop()
			addr := s.Addr()
			version, err := s.Version(t.Context())
			if err != nil || !regexp.MustCompile(`^3\.\d+\.\d+$`).MatchString(version) {
				t.Errorf("version %q, %v", version, err)
			}
			if n, err := s.Counter(t.Context(), of.counters); err != nil || n != 0 {
				t.Errorf("%v watches of no clients, %v", n, err)
			}
			if _, err := s.Counter(t.Context(), "no_such_counter"); err == nil {
				t.Error("it counts what there is not")
			}
			s.Kill()
			if s.Process() != nil {
				t.Error("a server that was killed has a process")
			}
			if _, err := s.Version(t.Context()); err == nil {
				t.Error("a server that was killed replies")
			}
			if err := s.Restart(t.Context()); err != nil || s.Addr() != addr {
				t.Fatalf("at %s instead of %s: %v", s.Addr(), addr, err)
			}
			s.Stop()
			if _, err := os.Stat(s.dir); !os.IsNotExist(err) {
				t.Errorf("a server that was stopped leaves a directory: %v", err)
			}
		})
	}
}
