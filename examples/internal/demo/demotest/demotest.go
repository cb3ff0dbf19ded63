// Package demotest tests the examples with a page.
package demotest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/examples/internal/demo"
)

// patience is how long a test waits for an answer.
const patience = 20 * time.Second

// Running is a program that runs in the test's process.
type Running struct {
	URL    string
	Client *http.Client
	// Stop does what a signal does, and returns the exit code.
	Stop func() int
}

// Start starts a program on a free port. It is stopped at the end of the test.
func Start(t testing.TB, p demo.Runner, args ...string) *Running {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out, stdout := io.Pipe()
	var stderr bytes.Buffer // to be read when the program has ended
	exit := make(chan int, 1)
	go func() {
		exit <- p.Run(ctx, append([]string{"-addr", "127.0.0.1:0"}, args...), stdout, &stderr)
		_ = stdout.Close()
	}()
	r := &Running{Client: &http.Client{Timeout: patience, Transport: &http.Transport{}}}
	r.Stop = sync.OnceValue(func() int {
		cancel()
		return <-exit
	})
	t.Cleanup(func() {
		r.Client.CloseIdleConnections()
		if code := r.Stop(); code != 0 {
			t.Errorf("exit code %d\n%s", code, &stderr)
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err == nil {
		_, err = fmt.Sscanf(line, "listening on %s", &r.URL)
	}
	if err != nil {
		t.Fatalf("it printed %q: %v", line, err)
	}
	return r
}

// Fails checks that a program says why it does not start with these arguments.
func Fails(t testing.TB, p demo.Runner, args ...string) {
	t.Helper()
	var stdout, stderr bytes.Buffer
	if code := p.Run(t.Context(), args, &stdout, &stderr); code == 0 || stderr.Len() == 0 || stdout.Len() > 0 {
		t.Errorf("%v: exit code %d, %s%s", args, code, &stdout, &stderr)
	}
}
