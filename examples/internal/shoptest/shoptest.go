// Package shoptest tests the shop that the examples build with different frameworks.
package shoptest

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// binary is the program, built once.
var binary string

// Main builds the program in the current directory, and runs its tests.
func Main(m *testing.M) int {
	dir, err := os.MkdirTemp("", "shop")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "shop")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	return m.Run()
}

// Run tests the program that Main has built.
func Run(t *testing.T) {
	for name, test := range map[string]func(*testing.T){
		"too many requests of an address":         tooManyRequests,
		"a stranger is refused":                   strangerIsRefused,
		"a checkout runs once":                    checkoutRunsOnce,
		"a cart is filled by one request":         cartIsLocked,
		"two carts are filled at a time":          twoCartsAtATime,
		"two instances share their state":         twoInstances,
		"the flag for Redis is a URL":             redisIsAURL,
		"a signal lets requests in flight finish": signalLetsRequestsFinish,
	} {
		t.Run(name, test)
	}
}

// patience is how long a test waits for an event.
const patience = 10 * time.Second

// instance is a running program, and its client.
type instance struct {
	t      *testing.T
	url    string
	cmd    *exec.Cmd
	stderr bytes.Buffer // to be read when the program has ended
	client *http.Client
}

func start(t *testing.T, args ...string) *instance {
	t.Helper()
	i := &instance{
		t: t, cmd: exec.Command(binary, append([]string{"-addr", "127.0.0.1:0"}, args...)...),
		client: &http.Client{Timeout: patience, Transport: &http.Transport{ExpectContinueTimeout: patience}},
	}
	i.cmd.Stderr = &i.stderr
	out, err := i.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := i.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		i.client.CloseIdleConnections()
		_ = i.cmd.Process.Kill()
		_ = i.cmd.Wait()
		if strings.Contains(i.stderr.String(), "panic") {
			t.Errorf("the program panicked:\n%s", i.stderr.String())
		}
	})
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		t.Fatalf("the program did not start: %v", err)
	}
	if _, err := fmt.Sscanf(line, "listening on %s", &i.url); err != nil {
		t.Fatalf("it printed %q: %v", line, err)
	}
	return i
}

// answer is a response with its body.
type answer struct {
	status int
	header http.Header
	body   string
}

// send sends a request with these header fields: name, value, name, value.
func (i *instance) send(method, path string, header ...string) answer {
	i.t.Helper()
	req, err := http.NewRequestWithContext(i.t.Context(), method, i.url+path, nil)
	if err != nil {
		i.t.Fatal(err)
	}
	req.Host = "shop.example" // of all instances, as behind a load balancer
	for n := 0; n < len(header); n += 2 {
		req.Header.Set(header[n], header[n+1])
	}
	a, err := i.do(req)
	if err != nil {
		i.t.Fatal(err)
	}
	return a
}

func (i *instance) do(req *http.Request) (answer, error) {
	resp, err := i.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, err
}

func (a answer) is(t *testing.T, status int, problem string) answer {
	t.Helper()
	if a.status != status || !strings.Contains(a.body, problem) {
		t.Fatalf("%d %s, want %d %s", a.status, a.body, status, problem)
	}
	return a
}

// filling is a request that fills a cart. Its handler runs until finish is called.
type filling struct {
	t      *testing.T
	body   *io.PipeWriter
	result chan answer
}

// fill begins to fill a cart, and returns when the handler reads the request.
func (i *instance) fill(cart string) filling {
	i.t.Helper()
	body, write := io.Pipe()
	f := filling{i.t, write, make(chan answer, 1)}
	reads := make(chan struct{})
	ctx := httptrace.WithClientTrace(i.t.Context(), &httptrace.ClientTrace{
		Got100Continue: sync.OnceFunc(func() { close(reads) }),
	})
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, i.url+"/carts/"+cart, body)
	if err != nil {
		i.t.Fatal(err)
	}
	req.Header.Set("X-User", "alice")
	req.Header.Set("Expect", "100-continue")
	go func() {
		a, err := i.do(req)
		if err != nil {
			a.body = err.Error()
		}
		f.result <- a
	}()
	select {
	case <-reads:
	case a := <-f.result:
		i.t.Fatalf("%d %s, before the cart was full", a.status, a.body)
	case <-time.After(patience):
		i.t.Fatal("the handler does not run")
	}
	return f
}

func (f filling) finish() answer {
	f.t.Helper()
	_ = f.body.Close()
	select {
	case a := <-f.result:
		return a
	case <-time.After(patience):
		f.t.Fatal("no answer")
		return answer{}
	}
}

