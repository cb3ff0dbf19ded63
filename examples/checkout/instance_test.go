package main_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// binary is the program, built once.
var binary string

func TestMain(m *testing.M) { os.Exit(buildAndRun(m)) }

func buildAndRun(m *testing.M) int {
	dir, err := os.MkdirTemp("", "checkout")
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer func() { _ = os.RemoveAll(dir) }()
	binary = filepath.Join(dir, "checkout")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "%v\n%s", err, out)
		return 1
	}
	gin.SetMode(gin.ReleaseMode) // for handlers in the tests' own process
	return m.Run()               // as many tests at a time as there are cores: programs and pages compute
}

// instance is a running program.
type instance struct {
	t      testing.TB
	url    string
	store  string
	cmd    *exec.Cmd
	stdout *lockedBuffer // after the first line
	stderr *lockedBuffer
	client *http.Client
}

// unlimited turns off the rate limit.
var unlimited = []string{"-rate", "100000", "-burst", "100000"}

// shared returns, for each store that instances can share, their arguments for one of their own.
var shared = map[string]func(t testing.TB) []string{
	"redis": func(t testing.TB) []string { return []string{"-timeout", "10s", "-redis", redistest.Start(t).URL()} },
	"postgres": func(t testing.TB) []string {
		return []string{"-timeout", "10s", "-postgres", postgrestest.Start(t).DSN()}
	},
}

func start(t testing.TB, args ...string) *instance {
	t.Helper()
	return startIn(t, nil, args...)
}

// startIn starts a program with more variables in its environment.
func startIn(t testing.TB, env []string, args ...string) *instance {
	t.Helper()
	i := &instance{
		t: t, cmd: exec.Command(binary, append([]string{"-addr", "127.0.0.1:0"}, args...)...), stdout: &lockedBuffer{}, stderr: &lockedBuffer{},
		client: &http.Client{Timeout: 20 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 300}},
	}
	i.cmd.Env = append(os.Environ(), env...)
	i.cmd.Stderr = i.stderr
	out, in := io.Pipe()
	i.cmd.Stdout = in
	if err := i.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var read sync.WaitGroup
	t.Cleanup(func() {
		i.client.CloseIdleConnections()
		i.kill()
		_ = in.Close()
		read.Wait()
		if strings.Contains(i.stderr.String(), "panic") {
			t.Errorf("the program panicked:\n%s", i.stderr)
		}
	})
	first := make(chan string, 1)
	read.Go(func() {
		lines := bufio.NewReader(out)
		line, _ := lines.ReadString('\n')
		first <- line
		_, _ = io.Copy(i.stdout, lines)
	})
	var line string
	select {
	case line = <-first:
	case <-time.After(20 * time.Second):
		t.Fatalf("the program did not come up:\n%s", i.stderr)
	}
	if n, err := fmt.Sscanf(line, "listening on %s (store: %s", &i.url, &i.store); n != 2 {
		t.Fatalf("it printed %q: %v\n%s", line, err, i.stderr)
	}
	i.store = strings.TrimSuffix(i.store, ")")
	return i
}

// kill ends the program as a crash would. It may be called again.
func (i *instance) kill() {
	_ = i.cmd.Process.Kill()
	_ = i.cmd.Wait()
}

// stop ends it with a signal, and returns its exit code.
func (i *instance) stop(s syscall.Signal) int {
	i.t.Helper()
	if err := i.cmd.Process.Signal(s); err != nil {
		i.t.Fatal(err)
	}
	_ = i.cmd.Wait()
	return i.cmd.ProcessState.ExitCode()
}

// answer is a response with its body.
type answer struct {
	status int
	header http.Header
	body   string
}

// call is a request.
type call struct {
	method, path, user, body string
	keys                     []string
	header                   map[string]string
}

func purchase(key string) call {
	return call{method: http.MethodPost, path: "/api/checkout", user: "alice", body: `{"sku":"tea","quantity":1}`, keys: []string{key}}
}

// try sends a request once: the transport does not retry.
func (i *instance) try(c call) (answer, error) {
	req, err := http.NewRequest(c.method, i.url+c.path, strings.NewReader(c.body))
	if err != nil {
		return answer{}, err
	}
	req.Host = "shop.example" // of all instances, as behind a load balancer
	req.GetBody = nil
	if c.user != "" {
		req.Header.Set("X-User", c.user)
	}
	if c.keys != nil {
		req.Header["Idempotency-Key"] = c.keys
	}
	for name, value := range c.header {
		req.Header.Set(name, value)
	}
	resp, err := i.client.Do(req)
	if err != nil {
		return answer{}, err
	}
	defer func() { _ = resp.Body.Close() }()
	body, err := io.ReadAll(resp.Body)
	return answer{resp.StatusCode, resp.Header, string(body)}, err
}

func (i *instance) do(c call) answer {
	i.t.Helper()
	a, err := i.try(c)
	if err != nil {
		i.t.Fatal(err)
	}
	return a
}

type stats struct{ Requests, Charges, Replayed, Denied int }

func (i *instance) stats() stats {
	i.t.Helper()
	var s stats
	a := i.do(call{method: http.MethodGet, path: "/api/stats"})
	if err := json.Unmarshal([]byte(a.body), &s); err != nil || a.status != http.StatusOK {
		i.t.Fatalf("stats: %d %s", a.status, a.body)
	}
	return s
}

func (a answer) replayed() bool { return a.header.Get("Idempotency-Replayed") == "true" }

func (a answer) want(t testing.TB, status int, replayed bool) answer {
	t.Helper()
	if a.status != status || a.replayed() != replayed {
		t.Fatalf("status %d, replayed %v, want %d, %v: %s", a.status, a.replayed(), status, replayed, a.body)
	}
	return a
}

func (a answer) wantProblem(t testing.TB, status int, kind string) answer {
	t.Helper()
	var problem struct{ Type string }
	if err := json.Unmarshal([]byte(a.body), &problem); err != nil || a.status != status ||
		a.header.Get("Content-Type") != "application/problem+json" || kind != "" && !strings.HasSuffix(problem.Type, "#"+kind) {
		t.Fatalf("status %d, want %d with a problem %s: %s", a.status, status, kind, a.body)
	}
	return a
}

// shell runs a command that the program or its page has shown, and returns what it prints.
func shell(t testing.TB, command string) string {
	t.Helper()
	if _, err := exec.LookPath("curl"); err != nil {
		t.Skip("curl is not installed")
	}
	out, err := exec.Command("sh", "-c", command).Output()
	if err != nil {
		t.Fatalf("%s: %v", command, err)
	}
	return string(out)
}

// eventually polls until the condition holds.
func eventually(t testing.TB, within time.Duration, what string, holds func() bool) {
	t.Helper()
	testpace.Eventually(t, within, what, holds)
}

type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
