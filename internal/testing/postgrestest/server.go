// Package postgrestest starts real PostgreSQL servers for tests, on free ports, and stops what it
// started.
package postgrestest

import (
	"bytes"
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
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testproc"
)

// Require turns a missing server from a skipped test into a failed one when it is set to 1.
const Require = "LOCKKEEPER_REQUIRE_POSTGRES"

// Server is a PostgreSQL server of a test.
type Server struct {
	t    testing.TB
	bin  string // the directory of the programs
	dir  string
	port int
	args []string

	mu      sync.Mutex
	running *testproc.Server
}

// Programs returns the directory with the programs of a PostgreSQL server, the newest of the ones
// that are installed. It skips the test if there is none, unless the variable Require demands one.
func Programs(t testing.TB) string {
	t.Helper()
	if path, err := exec.LookPath("initdb"); err == nil {
		if path, err = filepath.EvalSymlinks(path); err == nil {
			return filepath.Dir(path)
		}
	}
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // where Debian has them
	if len(found) == 0 {
		if os.Getenv(Require) == "1" {
			t.Fatalf("postgresql is not installed, and %s=1", Require)
		}
		t.Skipf("postgresql is not installed; %s=1 makes this a failure", Require)
	}
	newest := slices.MaxFunc(found, func(a, b string) int { return release(a) - release(b) })
	return filepath.Dir(newest)
}

func release(path string) int {
	n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path))))
	return n
}

// Start starts a server that lives until the test ends, with settings such as "fsync=on". Its data are
// in memory where there is room.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	bin := Programs(t)
	dir, err := newDir()
	if err != nil {
		t.Fatal(err)
	}
	return start(t, &Server{t: t, bin: bin, dir: dir}, settings)
}

// StartOnDisk starts a server as [Start] does, with its data on a disk, for what measures that.
func StartOnDisk(t testing.TB, settings ...string) *Server {
	t.Helper()
	bin := Programs(t)
	dir, err := os.MkdirTemp("", "postgrestest")
	if err != nil {
		t.Fatal(err)
	}
	return start(t, &Server{t: t, bin: bin, dir: dir}, settings)
}

func start(t testing.TB, s *Server, settings []string) *Server {
	t.Helper()
	s.endsWith(t)
	if err := s.create(); err != nil {
		t.Fatal(err)
	}
	for _, setting := range append([]string{
		"listen_addresses=127.0.0.1", "unix_socket_directories=", "max_connections=500", "shared_buffers=32MB",
		"fsync=off",                       // a process that ends does not need it to keep what it has written; a machine would
		"max_wal_size=256MB",              // data may be in memory
		"dynamic_shared_memory_type=mmap", // a killed server leaves nothing behind outside its directory
	}, settings...) {
		s.args = append(s.args, "-c", setting)
	}
	s.listenSomewhere()
	return s
}

// endsWith ends the server with a test, and removes its directory.
func (s *Server) endsWith(t testing.TB) {
	t.Cleanup(func() {
		s.stop()
		_ = os.RemoveAll(s.dir)
	})
}

// listenSomewhere starts the server on a free port.
func (s *Server) listenSomewhere() {
	s.t.Helper()
	if _, err := testproc.Somewhere(func(port int) error { s.port = port; return s.start() }); err != nil {
		s.t.Fatalf("postgres: %v", err)
	}
}

// Addr is the server's address, the same after a restart.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// DSN is the URL of the server's first database, for its superuser.
func (s *Server) DSN() string { return s.DSNOf("postgres") }

// DSNOf is the URL of a database of the server, for its superuser.
func (s *Server) DSNOf(database string) string {
	return "postgres://postgres@" + s.Addr() + "/" + database + "?sslmode=disable"
}

// Process is the server's main process, for signals.
func (s *Server) Process() *os.Process {
	s.t.Helper()
	process, err := s.find()
	if err != nil {
		s.t.Fatal(err)
	}
	return process
}

// state returns the ID of the main process, or of the one before it, and what it says of itself, such
// as "ready": the first and the eighth line of its file.
func (s *Server) state() (pid, status string) {
	text, _ := os.ReadFile(filepath.Join(s.dir, "data", "postmaster.pid"))
	lines := strings.Split(string(text), "\n")
	if len(lines) > 7 {
		status = strings.TrimSpace(lines[7])
	}
	return lines[0], status
}

// find finds the main process.
func (s *Server) find() (*os.Process, error) {
	text, _ := s.state()
	pid, err := strconv.Atoi(text)
	if err != nil {
		return nil, err
	}
	return os.FindProcess(pid)
}

