package redistest

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
	"github.com/lockkeeper/lockkeeper/internal/testing/testproc"
)

// leaver is the environment variable that makes TestLeaver start servers, and wait to be killed.
const leaver = "LOCKKEEPER_TEST_LEAVER"

func TestLeaver(t *testing.T) {
	if os.Getenv(leaver) == "" {
		t.Skip("a part of TestKilledTestsLeaveNothing")
	}
	s := StartSentinel(t)
	stopped := Start(t)
	stopped.Stop()
	stopped.Restart()
	for _, server := range []*Server{s.Master, s.Replica, s.sentinel, stopped} {
		fmt.Println("server", server.Addr(), server.Process().Pid, server.dir)
	}
	fmt.Println("all")
	<-t.Context().Done() // never
}

// A test binary that is killed leaves no server behind, and none of their directories.
func TestKilledTestsLeaveNothing(t *testing.T) {
	t.Parallel()
	Start(t) // or skips the test
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
	var left []*Server
	for lines := bufio.NewScanner(out); lines.Scan() && lines.Text() != "all"; {
		var address string
		var pid int
		s := new(Server)
		if n, _ := fmt.Sscanf(lines.Text(), "server %s %d %s", &address, &pid, &s.dir); n == 3 {
			_, port, _ := strings.Cut(address, ":")
			_, _ = fmt.Sscan(port, &s.port)
			if s.process, err = os.FindProcess(pid); err != nil {
				t.Fatal(err)
			}
			left = append(left, s)
		}
	}
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if len(left) != 4 {
		t.Fatalf("%d servers were started", len(left))
	}
	for _, s := range left {
		testpace.Eventually(t, 10*time.Second, "the server at "+s.Addr()+" is gone, and its directory", func() bool {
			_, err := os.Stat(s.dir)
			return s.process.Signal(syscall.Signal(0)) != nil && !testproc.Accepts(s.Addr()) && os.IsNotExist(err)
		})
	}
}
