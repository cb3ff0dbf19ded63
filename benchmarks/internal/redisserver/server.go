// Package redisserver starts Redis servers of a program's own, on free ports of the loopback
// interface and with nothing kept on disk, unless their arguments say so.
package redisserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// patience is how long a server may take to reply after its start.
const patience = 10 * time.Second

// Server is a running redis-server.
type Server struct {
	dir    string
	args   []string
	env    []string
	conf   string // of a sentinel, which has nothing but that
	port   int
	client *redis.Client // for commands about the server itself

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start starts a server with additional arguments, such as "--maxmemory", "64mb". The caller has to
// stop it. It returns an error if redis-server is not installed or does not reply within ten
// seconds.
func Start(ctx context.Context, args ...string) (*Server, error) { return StartIn(ctx, nil, args...) }

// StartIn is Start with variables beside those of this process's environment.
func StartIn(ctx context.Context, env []string, args ...string) (*Server, error) {
	dir, err := directory()
	if err != nil {
		return nil, err
	}
	s := &Server{dir: dir, args: args, env: env}
	for range 10 { // another process may take the free port first
		if s.port, err = FreePort(); err != nil {
			break
		}
		if err = s.start(ctx); err == nil || ctx.Err() != nil || errors.Is(err, exec.ErrNotFound) {
			break
		}
	}
	if err != nil {
		s.Stop()
		return nil, fmt.Errorf("redisserver: %w", err)
	}
	return s, nil
}

// directory returns a new directory, in memory where there is one: a node of a Cluster writes its
// configuration when another one fails, and does not reply until that is on disk.
func directory() (string, error) {
	if dir, err := os.MkdirTemp("/dev/shm", "lockkeeper-bench-"); err == nil {
		return dir, nil
	}
	return os.MkdirTemp("", "lockkeeper-bench-")
}

func (s *Server) start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var output bytes.Buffer
	args := append([]string{
		"--port", strconv.Itoa(s.port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--dir", s.dir,
	}, s.args...)
	if s.conf != "" {
		args = []string{s.conf, "--sentinel"}
	}
	cmd := exec.Command("redis-server", args...)
	cmd.Env = append(os.Environ(), s.env...)
	cmd.Stdout, cmd.Stderr = &output, &output
	if err := cmd.Start(); err != nil {
		return err
	}
	exited := make(chan struct{})
	go func() {
		_ = cmd.Wait()
		close(exited)
	}()
	if err := s.await(ctx, exited); err != nil {
		_ = cmd.Process.Kill()
		<-exited
		return fmt.Errorf("%w: %s", err, strings.TrimSpace(output.String()))
	}
	client := redis.NewClient(&redis.Options{Addr: s.Addr(), PoolSize: 1})
	s.cmd, s.exited, s.client = cmd, exited, client
	return nil
}

// await waits until the server accepts connections, which it does once it is ready.
func (s *Server) await(ctx context.Context, exited <-chan struct{}) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer in %v", patience))
	defer cancel()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for {
		var d net.Dialer
		conn, err := d.DialContext(ctx, "tcp", s.Addr())
		if err == nil {
			return conn.Close()
		}
		select {
		case <-exited:
			return errors.New("redis-server exited at once")
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// FreePort returns a free port of the loopback interface.
func FreePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer func() { _ = l.Close() }()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Addr is the server's address, the same after a restart.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Port is the server's port.
func (s *Server) Port() int { return s.port }

// PID is the process id of the server, 0 if it is stopped.
func (s *Server) PID() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return 0
	}
	return s.cmd.Process.Pid
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
	if s.cmd == nil {
		return
	}
	_ = s.client.Close()
	_ = s.cmd.Process.Kill()
	<-s.exited
	s.cmd = nil
}

// Restart kills the server, if it runs, and starts it again at its old address: empty, unless its
// arguments make it keep something on disk, and [Server.Forget] was not called.
func (s *Server) Restart(ctx context.Context) error {
	s.Kill()
	return s.start(ctx)
}

// Forget kills the server, if it runs, and removes what it has kept of its data.
func (s *Server) Forget() error {
	s.Kill()
	return os.RemoveAll(filepath.Join(s.dir, "appendonlydir"))
}

// Stop ends the server and removes its directory. It may be called again.
func (s *Server) Stop() {
	s.Kill()
	_ = os.RemoveAll(s.dir)
}

// CPU is the processor time that the server has used since its start, in user and kernel mode.
func (s *Server) CPU(ctx context.Context) (time.Duration, error) {
	info, err := s.info(ctx, "cpu")
	if err != nil {
		return 0, err
	}
	var sum time.Duration
	for _, field := range []string{"used_cpu_user", "used_cpu_sys"} {
		seconds, err := strconv.ParseFloat(info[field], 64)
		if err != nil {
			return 0, fmt.Errorf("redisserver: %s: %w", field, err)
		}
		sum += time.Duration(seconds * float64(time.Second))
	}
	return sum, nil
}

// UsedMemory is how many bytes the server has allocated.
func (s *Server) UsedMemory(ctx context.Context) (int64, error) {
	info, err := s.info(ctx, "memory")
	if err != nil {
		return 0, err
	}
	n, err := strconv.ParseInt(info["used_memory"], 10, 64)
	if err != nil {
		return 0, fmt.Errorf("redisserver: used_memory: %w", err)
	}
	return n, nil
}

// Flush removes all keys, and returns once their memory is free.
func (s *Server) Flush(ctx context.Context) error {
	return s.client.Do(ctx, "flushall", "sync").Err()
}

// Version is the version of the server.
func (s *Server) Version(ctx context.Context) (string, error) {
	info, err := s.info(ctx, "server")
	return info["redis_version"], err
}

func (s *Server) info(ctx context.Context, section string) (map[string]string, error) {
	text, err := s.client.Info(ctx, section).Result()
	if err != nil {
		return nil, err
	}
	fields := make(map[string]string)
	for line := range strings.Lines(text) {
		if name, value, ok := strings.Cut(strings.TrimSpace(line), ":"); ok {
			fields[name] = value
		}
	}
	return fields, nil
}
