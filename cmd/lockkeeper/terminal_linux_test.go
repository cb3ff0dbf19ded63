package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// terminal is a pseudo-terminal with a command on it.
type terminal struct {
	t      testing.TB
	master *os.File
	cmd    *exec.Cmd

	mu   sync.Mutex
	seen bytes.Buffer
}

func ioctl(t testing.TB, f *os.File, request uintptr, arg unsafe.Pointer) {
	t.Helper()
	if _, _, err := syscall.Syscall(syscall.SYS_IOCTL, f.Fd(), request, uintptr(arg)); err != 0 {
		t.Fatal(err)
	}
}

// on runs a command on a terminal of so many columns and lines.
func (o operator) on(columns, lines uint16, args ...string) *terminal {
	o.t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR, 0)
	if err != nil {
		o.t.Skip(err)
	}
	var number, locked int32
	ioctl(o.t, master, syscall.TIOCGPTN, unsafe.Pointer(&number))
	ioctl(o.t, master, syscall.TIOCSPTLCK, unsafe.Pointer(&locked))
	size := [4]uint16{lines, columns}
	ioctl(o.t, master, syscall.TIOCSWINSZ, unsafe.Pointer(&size))
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", number), os.O_RDWR|syscall.O_NOCTTY, 0)
	must(o.t, err)
	tty := &terminal{t: o.t, master: master, cmd: o.command(args...)}
	tty.cmd.Stdin, tty.cmd.Stdout, tty.cmd.Stderr = slave, slave, slave
	tty.cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	must(o.t, tty.cmd.Start())
	must(o.t, slave.Close())
	read := make(chan struct{})
	go tty.read(read)
	o.t.Cleanup(func() {
		_ = tty.cmd.Process.Kill()
		_ = master.Close()
		<-read
	})
	return tty
}

// read reads what the command prints, until it has ended.
func (tty *terminal) read(ended chan struct{}) {
	defer close(ended)
	for part := make([]byte, 4096); ; {
		n, err := tty.master.Read(part)
		tty.mu.Lock()
		tty.seen.Write(part[:n])
		tty.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (tty *terminal) text() string {
	tty.mu.Lock()
	defer tty.mu.Unlock()
	return tty.seen.String()
}

// await waits until the command has printed a text.
func (tty *terminal) await(text string) {
	tty.t.Helper()
	testpace.Eventually(tty.t, 20*time.Second, fmt.Sprintf("the terminal shows %q", text),
		func() bool { return strings.Contains(tty.text(), text) })
}

func (tty *terminal) press(keys string) {
	tty.t.Helper()
	_, err := tty.master.WriteString(keys)
	must(tty.t, err)
}

// ends waits until the command ends, and checks its exit code.
func (tty *terminal) ends(code int) {
	tty.t.Helper()
	_ = tty.cmd.Wait() // its exit code says it
	if got := tty.cmd.ProcessState.ExitCode(); got != code {
		tty.t.Errorf("exit code %d, want %d:\n%s", got, code, tty.text())
	}
}

const restored = "\x1b[?25h\x1b[?1049l"

// The monitor fits on a terminal, follows what happens, ends with q and with Ctrl-C, and leaves the
// terminal as it was.
func TestTopOnATerminal(t *testing.T) {
	t.Parallel()
	s := open(t, onRedis, holder)
	_, err := s.locker.Lock(t.Context(), "key")
	must(t, err)
	for keys, columns := range map[string]uint16{"q": 80, "\x03": 40} {
		tty := s.on(columns, 6, "top")
		tty.await("\x1b[?1049h")
		tty.await("stock")
		if columns == 80 {
			tty.await("█") // the history, in a later frame
		}
		tty.press(keys)
		tty.ends(0)
		tty.await(restored)
		_, frames, _ := strings.Cut(tty.text(), "\x1b[2J")
		frames, _, _ = strings.Cut(frames, restored)
		frames = strings.ReplaceAll(frames, "\r\r\n", "\r\n") // the terminal adds one
		for frame := range strings.SplitSeq(frames, "\x1b[H") {
			lines := strings.Split(strings.TrimSuffix(frame, "\x1b[J"), "\x1b[K\r\n")
			if len(lines) > 6 {
				t.Errorf("%d lines: %q", len(lines), frame)
			}
			for _, line := range lines {
				if n := len([]rune(strings.TrimSuffix(line, "\x1b[K"))); n > int(columns) {
					t.Errorf("%d columns: %q", n, line)
				}
			}
		}
	}
}

// A terminal is asked, shows what is there, and takes only a yes for a yes. What was shown is what is
// released.
func TestAsking(t *testing.T) {
	t.Parallel()
	s := open(t, onRedis, holder)
	lease, err := s.locker.Lock(t.Context(), "key")
	must(t, err)
	ask := func() *terminal {
		tty := s.on(80, 24, "locks", "release", "stock", "key", "-why", "it hangs")
		tty.await("? [y/N] ")
		for _, text := range []string{holder, fmt.Sprint(lease.Fence().Number), "The holder's context ends",
			"release lock stock"} {
			tty.await(text)
		}
		return tty
	}
	for _, no := range []string{"\n", "n\n", "yy\n", "\x04"} {
		tty := ask()
		tty.press(no)
		tty.ends(1)
		tty.await("Nothing was done.")
	}
	tty := ask()
	tty.press("\x03")
	tty.ends(2)
	if err := lease.Context().Err(); err != nil {
		t.Fatal(err)
	}
	tty = ask()
	must(t, lease.Unlock(t.Context()))
	next, err := s.locker.Lock(t.Context(), "key")
	must(t, err)
	tty.press("y\n")
	tty.ends(1)
	tty.await(fmt.Sprint(next.Fence().Number))
	lease = next
	tty = ask()
	tty.press("y\n")
	tty.ends(0)
	<-lease.Context().Done()
	tty = s.on(80, 24, "locks", "release", "stock", "key", "-why", "it hangs")
	tty.ends(1)
	tty.await("nothing is left to release")
}
