package testproc

import (
	"io"
	"os"
	"os/exec"
	"sync"
)

// home is the directory of all servers of a test binary, which is in memory where there is room. A
// process of its own, the keeper, removes it when the test binary has ended, however.
var home struct {
	sync.Mutex
	dir    string
	keeper *exec.Cmd
	stdin  io.Closer // of the keeper
}

// keep removes a directory at the end of the input. Servers that end at the same time may still write
// there for a moment.
const keep = `trap '' HUP INT QUIT TERM; cat >/dev/null
for i in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$1" && exit; sleep 1; done`

// NewDir returns a new directory for a server, in memory where there is room. It is removed when the
// test binary has ended, however, if it was not before.
func NewDir() (string, error) {
	home.Lock()
	defer home.Unlock()
	if err := settle(); err != nil {
		return "", err
	}
	return os.MkdirTemp(home.dir, "")
}

// settle makes the home, and starts its keeper.
func settle() error {
	if home.dir != "" {
		return nil
	}
	dir, err := os.MkdirTemp(memory(), "lockkeepertest")
	if err != nil {
		if dir, err = os.MkdirTemp("", "lockkeepertest"); err != nil {
			return err
		}
	}
	// Servers may run as another user, who needs to get to their directories, and no more.
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // see above
		return err
	}
	keeper := exec.Command("/bin/sh", "-c", keep, "keep", dir) //nolint:gosec // a directory of our own
	stdin, err := keeper.StdinPipe()
	if err == nil {
		err = keeper.Start()
	}
	if err != nil {
		return err
	}
	home.dir, home.keeper, home.stdin = dir, keeper, stdin
	return nil
}

// Leave removes the directories at once, for the end of TestMain.
func Leave() {
	home.Lock()
	defer home.Unlock()
	if home.dir != "" {
		_ = home.stdin.Close()
		_ = home.keeper.Wait()
	}
}
