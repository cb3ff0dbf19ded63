package servertest

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/redisfence"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

const (
	pauseRedis = "LOCK_TEST_PAUSE_REDIS"
	pauseTTL   = 2 * time.Second // runs out while the process is stopped
)

// TestPausedProcess is the process that TestPause stops.
func TestPausedProcess(t *testing.T) {
	addr := os.Getenv(pauseRedis)
	if addr == "" {
		t.Skip("runs as a process of TestPause")
	}
	client := redis.NewClient(patiently(addr))
	store := must(redisstore.New(client, redisstore.WithTimeout(patience)))
	l := must(lock.New(store, "test", lock.WithTTL(pauseTTL)))
	data := must(redisfence.New(client))
	lease := insistOn(t, l, "k")
	fmt.Println("holding")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil { // after SIGCONT
		t.Fatal(err)
	}
	ended, cause := lease.Context().Err(), context.Cause(lease.Context())
	written := data.Set(context.Background(), "data", []byte("of the paused process"), 0, lease.Fence())
	fmt.Println("ended:", ended != nil && (errors.Is(cause, lock.ErrExpired) || errors.Is(cause, lock.ErrLost)))
	fmt.Println("refused:", errors.Is(written, fence.ErrStale))
	fmt.Println("unlock:", errors.Is(lease.Unlock(context.Background()), lock.ErrLost))
}

// If a holder is stopped for longer than its lease, another gets the lock, and a late write of the
// first is refused by its fence.
func TestPause(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	cmd := exec.Command(os.Args[0], "-test.run", "^TestPausedProcess$", "-test.timeout", "5m", "-test.v")
	cmd.Env = append(os.Environ(), pauseRedis+"="+server.Addr())
	stdin := must(cmd.StdinPipe())
	stdout := must(cmd.StdoutPipe())
	ok(t, cmd.Start())
	defer func() { _ = cmd.Process.Kill(); _ = cmd.Wait() }()
	lines := bufio.NewScanner(stdout)
	prints := func(want string) {
		t.Helper()
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), strings.SplitAfter(want, ":")[0]) {
				if lines.Text() != want {
					t.Errorf("the process prints %q, want %q", lines.Text(), want)
				}
				return
			}
		}
		t.Errorf("the process did not print %q", want)
	}
	prints("holding")
	ok(t, cmd.Process.Signal(syscall.SIGSTOP))

	next := newPeer(t, server)
	data := must(redisfence.New(next.client))
	lease := mustLock(t, next.Locker, "k") // after the lease of the paused process
	ok(t, data.Set(t.Context(), "data", []byte("of the next process"), 0, lease.Fence()))

	ok(t, cmd.Process.Signal(syscall.SIGCONT))
	if _, err := fmt.Fprintln(stdin); err != nil {
		t.Fatal(err)
	}
	prints("ended: true")
	prints("refused: true")
	prints("unlock: true")
	if err := lease.Verify(t.Context()); err != nil {
		t.Errorf("the next process's lease: %v", err)
	}
	if got := next.client.Get(t.Context(), "data").Val(); got != "of the next process" {
		t.Errorf("the data is %q", got)
	}
	mustUnlock(t, lease)
}
