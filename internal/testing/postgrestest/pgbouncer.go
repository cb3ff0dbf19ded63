package postgrestest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testproc"
)

// StartPgBouncer starts PgBouncer in transaction mode in front of the server at an address, with
// these further settings, such as "default_pool_size=2". It returns its own address, and ends with
// the test. It skips or fails the test as [Start] does.
func StartPgBouncer(t testing.TB, target string, settings ...string) string {
	t.Helper()
	program, err := exec.LookPath("pgbouncer")
	if err != nil {
		program = "/usr/sbin/pgbouncer" // where Debian has it
	}
	if _, err := os.Stat(program); err != nil {
		if os.Getenv(Require) == "1" {
			t.Fatalf("pgbouncer is not installed, and %s=1", Require)
		}
		t.Skipf("pgbouncer is not installed; %s=1 makes this a failure", Require)
	}
	dir, err := newDir()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	host, port, _ := net.SplitHostPort(target)
	for range 10 { // another process may take the free port first
		own, err := freePort()
		if err != nil {
			t.Fatal(err)
		}
		text := fmt.Sprintf("[databases]\n* = host=%s port=%s user=postgres\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port=%d\n"+
			"unix_socket_dir=\nauth_type=any\npool_mode=transaction\nlogfile=%s\n", host, port, own, filepath.Join(dir, "log"))
		for _, setting := range settings {
			text += setting + "\n"
		}
		path := filepath.Join(dir, "pgbouncer.ini")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // another user reads it
			t.Fatal(err)
		}
		cmd := asUser(testproc.Watched("TERM", program, "-q", path))
		stdin, err := cmd.StdinPipe()
		if err == nil {
			err = cmd.Start()
		}
		if err != nil {
			t.Fatal(err)
		}
		end := func() {
			_ = stdin.Close()
			if err := cmd.Wait(); t.Failed() {
				text, _ := os.ReadFile(filepath.Join(dir, "log"))
				t.Logf("pgbouncer: %v:\n%s", err, text[max(0, len(text)-4096):])
			}
		}
		if address := "127.0.0.1:" + strconv.Itoa(own); accepts(address) {
			t.Cleanup(end)
			return address
		}
		end()
	}
	text, _ := os.ReadFile(filepath.Join(dir, "log"))
	t.Fatalf("pgbouncer does not start: %s", text)
	return ""
}

// accepts waits until an address accepts connections.
func accepts(address string) bool {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.After(patience); ; {
		if conn, err := net.Dial("tcp", address); err == nil {
			_ = conn.Close()
			return true
		}
		select {
		case <-deadline:
			return false
		case <-tick.C:
		}
	}
}
