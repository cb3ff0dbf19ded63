package site

import (
	"context"
	_ "embed"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"time"
)

// source is the clock's. It is in a directory without Go files, where the go command leaves it
// alone.
//
//go:embed clock/clock.c
var source []byte

// Clock is the time of day of a server.
type Clock struct {
	dir string

	mu     sync.Mutex
	offset time.Duration
}

// newClock compiles a clock. It returns an error where there is no C compiler. (libfaketime cannot
// be preloaded into a server that allocates with jemalloc.)
func newClock(ctx context.Context) (*Clock, error) {
	dir, err := os.MkdirTemp("", "lockkeeper-clock-")
	if err != nil {
		return nil, err
	}
	c := &Clock{dir: dir}
	if err := c.build(ctx); err != nil {
		c.close()
		return nil, err
	}
	return c, nil
}

func (c *Clock) build(ctx context.Context) error {
	file := filepath.Join(c.dir, "clock.c")
	if err := os.WriteFile(file, source, 0o600); err != nil {
		return err
	}
	if err := c.Step(0); err != nil {
		return err
	}
	out, err := exec.CommandContext(ctx, "cc", "-shared", "-fPIC", "-O2", "-o", c.library(), file).CombinedOutput()
	if err != nil {
		return fmt.Errorf("cc: %w %s", err, strings.TrimSpace(string(out)))
	}
	return nil
}

func (c *Clock) library() string { return filepath.Join(c.dir, "clock.so") }
func (c *Clock) file() string    { return filepath.Join(c.dir, "offset") }
func (c *Clock) close()          { _ = os.RemoveAll(c.dir) }

// env are the variables of a server with this clock.
func (c *Clock) env() []string {
	return []string{"LD_PRELOAD=" + c.library(), "TORTURE_CLOCK=" + c.file()}
}

// Step sets the clock forward or, by a negative time, back.
func (c *Clock) Step(d time.Duration) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	f, err := os.OpenFile(c.file(), os.O_CREATE|os.O_WRONLY, 0o600) // not truncated: the server has it mapped
	if err != nil {
		return err
	}
	c.offset += d
	_, err = f.WriteAt(binary.NativeEndian.AppendUint64(nil, uint64(c.offset)), 0) //nolint:gosec // two's complement
	if closing := f.Close(); err == nil {
		err = closing
	}
	return err
}
