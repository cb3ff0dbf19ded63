package redisserver

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// StartSentinel starts a sentinel that monitors a master under a name, and returns when it knows
// the master's replicas. It takes the master for dead once that has not replied for a time. The
// caller has to stop it.
func StartSentinel(ctx context.Context, name string, master *Server, replicas int, dead time.Duration) (*Server, error) {
	dir, err := directory()
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, conf: filepath.Join(dir, "sentinel.conf")}
	err = func() (err error) {
		if s.port, err = FreePort(); err != nil {
			return err
		}
		conf := fmt.Sprintf("port %d\nbind 127.0.0.1\ndir %s\nsentinel monitor %s 127.0.0.1 %d 1\n"+
			"sentinel down-after-milliseconds %s %d\nsentinel failover-timeout %s 5000\n",
			s.port, s.dir, name, master.port, name, dead.Milliseconds(), name)
		if err := os.WriteFile(s.conf, []byte(conf), 0o600); err != nil {
			return err
		}
		if err := s.start(ctx); err != nil {
			return err
		}
		ctx, cancel := context.WithTimeoutCause(ctx, 3*patience, fmt.Errorf("replicas not known in %v", 3*patience))
		defer cancel()
		return until(ctx, func() (bool, error) {
			known, err := s.client.Do(ctx, "sentinel", "replicas", name).Slice()
			return len(known) == replicas, err
		})
	}()
	if err != nil {
		s.Stop()
		return nil, fmt.Errorf("redisserver: sentinel: %w", err)
	}
	return s, nil
}
