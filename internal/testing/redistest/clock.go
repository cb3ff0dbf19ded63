package redistest

import (
	_ "embed"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

//go:embed testdata/clock.c
var clockSource []byte

// Clock is the clock of a server.
type Clock struct {
	t    testing.TB
	path string

	mu     sync.Mutex
	offset time.Duration
	rate   int64 // by which it is faster, in thousandths
	since  time.Time
}

// StartWithClock starts a server whose clock can be set. It skips the test if there is no C compiler.
func StartWithClock(t testing.TB, args ...string) (*Server, *Clock) {
	t.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		t.Skip("there is no C compiler")
	}
	dir := t.TempDir()
	source, library := filepath.Join(dir, "clock.c"), filepath.Join(dir, "clock.so")
	c := &Clock{t: t, path: filepath.Join(dir, "steps"), since: time.Now()}
	server, err := exec.LookPath("redis-server")
	if err != nil {
		Start(t) // skips or fails the test
	}
	script := filepath.Join(dir, "server")
	text := "#!/bin/sh\nLD_PRELOAD=" + library + " CLOCK_STEPS=" + c.path + " exec " + server + " \"$@\"\n"
	if err := os.WriteFile(source, clockSource, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(script, []byte(text), 0o700); err != nil { //nolint:gosec // it is executed
		t.Fatal(err)
	}
	if text, err := exec.CommandContext(t.Context(), cc, "-shared", "-fPIC", "-O1", "-o", library, source).CombinedOutput(); err != nil { //nolint:gosec // of this package
		t.Skipf("cc: %v: %s", err, text)
	}
	c.write()
	return Binary(script).Start(t, args...), c
}

// Step steps the clock.
func (c *Clock) Step(by time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.offset += by
	c.write()
}

// Slew makes the clock faster, in thousandths.
func (c *Clock) Slew(rate int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	c.offset += now.Sub(c.since) * time.Duration(c.rate) / 1000
	c.rate, c.since = rate, now
	c.write()
}

// write writes the file that the server has mapped: in place, and small enough to be read at once.
func (c *Clock) write() {
	var text [24]byte
	for i, n := range []int64{c.offset.Microseconds(), c.rate, c.since.UnixMicro()} {
		binary.NativeEndian.PutUint64(text[8*i:], uint64(n)) //nolint:gosec // the bits are kept
	}
	file, err := os.OpenFile(c.path, os.O_WRONLY|os.O_CREATE, 0o600)
	if err == nil {
		_, err = file.WriteAt(text[:], 0)
		_ = file.Close()
	}
	if err != nil {
		c.t.Error(err)
	}
}
