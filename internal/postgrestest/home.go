package postgrestest

import (
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
)

// home is the directory of all servers of a test binary, which is in memory where there is room. A
// process of its own, the keeper, removes it when the test binary has ended, however.
var home struct {
	sync.Mutex
	dir    string
	keeper *exec.Cmd
	stdin  io.Closer // of the keeper

	first string // the directory of data that those of all servers are copies of
}

// keep removes a directory at the end of the input. Servers that end at the same time may still write
// there for a moment.
const keep = `trap '' HUP INT QUIT TERM; cat >/dev/null
for i in 1 2 3 4 5 6 7 8 9 10; do rm -rf "$1" && exit; sleep 1; done`

// newDir returns a new directory for a server, which belongs to the user that runs servers.
func newDir() (string, error) {
	home.Lock()
	defer home.Unlock()
	if err := settle(); err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp(home.dir, "")
	if err != nil {
		return "", err
	}
	return dir, giveAway(dir)
}

// settle makes the home, and starts its keeper.
func settle() error {
	if home.dir != "" {
		return nil
	}
	dir, err := os.MkdirTemp(memory(), "postgrestest")
	if err != nil {
		if dir, err = os.MkdirTemp("", "postgrestest"); err != nil {
			return err
		}
	}
	if err := giveAway(dir); err != nil {
		return err
	}
	keeper := command("/bin/sh", "-c", keep, "keep", dir)
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

// leave removes the home.
func leave() {
	home.Lock()
	defer home.Unlock()
	if home.dir != "" {
		_ = home.stdin.Close()
		_ = home.keeper.Wait()
	}
}

// initialized returns a directory of data that initdb has made, and no server has used.
func initialized(bin string) (string, error) {
	home.Lock()
	defer home.Unlock()
	if home.first != "" {
		return home.first, nil
	}
	if err := settle(); err != nil {
		return "", err
	}
	dir := filepath.Join(home.dir, "data")
	initdb := command(filepath.Join(bin, "initdb"), "-D", dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
	initdb.Dir = home.dir
	if text, err := initdb.CombinedOutput(); err != nil {
		_ = os.RemoveAll(dir)
		return "", fmt.Errorf("initdb: %w: %s", err, text)
	}
	home.first = dir
	return dir, nil
}
