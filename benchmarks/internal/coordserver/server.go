// Package coordserver starts etcd and ZooKeeper servers of a program's own, on free ports of the
// loopback interface. They keep what they commit, on a disk and with fsync, as in production.
package coordserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisserver"
)

// ErrNotInstalled says that a machine has no such server.
var ErrNotInstalled = errors.New("not installed")

// patience is how long a server may take to reply after its start.
const patience = time.Minute

// Server is a running server, the only one of its cluster.
type Server struct {
	program
	dir  string
	port int

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
}

// program is what differs between servers.
type program interface {
	// command returns the command that runs the server with its data in a directory.
	command(dir string, port int) (*exec.Cmd, error)
	// counters returns what the server counts of itself, by name. It fails until the server serves.
	counters(ctx context.Context, addr string) (map[string]string, error)
	// version returns the server's version from its counters.
	version(ctx context.Context, addr string) (string, error)
}

// start starts a server for the first time.
func start(ctx context.Context, p program) (*Server, error) {
	dir, err := os.MkdirTemp("", "lockkeeper-bench-") // commits are to reach a disk
	if err != nil {
		return nil, err
	}
	s := &Server{program: p, dir: dir}
	for range 5 { // another process may take the free port first
		if s.port, err = redisserver.FreePort(); err != nil {
			break
		}
		if err = s.Restart(ctx); err == nil || ctx.Err() != nil {
			break
		}
	}
	if err != nil {
		s.Stop()
		return nil, fmt.Errorf("coordserver: %w", err)
	}
	return s, nil
}

// Addr is the server's address, the same after a restart.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Version is the version of the server.
func (s *Server) Version(ctx context.Context) (string, error) { return s.version(ctx, s.Addr()) }

// Counter returns the sum of the server's counters whose names begin with one of these.
func (s *Server) Counter(ctx context.Context, prefixes ...string) (sum float64, err error) {
	all, err := s.counters(ctx, s.Addr())
	if err != nil {
		return 0, err
	}
	found := false
	for name, text := range all {
		for _, prefix := range prefixes {
			if !strings.HasPrefix(name, prefix) {
				continue
			}
			value, err := strconv.ParseFloat(text, 64)
			if err != nil {
				return 0, fmt.Errorf("coordserver: %s: %w", name, err)
			}
			sum += value
			found = true
		}
	}
	if !found {
		return 0, fmt.Errorf("coordserver: the server counts no %s", strings.Join(prefixes, ", "))
	}
	return sum, nil
}

// Process is the server's process, for signals; nil if it is stopped.
func (s *Server) Process() *os.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil
	}
	return s.cmd.Process
}

// Kill ends the server at once, as a crash would. It may be started again with [Server.Restart].
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
}

func (s *Server) kill() {
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Kill()
	<-s.exited
	s.cmd = nil
}

// Restart kills the server, if it runs, and starts it again at its old address, with what it had
// committed. It returns when the server serves clients.
func (s *Server) Restart(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.kill()
	cmd, err := s.command(s.dir, s.port)
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	s.cmd, s.exited = cmd, make(chan struct{})
	go func(exited chan<- struct{}) {
		_ = cmd.Wait()
		close(exited)
	}(s.exited)
	if err := s.await(ctx); err != nil {
		s.kill()
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(text))
	}
	return nil
}

// await waits until the server serves clients.
func (s *Server) await(ctx context.Context) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer in %v", patience))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		if _, err := s.counters(ctx, s.Addr()); err == nil {
			return nil
		}
		select {
		case <-s.exited:
			return errors.New("the server exited at once")
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// Stop ends the server and removes its directory. It may be called again.
func (s *Server) Stop() {
	s.Kill()
	_ = os.RemoveAll(s.dir)
}
