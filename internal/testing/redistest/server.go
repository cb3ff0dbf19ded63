// Package redistest starts real Redis servers for tests, on free ports, and stops what it started.
package redistest

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/internal/testing/testproc"
)

// Require turns a missing redis-server from a skipped test into a failed one when it is set to 1.
const Require = "LOCKKEEPER_REQUIRE_REDIS"

// Server is a redis-server process of a test.
type Server struct {
	t    testing.TB
	path string
	args []string
	conf string // of a sentinel, which has nothing but that
	dir  string
	port int

	mu      sync.Mutex
	process *os.Process
	watched *testproc.Server
}

// Start starts a server that lives until the test ends. It skips the test if redis-server is not
// installed, unless the variable Require demands it.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	path, err := exec.LookPath("redis-server")
	if err != nil {
		if os.Getenv(Require) == "1" {
			t.Fatalf("redis-server is not installed, and %s=1", Require)
		}
		t.Skipf("redis-server is not installed; %s=1 makes this a failure", Require)
	}
	return Binary(path).Start(t, args...)
}

// Start starts a server from this binary that lives until the test ends.
func (b Binary) Start(t testing.TB, args ...string) *Server {
	t.Helper()
	s := &Server{t: t, path: string(b), args: args, dir: newDir(t)}
	t.Cleanup(s.Stop)
	s.listenSomewhere()
	return s
}

// listenSomewhere starts the server on a free port.
func (s *Server) listenSomewhere() {
	s.t.Helper()
	if _, err := testproc.Somewhere(func(port int) error { s.port = port; return s.start() }); err != nil {
		s.t.Fatalf("%s: %v", s.path, err)
	}
}

// Addr is the server's address, the same after a restart.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// URL is the server's address as the -redis flag of the examples takes it.
func (s *Server) URL() string { return "redis://" + s.Addr() + "/0" }

// patience is longer than a busy machine takes to reply: after it a client repeats a command that
// may have been carried out. A store bounds the time of its calls itself.
const patience = 5 * time.Second

// Client returns a client, closed when the test ends.
func (s *Server) Client() *redis.Client {
	c := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: s.Addr(), ReadTimeout: patience, WriteTimeout: patience})
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// Stop kills the server, as a crash would. It may be called again.
func (s *Server) Stop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		return
	}
	_ = s.process.Kill()
	s.watched.End(0)
	s.process = nil
}

// Restart starts the server again, empty, at its old address.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	if err := s.start(); err != nil {
		s.t.Fatalf("redis-server: %v", err)
	}
}

// Process is the running server's process, for signals.
func (s *Server) Process() *os.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.process
}

func (s *Server) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	args := append([]string{
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.dir,
		"--repl-diskless-sync-delay", "0",
	}, s.args...)
	if s.conf != "" {
		args = []string{s.conf, "--sentinel"}
	}
	args = append(args, "--pidfile", s.pidFile())
	watched, err := testproc.Start(testproc.Watched("KILL", s.path, args...), filepath.Join(s.dir, "log"), 10*time.Second, s.replies)
	if err != nil {
		return err
	}
	process, err := s.find()
	if err != nil {
		watched.End(0)
		return err
	}
	s.process, s.watched = process, watched
	return nil
}

// replies reports whether the server replies. The client alone would dial again only after 100 ms, by
// when the server has long been ready.
func (s *Server) replies() bool {
	if !testproc.Accepts(s.Addr()) {
		return false
	}
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: s.Addr(), MaxRetries: -1})
	defer func() { _ = client.Close() }()
	return client.Ping(context.Background()).Err() == nil
}

// find finds the server's process, whose ID it writes before it replies.
func (s *Server) find() (*os.Process, error) {
	text, err := os.ReadFile(s.pidFile())
	if err != nil {
		return nil, err
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		return nil, err
	}
	return os.FindProcess(pid)
}

func (s *Server) pidFile() string { return filepath.Join(s.dir, "pid") }

// until polls until a condition holds, and fails the test if it does not within 30 seconds.
func until(t testing.TB, what string, holds func() bool) {
	t.Helper()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(30 * time.Second); !holds(); <-tick.C {
		if time.Now().After(deadline) {
			t.Fatalf("redis: not within 30s: %s", what)
		}
	}
}

// newDir returns a directory that is removed with the test. It is in memory, where there is room: a
// node of a Cluster writes its configuration to disk when another one fails, and does not reply
// until that is done: on a busy disk for hundreds of milliseconds.
func newDir(t testing.TB) string {
	t.Helper()
	dir, err := testproc.NewDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	return dir
}
