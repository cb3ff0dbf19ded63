package leaktest

import (
	"os"
	"os/signal"
	"strings"
	"testing"
	"time"
)

func TestMain(m *testing.M) { Main(m) }

func blocked(begun chan<- struct{}, end <-chan struct{}) {
	close(begun)
	<-end
}

func TestWait(t *testing.T) {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, os.Interrupt) // starts a goroutine of the runtime, for good
	defer signal.Stop(signals)
	tests := others(nil) // those that run this test
	if len(tests) != 1 || !strings.Contains(tests[0], "testing.") {
		t.Fatalf("%q", tests)
	}
	ignored := []string{"testing.(*T).Run"}
	if left := wait(time.Second, ignored); len(left) > 0 {
		t.Errorf("%q are left", left)
	}

	begun, end := make(chan struct{}), make(chan struct{})
	go blocked(begun, end)
	<-begun
	const name = "github.com/lockkeeper/lockkeeper/internal/testing/leaktest.blocked"
	if left := wait(time.Millisecond, ignored); len(left) != 1 || !strings.Contains(left[0], name) {
		t.Errorf("%q are left, want %s", left, name)
	}
	if left := wait(time.Millisecond, append(ignored, name)); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
	time.AfterFunc(10*time.Millisecond, func() { close(end) })
	if left := wait(time.Second, ignored); len(left) > 0 {
		t.Errorf("%q are left", left)
	}
}