func tooManyRequests(t *testing.T) {
	shop := start(t)
	for n := range 1000 {
		// Without a user: the limit stands before authentication.
		a := shop.send(http.MethodPut, "/carts/1")
		if a.status == http.StatusUnauthorized {
			continue
		}
		a.is(t, http.StatusTooManyRequests, "quota-exceeded")
		if n < 20 || a.header.Get("Retry-After") == "" {
			t.Errorf("after %d requests, with Retry-After %q", n, a.header.Get("Retry-After"))
		}
		return
	}
	t.Error("1000 requests have passed")
}

func strangerIsRefused(t *testing.T) {
	shop := start(t)
	shop.send(http.MethodPost, "/carts/1/checkout", "Idempotency-Key", "k").is(t, http.StatusUnauthorized, "who are you?")
}

func checkoutRunsOnce(t *testing.T) {
	shop := start(t)
	checkOut := func(header ...string) answer {
		return shop.send(http.MethodPost, "/carts/1/checkout", header...)
	}
	checkOut("X-User", "alice").is(t, http.StatusBadRequest, "key-missing")
	first := checkOut("X-User", "alice", "Idempotency-Key", "k").is(t, http.StatusCreated, "order")
	again := checkOut("X-User", "alice", "Idempotency-Key", "k").is(t, http.StatusCreated, first.body)
	if first.header.Get("Idempotency-Replayed") != "" || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("replayed: %v and %v", first.header, again.header)
	}
	if bob := checkOut("X-User", "bob", "Idempotency-Key", "k").is(t, http.StatusCreated, "order"); bob.body == first.body {
		t.Errorf("bob gets alice's %s", bob.body)
	}
}

func cartIsLocked(t *testing.T) {
	shop := start(t)
	first := shop.fill("1")
	began := time.Now()
	shop.send(http.MethodPut, "/carts/1", "X-User", "alice").is(t, http.StatusConflict, "locked")
	if waited := time.Since(began); waited < time.Second {
		t.Errorf("it was refused after %v, want it to wait for a second", waited)
	}
	shop.send(http.MethodPut, "/carts/1", "X-User", "bob").is(t, http.StatusOK, "") // another cart

	// A refusal behind the guard is not kept.
	shop.send(http.MethodPost, "/carts/1/checkout", "X-User", "alice", "Idempotency-Key", "k").is(t, http.StatusConflict, "locked")
	first.finish().is(t, http.StatusOK, "")
	shop.send(http.MethodPost, "/carts/1/checkout", "X-User", "alice", "Idempotency-Key", "k").is(t, http.StatusCreated, "order")
}

func twoCartsAtATime(t *testing.T) {
	shop := start(t)
	first, second := shop.fill("1"), shop.fill("2")
	refused := shop.send(http.MethodPut, "/carts/3", "X-User", "alice").is(t, http.StatusTooManyRequests, "too-many-at-once")
	if refused.header.Get("Retry-After") == "" {
		t.Errorf("no Retry-After in %v", refused.header)
	}
	for _, f := range []filling{first, second} {
		f.finish().is(t, http.StatusOK, "")
	}
}

func twoInstances(t *testing.T) {
	redisURL := redistest.Start(t).URL()
	one, two := start(t, "-redis", redisURL), start(t, "-redis", redisURL)
	checkOut := func(shop *instance) answer {
		return shop.send(http.MethodPost, "/carts/1/checkout", "X-User", "alice", "Idempotency-Key", "k").is(t, http.StatusCreated, "order")
	}
	if first, again := checkOut(one), checkOut(two); again.body != first.body || again.header.Get("Idempotency-Replayed") != "true" {
		t.Errorf("%s and %s", first.body, again.body)
	}
	held := one.fill("1")
	two.send(http.MethodPut, "/carts/1", "X-User", "alice").is(t, http.StatusConflict, "locked")
	held.finish().is(t, http.StatusOK, "")
}

func redisIsAURL(t *testing.T) {
	for value, want := range map[string]string{
		"127.0.0.1:6379":      "-redis: want a URL",
		"redis://127.0.0.1:1": "-redis: no reply from 127.0.0.1:1",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		out, err := exec.CommandContext(ctx, binary, "-addr", "127.0.0.1:0", "-redis", value).CombinedOutput()
		if err == nil || !strings.Contains(string(out), want) {
			t.Errorf("with %q: %v, and it printed %q", value, err, out)
		}
	}
}

func signalLetsRequestsFinish(t *testing.T) {
	shop := start(t)
	cart := shop.fill("1")
	if err := shop.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	// It is stopping once new connections are refused.
	for deadline := time.Now().Add(patience); ; {
		conn, err := net.Dial("tcp", strings.TrimPrefix(shop.url, "http://"))
		if err != nil {
			break
		}
		_ = conn.Close()
		if time.Now().After(deadline) {
			t.Fatal("it still runs")
		}
	}
	cart.finish().is(t, http.StatusOK, "")
	if err := shop.cmd.Wait(); err != nil {
		t.Errorf("it ended with %v", err)
	}
}
