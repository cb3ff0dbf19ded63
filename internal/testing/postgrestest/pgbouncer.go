package postgrestest

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"testing"

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
	own, err := testproc.Somewhere(func(own int) error {
		text := fmt.Sprintf("[databases]\n* = host=%s port=%s user=postgres\n[pgbouncer]\nlisten_addr=127.0.0.1\nlisten_port=%d\n"+
			"unix_socket_dir=\nauth_type=any\npool_mode=transaction\n", host, port, own)
		for _, setting := range settings {
			text += setting + "\n"
		}
		path := filepath.Join(dir, "pgbouncer.ini")
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil { //nolint:gosec // another user reads it
			return err
		}
		output := filepath.Join(dir, "log")
		cmd := asUser(testproc.Watched("TERM", program, path))
		running, err := testproc.Start(cmd, output, patience, func() bool { return testproc.Accepts("127.0.0.1:" + strconv.Itoa(own)) })
		if err != nil {
			return err
		}
		t.Cleanup(func() {
			running.End(0)
			if t.Failed() {
				text, _ := os.ReadFile(output)
				t.Logf("pgbouncer:\n%s", text[max(0, len(text)-4096):])
			}
		})
		return nil
	})
	if err != nil {
		t.Fatalf("pgbouncer: %v", err)
	}
	return "127.0.0.1:" + strconv.Itoa(own)
}
