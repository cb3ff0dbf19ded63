// Package zktest starts real ZooKeeper servers for tests, on free ports, and stops what it started.
package zktest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testproc"
)

// Require turns a missing server from a skipped test into a failed one when it is set to 1.
const Require = "LOCKKEEPER_REQUIRE_ZOOKEEPER"

// jar is where Debian's package zookeeper has the server. Its manifest names what it needs.
const jar = "/usr/share/java/zookeeper.jar"

// patience is how long a server may take to start, or an ensemble to elect a leader.
const patience = 90 * time.Second

// Server is a ZooKeeper server of a test.
type Server struct {
	t      testing.TB
	java   string
	dir    string
	port   int
	quorum [2]int // its ports for other servers; none for a server of its own
	number int    // in its ensemble, from 1
	lines  []string

	mu      sync.Mutex
	running *testproc.Server
}

// program returns the path of a Java runtime. It skips the test if there is none, or no ZooKeeper,
// unless the variable Require demands them.
func program(t testing.TB) string {
	t.Helper()
	missing := ""
	java, err := exec.LookPath("java")
	if err != nil {
		missing = "default-jre-headless"
	}
	if _, err := os.Stat(jar); err != nil {
		missing = "zookeeper"
	}
	if missing == "" {
		return java
	}
	if os.Getenv(Require) == "1" {
		t.Fatalf("the package %s is not installed, and %s=1", missing, Require)
	}
	t.Skipf("the package %s is not installed; %s=1 makes this a failure", missing, Require)
	return ""
}

// Start starts a server that lives until the test ends, with settings such as "maxSessionTimeout=4000",
// which override those of tests. Its data are in memory where there is room.
func Start(t testing.TB, settings ...string) *Server {
	t.Helper()
	s := newServer(t, settings)
	var err error
	if s.port, err = testproc.Somewhere(func(port int) error { s.port = port; return s.start(true) }); err != nil {
		t.Fatalf("zookeeper: %v", err)
	}
	return s
}

// StartThree starts an ensemble of three servers that live until the test ends, and waits until all
// of them have a leader.
func StartThree(t testing.TB, settings ...string) []*Server {
	t.Helper()
	var err error
	for range 5 { // another process may take a port first
		var servers []*Server
		if servers, err = startThree(t, settings); err == nil {
			return servers
		}
		for _, s := range servers {
			s.Kill()
		}
	}
	t.Fatalf("zookeeper: %v", err)
	return nil
}

func startThree(t testing.TB, settings []string) (servers []*Server, err error) {
	t.Helper()
	for i := range 3 {
		s := newServer(t, settings)
		s.number = i + 1
		for _, port := range []*int{&s.port, &s.quorum[0], &s.quorum[1]} {
			if *port, err = testproc.FreePort(); err != nil {
				return servers, err
			}
		}
		servers = append(servers, s)
	}
	var members []string
	for _, s := range servers {
		members = append(members, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", s.number, s.quorum[0], s.quorum[1]))
	}
	for _, s := range servers {
		s.lines = slices.Concat(members, s.lines)
		if err := s.start(false); err != nil {
			return servers, err
		}
	}
	for _, s := range servers {
		if !s.within(patience, s.serves) {
			return servers, errors.New("a server of three serves no sessions")
		}
	}
	return servers, nil
}

// AwaitAll waits until all servers of an ensemble serve: one that was stopped joins again, for which the
// others wait with their next election.
func AwaitAll(t testing.TB, servers []*Server) {
	t.Helper()
	began := time.Now()
	for _, s := range servers {
		if !s.within(2*patience, s.serves) {
			t.Fatalf("the server at %s serves no sessions", s.Addr())
		}
	}
	if took := time.Since(began); took > 10*time.Second {
		t.Logf("the ensemble took %v to serve", took)
	}
}

func newServer(t testing.TB, settings []string) *Server {
	t.Helper()
	s := &Server{t: t, java: program(t), lines: settings}
	var err error
	if s.dir, err = testproc.NewDir(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Kill()
		_ = os.RemoveAll(s.dir)
	})
	return s
}