// stop ends the server without a checkpoint.
func (s *Server) stop() { s.end(false) }

// Kill kills the server, all its processes, as a crash would. It may be called again.
func (s *Server) Kill() { s.end(true) }

func (s *Server) end(crash bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running == nil {
		return
	}
	if crash || !s.running.End(10*time.Second) {
		// The other processes of the server end when they see that the main one has.
		if process, err := s.find(); err == nil {
			_ = process.Kill()
		}
		s.running.End(0)
	}
	s.running = nil
}

// Restart starts the server again at its old address, after Kill or instead of it.
func (s *Server) Restart() {
	s.t.Helper()
	s.Kill()
	for began := time.Now(); ; <-time.After(50 * time.Millisecond) {
		err := s.start()
		if err == nil {
			return
		}
		if time.Since(began) > patience { // the processes of the one before may not have seen that it is gone
			s.t.Fatalf("postgres: %v", err)
		}
	}
}

// create makes the directory of the data.
func (s *Server) create() error {
	if err := giveAway(s.dir); err != nil {
		return err
	}
	first, err := initialized(s.bin)
	if err != nil {
		return err
	}
	if text, err := command("cp", "-Rp", first, filepath.Join(s.dir, "data")).CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, text)
	}
	return nil
}

// command is a program of the server.
func (s *Server) command(program string, args ...string) *exec.Cmd {
	cmd := command(filepath.Join(s.bin, program), args...)
	cmd.Dir = s.dir
	return cmd
}

// command is a program that runs as the user that runs servers.
func command(program string, args ...string) *exec.Cmd { return asUser(exec.Command(program, args...)) }

func asUser(cmd *exec.Cmd) *exec.Cmd {
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: credential()}
	return cmd
}

func (s *Server) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	args := append([]string{"-D", filepath.Join(s.dir, "data"), "-p", strconv.Itoa(s.port)}, s.args...)
	cmd := asUser(testproc.Watched("QUIT", filepath.Join(s.bin, "postgres"), args...))
	cmd.Dir = s.dir
	// Until the server has begun, its file has the ID of one that was killed.
	before, _ := s.state()
	running, err := testproc.Start(cmd, filepath.Join(s.dir, "log"), patience, func() bool {
		pid, status := s.state()
		return pid != before && status == "ready"
	})
	if err != nil {
		return err
	}
	s.running = running
	return nil
}

// patience is how long a server may take to start, on a busy machine.
const patience = time.Minute

// credential is the user that runs servers: postgres refuses to be run by root.
func credential() *syscall.Credential {
	if os.Geteuid() != 0 {
		return nil
	}
	for _, name := range []string{"postgres", "nobody"} {
		if u, err := user.Lookup(name); err == nil {
			uid, _ := strconv.ParseUint(u.Uid, 10, 32)
			gid, _ := strconv.ParseUint(u.Gid, 10, 32)
			return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		}
	}
	return nil
}

// giveAway makes a directory that of the user that runs servers.
func giveAway(dir string) error {
	if c := credential(); c != nil {
		return os.Chown(dir, int(c.Uid), int(c.Gid))
	}
	return nil
}

// Replica starts a replica of the server, which follows it and lives until the test ends.
func (s *Server) Replica() *Server {
	s.t.Helper()
	r := &Server{t: s.t, bin: s.bin, args: s.args}
	var err error
	if r.dir, err = newDir(); err != nil {
		s.t.Fatal(err)
	}
	r.endsWith(s.t)
	copied := r.command("pg_basebackup", "-h", "127.0.0.1", "-p", strconv.Itoa(s.port), "-U", "postgres",
		"-D", filepath.Join(r.dir, "data"), "-R", "-c", "fast")
	if text, err := copied.CombinedOutput(); err != nil {
		s.t.Fatalf("pg_basebackup: %v: %s", err, text)
	}
	r.listenSomewhere()
	return r
}

// Promote makes a replica a server that takes writes. It asks more than once: a server that restarts
// after one of its processes was killed forgets that it was asked.
func (s *Server) Promote() {
	s.t.Helper()
	var text []byte
	var err error
	for range 6 {
		text, err = s.command("pg_ctl", "promote", "-D", filepath.Join(s.dir, "data"), "-w", "-t", "10").CombinedOutput()
		if err == nil || bytes.Contains(text, []byte("not in standby mode")) { // since the time before
			return
		}
	}
	s.t.Fatalf("pg_ctl promote: %v: %s", err, text)
}
