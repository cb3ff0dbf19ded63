// Package pgserver starts PostgreSQL servers of a program's own, on free ports of the loopback
// interface. They keep what they commit, on a disk and with fsync, as in production.
package pgserver

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisserver"
)

// patience is how long a server may take to reply after its start, which may have a crash to recover
// from.
const patience = 20 * time.Second

// Superuser is the name of the user that may do everything. There are no passwords.
const Superuser = "postgres"

// Server is a running PostgreSQL server.
type Server struct {
	bin  string // the directory of the programs
	dir  string
	env  []string
	args []string
	port int

	mu     sync.Mutex
	cmd    *exec.Cmd
	exited chan struct{}
}

// Start starts a server with additional settings, such as "shared_buffers=64MB". The caller has to
// stop it. It returns an error if PostgreSQL is not installed, or does not reply within 20 s.
func Start(ctx context.Context, settings ...string) (*Server, error) {
	return StartIn(ctx, nil, settings...)
}

// StartIn is Start with variables beside those of this process's environment.
func StartIn(ctx context.Context, env []string, settings ...string) (*Server, error) {
	bin, err := programs()
	if err != nil {
		return nil, fmt.Errorf("pgserver: %w", err)
	}
	s := &Server{bin: bin, env: env}
	for _, setting := range append([]string{
		"listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=400", "shared_buffers=256MB",
	}, settings...) {
		s.args = append(s.args, "-c", setting)
	}
	return s.begin(ctx, "initdb", "-D", "data", "-U", Superuser, "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
}

// StartReplica starts a replica of a server, with the same settings and variables: a copy that
// follows it, and answers what reads. The caller has to stop it.
func (s *Server) StartReplica(ctx context.Context) (*Server, error) {
	r := &Server{bin: s.bin, env: s.env, args: s.args}
	return r.begin(ctx, "pg_basebackup", "-d", s.DSN(), "-D", "data", "-R", "-c", "fast", "-N")
}

// begin makes the directory of the data by a program, and starts the server.
func (s *Server) begin(ctx context.Context, program string, args ...string) (_ *Server, err error) {
	if s.dir, err = os.MkdirTemp("", "lockkeeper-bench-"); err != nil { // commits are to reach a disk
		return nil, fmt.Errorf("pgserver: %w", err)
	}
	if err = s.create(ctx, program, args...); err == nil {
		for range 10 { // another process may take the free port first
			if s.port, err = redisserver.FreePort(); err != nil {
				break
			}
			if err = s.start(ctx); err == nil || ctx.Err() != nil {
				break
			}
		}
	}
	if err != nil {
		s.Stop()
		return nil, fmt.Errorf("pgserver: %w", err)
	}
	return s, nil
}

// programs returns the directory of the newest server's programs.
func programs() (string, error) {
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path), nil
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // where Debian has them
	if len(found) == 0 {
		return "", errors.New("PostgreSQL is not installed: there is no initdb in the PATH")
	}
	release := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
		return n
	}
	return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return release(a) - release(b) })), nil
}

// Version is the version of the server that Start starts: empty if there is none.
func Version(ctx context.Context) string {
	bin, err := programs()
	if err != nil {
		return ""
	}
	text, err := exec.CommandContext(ctx, filepath.Join(bin, "postgres"), "--version").Output()
	if fields := strings.Fields(string(text)); err == nil && len(fields) > 2 {
		return fields[2] // of "postgres (PostgreSQL) 15.18 (Debian 15.18-0+deb12u1)"
	}
	return ""
}

// credential is the user that runs servers: PostgreSQL refuses to be run by root.
func credential() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{Superuser, "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ := strconv.ParseUint(u.Uid, 10, 32)
			gid, _ := strconv.ParseUint(u.Gid, 10, 32)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	return nil
}

func (s *Server) data() string { return filepath.Join(s.dir, "data") }

func (s *Server) command(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, filepath.Join(s.bin, program), args...)
	cmd.Dir, cmd.Env = s.dir, append(os.Environ(), s.env...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential()}
	return cmd
}

// create makes the directory of the data.
func (s *Server) create(ctx context.Context, program string, args ...string) error {
	if c := credential(); c != nil {
		if err := os.Chown(s.dir, int(c.Uid), int(c.Gid)); err != nil {
			return err
		}
	}
	if text, err := s.command(ctx, program, args...).CombinedOutput(); err != nil {
		return fmt.Errorf("%s: %w: %s", program, err, bytes.TrimSpace(text))
	}
	return nil
}

func (s *Server) start(ctx context.Context) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	log, err := os.Create(filepath.Join(s.dir, "log"))
	if err != nil {
		return err
	}
	defer func() { _ = log.Close() }()
	// Not ended with ctx: that is for Stop.
	cmd := s.command(context.WithoutCancel(ctx), "postgres", append([]string{"-D", s.data(), "-p", strconv.Itoa(s.port)}, s.args...)...)
	cmd.Stdout, cmd.Stderr = log, log
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
		text, _ := os.ReadFile(log.Name())
		return fmt.Errorf("%w: %s", err, bytes.TrimSpace(text))
	}
	s.cmd, s.exited = cmd, exited
	return nil
}

// await waits until the server replies.
func (s *Server) await(ctx context.Context, exited <-chan struct{}) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("no answer in %v", patience))
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		conn, err := pgx.Connect(ctx, s.DSN())
		if err == nil {
			return conn.Close(ctx)
		}
		select {
		case <-exited:
			return errors.New("postgres exited at once")
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// Addr is the server's address, the same after a restart.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Port is the server's port.
func (s *Server) Port() int { return s.port }

// DSN is the URL of the server's first database, for its superuser.
func (s *Server) DSN() string { return DSN(s.Addr(), Superuser) }

// DSN is the URL of the first database of the server at an address, for a user.
func DSN(addr, user string) string {
	return "postgres://" + user + "@" + addr + "/postgres?sslmode=disable"
}

// Process is the server's main process, for signals; nil if it is stopped.
func (s *Server) Process() *os.Process {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return nil
	}
	return s.cmd.Process
}

// Kill ends the server at once, as a crash would: its other processes end when they see that the
// main one has. It may be started again with [Server.Restart].
func (s *Server) Kill() { s.end(syscall.SIGKILL) }

// Shutdown ends the server as an operator would, without waiting for its clients.
func (s *Server) Shutdown() { s.end(syscall.SIGINT) }

func (s *Server) end(signal os.Signal) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cmd == nil {
		return
	}
	_ = s.cmd.Process.Signal(signal)
	<-s.exited
	s.cmd = nil
}

// Restart kills the server, if it runs, and starts it again at its old address, with what it had
// committed.
func (s *Server) Restart(ctx context.Context) error {
	s.Kill()
	ctx, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	for {
		err := s.start(ctx)
		// The processes of the one before may not have seen yet that it is gone.
		if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "still in use") && !strings.Contains(err.Error(), "postmaster.pid") {
			return err
		}
		select {
		case <-ctx.Done():
			return err
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Stop ends the server and removes its directory. It may be called again.
func (s *Server) Stop() {
	s.Kill()
	// The last processes may still write: until they do not, the directory cannot be removed.
	for range 100 {
		if err := os.RemoveAll(s.dir); err == nil {
			return
		}
		<-time.After(20 * time.Millisecond)
	}
}
