// Package etcdtest starts real etcd servers for tests, on free ports, and stops what it started.
//
// Their elections take half a second, so that leases last from a second, where they last from two by
// default.
package etcdtest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/internal/testing/testproc"
)

const (
	// Require turns a missing etcd from a skipped test into a failed one when it is set to 1.
	Require = "LOCKKEEPER_REQUIRE_ETCD"
	// Other names the variable with the path of another binary than the one that is installed.
	Other = "LOCKKEEPER_ETCD"
)

// Server is an etcd process of a test.
type Server struct {
	t            testing.TB
	path         string
	name         string
	cluster      string // name=URL of every member, joined by commas
	args         []string
	dir          string
	client, peer int // ports

	mu      sync.Mutex
	process *os.Process
	watched *testproc.Server
}

// binary returns the path of etcd. It skips the test if there is none, unless the variable Require
// demands it.
func binary(t testing.TB) string {
	t.Helper()
	if path := os.Getenv(Other); path != "" {
		return path
	}
	path, err := exec.LookPath("etcd")
	if err != nil {
		if os.Getenv(Require) == "1" {
			t.Fatalf("etcd is not installed, and %s=1: install Debian's package etcd-server, or set %s to its path", Require, Other)
		}
		t.Skipf("etcd is not installed: install Debian's package etcd-server, or set %s to its path; %s=1 makes this a failure", Other, Require)
	}
	return path
}

// Start starts a server that lives until the test ends.
func Start(t testing.TB, args ...string) *Server {
	t.Helper()
	return StartCluster(t, 1, args...)[0]
}

// StartCluster starts servers that are the members of one cluster.
func StartCluster(t testing.TB, members int, args ...string) []*Server {
	t.Helper()
	path := binary(t)
	var all []*Server
	t.Cleanup(func() {
		for _, s := range all {
			s.Stop()
		}
	})
	var err error
	for range 10 { // another process may take a port first
		if all, err = newCluster(t, path, members, args); err != nil {
			break
		}
		if err = startAll(all); err == nil {
			return all
		}
		for _, s := range all {
			s.Stop()
		}
	}
	t.Fatalf("%s: %v", path, err)
	return nil
}

func newCluster(t testing.TB, path string, members int, args []string) (all []*Server, err error) {
	var cluster []string
	for i := range members {
		s := &Server{t: t, path: path, name: "m" + strconv.Itoa(i), args: args}
		if s.dir, err = testproc.NewDir(); err != nil {
			return nil, err
		}
		t.Cleanup(func() { _ = os.RemoveAll(s.dir) })
		for _, port := range []*int{&s.client, &s.peer} {
			if *port, err = testproc.FreePort(); err != nil {
				return nil, err
			}
		}
		all, cluster = append(all, s), append(cluster, fmt.Sprintf("%s=http://127.0.0.1:%d", s.name, s.peer))
	}
	for _, s := range all {
		s.cluster = strings.Join(cluster, ",")
	}
	return all, nil
}

// startAll starts the members side by side: none is ready without a majority.
func startAll(all []*Server) error {
	errs := make([]error, len(all))
	var wg sync.WaitGroup
	for i, s := range all {
		wg.Go(func() { errs[i] = s.start() })
	}
	wg.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}

// Addr is the server's address for clients, the same after a restart.
func (s *Server) Addr() string { return "127.0.0.1:" + strconv.Itoa(s.client) }

// URL is the address as an endpoint of a client.
func (s *Server) URL() string { return "http://" + s.Addr() }

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

// Restart starts the server again, with its data, at its old address.
func (s *Server) Restart() {
	s.t.Helper()
	s.Stop()
	if err := s.start(); err != nil {
		s.t.Fatalf("etcd: %v", err)
	}
}

// Pause stops the server's process until Continue.
func (s *Server) Pause() { s.signal(syscall.SIGSTOP) }

// Continue lets a paused server continue.
func (s *Server) Continue() { s.signal(syscall.SIGCONT) }

func (s *Server) signal(sig syscall.Signal) {
	s.t.Helper()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.process == nil {
		s.t.Fatal("etcd does not run")
	}
	if err := s.process.Signal(sig); err != nil {
		s.t.Fatalf("etcd: %v", err)
	}
}

// Leads reports whether the server is the leader of its cluster. One that does not reply is not.
func (s *Server) Leads() bool {
	var status struct {
		Header struct {
			Member string `json:"member_id"`
		} `json:"header"`
		Leader string `json:"leader"`
	}
	client := http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	reply, err := client.Post(s.URL()+"/v3/maintenance/status", "application/json", strings.NewReader("{}"))
	if err != nil {
		return false
	}
	defer func() { _ = reply.Body.Close() }()
	return json.NewDecoder(reply.Body).Decode(&status) == nil && status.Leader != "" && status.Leader == status.Header.Member
}

// Leader waits until one of the members leads, and returns it.
func Leader(t testing.TB, members []*Server) *Server {
	t.Helper()
	var leader *Server
	testpace.Eventually(t, time.Minute, "a member of the cluster leads", func() bool {
		for _, s := range members {
			if s.Leads() {
				leader = s
			}
		}
		return leader != nil
	})
	return leader
}

// record writes the ID of its process to a file, and becomes a program.
const record = `echo $$ >"$0"; exec "$@"`

func (s *Server) start() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	peer := "http://127.0.0.1:" + strconv.Itoa(s.peer)
	args := append([]string{
		"-c", record, s.pidFile(), s.path, "--name", s.name, "--data-dir", filepath.Join(s.dir, "data"), "--log-level", "error",
		"--listen-client-urls", s.URL(), "--advertise-client-urls", s.URL(),
		"--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer, "--initial-cluster", s.cluster,
		"--heartbeat-interval", "50", "--election-timeout", "500",
	}, s.args...)
	if err := os.Remove(s.pidFile()); err != nil && !os.IsNotExist(err) {
		return err
	}
	watched, err := testproc.Start(testproc.Watched("KILL", "/bin/sh", args...), filepath.Join(s.dir, "log"), 20*time.Second, s.replies)
	if err != nil {
		return err
	}
	text, err := os.ReadFile(s.pidFile())
	pid := 0
	if err == nil {
		pid, err = strconv.Atoi(string(bytes.TrimSpace(text)))
	}
	if err == nil {
		s.process, err = os.FindProcess(pid)
	}
	if err != nil {
		watched.End(0)
		return err
	}
	s.watched = watched
	return nil
}

// replies reports whether the server replies to clients, which it does once it knows a leader.
func (s *Server) replies() bool {
	if !testproc.Accepts(s.Addr()) {
		return false
	}
	client := http.Client{Timeout: time.Second}
	defer client.CloseIdleConnections()
	reply, err := client.Get(s.URL() + "/health")
	if err != nil {
		return false
	}
	defer func() { _ = reply.Body.Close() }()
	text, err := io.ReadAll(reply.Body)
	return err == nil && bytes.Contains(text, []byte(`"true"`))
}

func (s *Server) pidFile() string { return filepath.Join(s.dir, "pid") }