// logging has warnings and errors on the output only.
const logging = `log4j.rootLogger=WARN, CONSOLE
log4j.appender.CONSOLE=org.apache.log4j.ConsoleAppender
log4j.appender.CONSOLE.layout=org.apache.log4j.PatternLayout
log4j.appender.CONSOLE.layout.ConversionPattern=%d{ISO8601} %-5p %c{1}: %m%n
`

// start starts the server. With ready it waits until the server has given out a session.
func (s *Server) start(ready bool) error {
	config := []string{
		"dataDir=" + filepath.Join(s.dir, "data"), fmt.Sprintf("clientPort=%d", s.port), "clientPortAddress=127.0.0.1",
		"tickTime=500", "initLimit=20", "syncLimit=6", "maxSessionTimeout=240000", "maxClientCnxns=0",
		"admin.enableServer=false", "4lw.commands.whitelist=", "snapCount=1000000",
	}
	for _, line := range s.lines {
		name, _, _ := strings.Cut(line, "=")
		config = slices.DeleteFunc(config, func(other string) bool { return strings.HasPrefix(other, name+"=") })
		config = append(config, line)
	}
	for name, text := range map[string]string{
		"zoo.cfg": strings.Join(config, "\n") + "\n", "log4j.properties": logging, "data/myid": strconv.Itoa(s.number),
	} {
		path := filepath.Join(s.dir, name)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil { //nolint:gosec // of a test
			return err
		}
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // of a test
			return err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	// The shell's process becomes the server's, so that its ID is known.
	cmd := testproc.Watched("KILL", "/bin/sh", "-c", `echo $$ >"$1/pid"; shift; exec "$@"`, "server", s.dir,
		s.java, "-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.net.preferIPv4Stack=true",
		"-Dznode.container.checkIntervalMs=1000", "-Dzookeeper.forceSync=no",
		"-Dzookeeper.fastleader.maxNotificationInterval=500", // instead of a minute between attempts to elect a leader
		"-cp", s.dir+":"+jar, "org.apache.zookeeper.server.quorum.QuorumPeerMain", filepath.Join(s.dir, "zoo.cfg"))
	running, err := testproc.Start(cmd, filepath.Join(s.dir, "log"), patience, func() bool { return !ready || s.serves() })
	if err != nil {
		return err
	}
	s.running = running
	return nil
}

// serves reports whether the server gives out sessions.
func (s *Server) serves() bool {
	session, err := Connect(s.Addr(), 2*time.Second)
	if err == nil {
		_ = session.End()
	}
	return err == nil
}

func (s *Server) within(d time.Duration, holds func() bool) bool {
	for began := time.Now(); !holds(); <-time.After(20 * time.Millisecond) {
		if time.Since(began) > d {
			return false
		}
	}
	return true
}

// Addr is the server's address, the same after a restart.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.port) }

// Addrs returns the addresses of servers.
func Addrs(servers []*Server) (addrs []string) {
	for _, s := range servers {
		addrs = append(addrs, s.Addr())
	}
	return addrs
}

// Process is the server's process, for signals.
func (s *Server) Process() *os.Process {
	s.t.Helper()
	text, err := os.ReadFile(filepath.Join(s.dir, "pid"))
	if err != nil {
		s.t.Fatal(err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(string(text)))
	if err != nil {
		s.t.Fatal(err)
	}
	process, err := os.FindProcess(pid)
	if err != nil {
		s.t.Fatal(err)
	}
	return process
}

// Kill kills the server, as a crash would. It may be called again.
func (s *Server) Kill() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.running != nil {
		s.running.End(0)
		s.running = nil
	}
}

// Restart starts a server that was killed, with its data and at its address, and waits until it
// serves.
func (s *Server) Restart() {
	s.t.Helper()
	if err := s.start(true); err != nil {
		s.t.Fatalf("zookeeper: %v", err)
	}
}

// Leads reports whether the server is the leader of its ensemble: a leader listens for its followers.
func (s *Server) Leads() bool { return testproc.Accepts("127.0.0.1:" + strconv.Itoa(s.quorum[0])) }

// Leader returns the server that leads, and its index.
func Leader(t testing.TB, servers []*Server) (*Server, int) {
	t.Helper()
	for began := time.Now(); time.Since(began) < patience; <-time.After(20 * time.Millisecond) {
		for i, s := range servers {
			if s.Leads() {
				return s, i
			}
		}
	}
	t.Fatal("no server leads")
	return nil, 0
}
