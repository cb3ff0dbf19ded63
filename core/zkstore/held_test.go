package zkstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/zktest"
)

// The environment of the process of TestStoppedWriter.
const (
	stoppedServer = "ZKSTORE_TEST_STOPPED_SERVER"
	stoppedChroot = "ZKSTORE_TEST_STOPPED_CHROOT"
	// testRounds is how many rounds tests of faults make: a few by default.
	testRounds = "ZKSTORE_TEST_ROUNDS"
)

func rounds(few int) int {
	if n, err := strconv.Atoi(os.Getenv(testRounds)); err == nil {
		return n
	}
	return few
}

// short are settings by which a dead or stopped process loses its locks soon.
var short = []Option{WithSession(time.Second), WithTimeout(500 * time.Millisecond)}

const shortTTL = 800 * time.Millisecond

// writer writes to nodes under a lock.
type writer struct {
	t    *testing.T
	s    *Store
	l    *lock.Locker
	root string
}

func newWriter(t *testing.T, server, chroot string) *writer {
	t.Helper()
	s := open(t, []string{server}, append(append([]Option(nil), short...), WithChroot(chroot))...)
	l, err := lock.New(s, "writers", lock.WithTTL(shortTTL))
	must(t, err)
	return &writer{t, s, l, chroot}
}

func (w *writer) lock() *lock.Lease {
	for began := time.Now(); ; {
		lease, err := w.l.Lock(w.t.Context(), "k")
		if err == nil {
			return lease
		}
		if time.Since(began) > patience {
			w.t.Fatal(err)
		}
	}
}

// write writes by a check of the lock, and without one.
func (w *writer) write(check *zk.CheckVersionRequest, text string) (checked, unchecked error) {
	set := func(node string) *zk.SetDataRequest {
		return &zk.SetDataRequest{Path: w.root + "/" + node, Data: []byte(text), Version: -1}
	}
	for began := time.Now(); ; { // in a session that has ended, perhaps
		_, checked = w.s.Conn().Multi(check, set("checked"))
		_, unchecked = w.s.Conn().Multi(set("unchecked"))
		if answered := checked == nil || errors.Is(checked, zk.ErrNoNode); answered && unchecked == nil || time.Since(began) > patience {
			return checked, unchecked
		}
	}
}

// TestStoppedWriter is the process of TestHeldExcludesAStoppedHolder.
func TestStoppedWriter(t *testing.T) {
	server := os.Getenv(stoppedServer)
	if server == "" {
		t.Skip("runs as a process of another test")
	}
	w := newWriter(t, server, os.Getenv(stoppedChroot))
	lease := w.lock()
	check, err := Held(lease)
	must(t, err)
	if checked, unchecked := w.write(check, "first"); checked != nil || unchecked != nil {
		t.Fatal(checked, unchecked)
	}
	fmt.Println("holds")
	var text string
	_, _ = fmt.Scanln(&text) // it is stopped here
	checked, unchecked := w.write(check, "late")
	fmt.Println("wrote", errors.Is(checked, zk.ErrNoNode), unchecked == nil)
}

// A process that is stopped until another one holds the lock writes nothing by Held, and overwrites
// the other's data without it.
func TestHeldExcludesAStoppedHolder(t *testing.T) {
	t.Parallel()
	server := zktest.Shared(t).Addr()
	var all sync.WaitGroup
	left := make(chan struct{}, rounds(4))
	for range cap(left) {
		left <- struct{}{}
	}
	close(left)
	for range min(cap(left), 8) {
		all.Go(func() {
			for range left {
				stoppedRound(t, server)
			}
		})
	}
	all.Wait()
}

func stoppedRound(t *testing.T, server string) {
	chroot := zktest.NewChroot()
	p := exec.Command(os.Args[0], "-test.run", "^TestStoppedWriter$", "-test.timeout", "5m") //nolint:gosec // the test's own binary
	p.Env = append(os.Environ(), stoppedServer+"="+server, stoppedChroot+"="+chroot)
	stdin, err := p.StdinPipe()
	must(t, err)
	stdout, err := p.StdoutPipe()
	must(t, err)
	w := newWriter(t, server, chroot)
	must(t, w.s.Ping(t.Context()))
	_, err = w.s.Conn().Create(chroot, nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll))
	if err != nil && !errors.Is(err, zk.ErrNodeExists) {
		t.Error(err)
		return
	}
	for _, node := range []string{"checked", "unchecked"} {
		_, err = w.s.Conn().Create(chroot+"/"+node, nil, zk.FlagPersistent, zk.WorldACL(zk.PermAll))
		must(t, err)
	}
	must(t, p.Start())
	defer func() { _ = p.Process.Kill(); _ = p.Wait() }()
	out := bufio.NewReader(stdout)
	if line, err := out.ReadString('\n'); line != "holds\n" {
		rest, _ := io.ReadAll(out)
		t.Errorf("%q, %v: %s", line, err, rest)
		return
	}
	must(t, p.Process.Signal(syscall.SIGSTOP))
	lease := w.lock()
	check, err := Held(lease)
	must(t, err)
	if checked, unchecked := w.write(check, "second"); checked != nil || unchecked != nil {
		t.Errorf("the holder's writes: %v, %v", checked, unchecked)
	}
	must(t, p.Process.Signal(syscall.SIGCONT))
	_, _ = fmt.Fprintln(stdin, "write")
	var refused, written bool
	if _, err := fmt.Fscanf(out, "wrote %t %t\n", &refused, &written); err != nil || !refused || !written {
		t.Errorf("%v: the late write by Held was refused: %t, the one without it was made: %t", err, refused, written)
	}
	data, _, err := w.s.Conn().Get(chroot + "/checked")
	if err != nil || string(data) != "second" {
		t.Errorf("%q, %v", data, err)
	}
	data, _, err = w.s.Conn().Get(chroot + "/unchecked")
	if err != nil || string(data) != "late" {
		t.Errorf("without Held: %q, %v", data, err)
	}
	_ = lease.Unlock(context.Background())
}

// Held fails for what does not exclude others.
func TestHeldFails(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	l := locker(t, s)
	shared, err := l.RLock(t.Context(), "shared")
	must(t, err)
	if _, err := Held(shared); err == nil || !strings.Contains(err.Error(), "shared") {
		t.Errorf("of a shared lease: %v", err)
	}
	lease, err := l.Lock(t.Context(), "k")
	must(t, err)
	check, err := Held(lease)
	must(t, err)
	if _, err := s.Conn().Multi(check); err != nil {
		t.Errorf("of a held lock: %v", err)
	}
	must(t, lease.Unlock(t.Context()))
	if _, err := Held(lease); !errors.Is(err, lock.ErrReleased) {
		t.Errorf("of a released lease: %v", err)
	}
	if _, err := s.Conn().Multi(check); !errors.Is(err, zk.ErrNoNode) {
		t.Errorf("the check of a released lock: %v", err)
	}
	elsewhere, err := lock.New(memstore.New(), "locks")
	must(t, err)
	other, err := elsewhere.Lock(t.Context(), "k")
	must(t, err)
	if _, err := Held(nil); err == nil {
		t.Error("Held of nil returns no error")
	}
	if _, err := Held(other); err == nil {
		t.Error("of another store's lease")
	}
	must(t, other.Unlock(t.Context()))
	must(t, shared.Unlock(t.Context()))
}
