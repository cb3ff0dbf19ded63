package etcdtest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/internal/testing/testproc"
)

func TestMain(m *testing.M) { Main(m) }

// Another member leads when the leader is killed, or paused; and a member that is started again has its
// data and its address.
func TestCluster(t *testing.T) {
	t.Parallel()
	members := StartCluster(t, 3)
	first := Leader(t, members)
	first.Stop()
	rest := make([]*Server, 0, 2)
	for _, s := range members {
		if s != first {
			rest = append(rest, s)
		}
	}
	second := Leader(t, rest)
	first.Restart()
	if !first.replies() {
		t.Error("a member that was started again does not reply")
	}
	second.Pause()
	others := make([]*Server, 0, 2)
	for _, s := range members {
		if s != second {
			others = append(others, s)
		}
	}
	Leader(t, others)
	second.Continue()
	testpace.Eventually(t, 10*time.Second, "a member that was paused replies", second.replies)
}

// leaver is the environment variable that makes TestLeaver start a server, and wait to be killed.
const leaver = "LOCKKEEPER_TEST_LEAVER"

func TestLeaver(t *testing.T) {
	if os.Getenv(leaver) == "" {
		t.Skip("a part of TestKilledTestsLeaveNothing")
	}
	s := Shared(t)
	fmt.Println("server", s.client, s.process.Pid, s.dir)
	<-t.Context().Done() // never
}

// A test binary that is killed leaves no server behind, and no directory.
func TestKilledTestsLeaveNothing(t *testing.T) {
	t.Parallel()
	Shared(t) // or skips the test
	cmd := exec.Command(os.Args[0], "-test.run=^TestLeaver$")
	cmd.Env = append(os.Environ(), leaver+"=1")
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	s := new(Server)
	pid := 0
	for lines := bufio.NewScanner(out); pid == 0 && lines.Scan(); {
		_, _ = fmt.Sscanf(lines.Text(), "server %d %d %s", &s.client, &pid, &s.dir)
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if pid == 0 {
		t.Fatal("it has started no server")
	}
	testpace.Eventually(t, 10*time.Second, "the server is gone, and its directory", func() bool {
		_, err := os.Stat(s.dir)
		return syscall.Kill(pid, 0) != nil && !testproc.Accepts(s.Addr()) && os.IsNotExist(err)
	})
}
