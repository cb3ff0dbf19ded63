package postgrestest

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"

	"github.com/lockkeeper/lockkeeper/internal/testing/testproc"
)

// newDir returns a new directory for a server, which belongs to the user that runs servers.
func newDir() (string, error) {
	dir, err := testproc.NewDir()
	if err != nil {
		return "", err
	}
	return dir, giveAway(dir)
}

// first is the directory of data that those of all servers are copies of.
var first struct {
	sync.Mutex
	dir string
}

// initialized returns a directory of data that initdb has made, and no server has used.
func initialized(bin string) (string, error) {
	first.Lock()
	defer first.Unlock()
	if first.dir != "" {
		return first.dir, nil
	}
	home, err := newDir()
	if err != nil {
		return "", err
	}
	dir := filepath.Join(home, "data")
	initdb := command(filepath.Join(bin, "initdb"), "-D", dir, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "-N")
	initdb.Dir = home
	if text, err := initdb.CombinedOutput(); err != nil {
		_ = os.RemoveAll(home)
		return "", fmt.Errorf("initdb: %w: %s", err, text)
	}
	first.dir = dir
	return dir, nil
}
