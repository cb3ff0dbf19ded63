package delaytest

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"strconv"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

const workerEnv = "LOCKKEEPER_TEST_TASKS_OF"

// ProcessLease is the lease of the tasks of [Processes].
func ProcessLease() time.Duration { return testpace.Scale(time.Second) }

func newQueue(t *testing.T, st store.Delays) *delay.Queue {
	t.Helper()
	queue, err := delay.New(st, "processes", delay.WithLogger(slog.New(slog.DiscardHandler)), delay.WithAttempts(1000),
		delay.WithLease(ProcessLease()), delay.WithBackoff(func(int) time.Duration { return 100 * time.Millisecond }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = queue.Close() })
	return queue
}

// Worker returns the value of an environment variable if this process is a worker of [Processes]. It
// skips the test otherwise.
func Worker(t *testing.T, variable string) string {
	t.Helper()
	if os.Getenv(workerEnv) == "" {
		t.Skip("runs as a process of another test")
	}
	return os.Getenv(variable)
}

// Work runs tasks until this worker is killed, or its standard input ends. effect has the effect of a
// task, and the worker may be killed at any time of it.
func Work(t *testing.T, st store.Delays, effect func(context.Context, *delay.Task) error) {
	t.Helper()
	ctx, end := context.WithCancel(t.Context())
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		end()
	}()
	fmt.Println("begins")
	_ = newQueue(t, st).Run(ctx, 8, func(ctx context.Context, task *delay.Task) error {
		now := time.Now().UnixNano()
		if due, err := strconv.ParseInt(string(task.Payload()), 10, 64); err != nil || now < due {
			fmt.Printf("runs %s %v before it is due: %v\n", task.Key(), time.Duration(due-now), err)
		}
		<-time.After(rand.N(20 * time.Millisecond))
		return effect(ctx, task)
	})
}

// Processes puts tasks, which eight processes run that are killed and stopped over and over. A
// process is this binary with one test, which calls [Worker] and [Work], and with further
// environment variables.
//
// No task is early or lost: each is done, or buried. It returns the buried ones.
func Processes(t *testing.T, tasks int, st store.Delays, test string, env ...string) (buried map[string]bool) {
	t.Helper()
	const processes, batches = 8, 10
	p := pool{t: t, test: test, env: env}
	var running []*process
	for range processes {
		running = append(running, p.start())
	}
	queue := newQueue(t, st)
	for batch := range batches {
		for n := range tasks / batches {
			after := rand.N(500 * time.Millisecond)
			due := time.Now().Add(after).UnixNano()
			if _, err := queue.Put(t.Context(), fmt.Sprintf("%d-%d", batch, n), []byte(strconv.FormatInt(due, 10)), after); err != nil {
				t.Fatalf("Put: %v", err)
			}
		}
		victims := rand.Perm(processes)
		running[victims[0]].end(t)
		running[victims[0]] = p.start()
		running[victims[1]].stop(t, rand.N(2*ProcessLease()))
		<-time.After(rand.N(300 * time.Millisecond))
	}
	testpace.Eventually(t, time.Minute, "all tasks are settled", func() bool {
		counts, err := queue.Count(t.Context())
		return err == nil && counts.Waiting+counts.Running == 0
	})
	buried = make(map[string]bool)
	for state, err := range queue.Buried(t.Context()) {
		ok(t, err)
		buried[state.Key] = true
	}
	for _, process := range running {
		process.end(t)
	}
	return buried
}

// pool is what all processes have in common.
type pool struct {
	t    *testing.T
	test string
	env  []string
}

type process struct {
	*exec.Cmd
	read sync.WaitGroup
}

// start starts a process, and waits until it works.
func (p *pool) start() *process {
	p.t.Helper()
	started := &process{Cmd: exec.Command(os.Args[0], "-test.run", "^"+p.test+"$", "-test.timeout", "5m")} //nolint:gosec // this binary
	started.Env = append(append(os.Environ(), workerEnv+"=1"), p.env...)
	started.Stderr = os.Stderr
	stdin, err := started.StdinPipe() // ends with this process
	if err != nil {
		p.t.Fatal(err)
	}
	stdout, err := started.StdoutPipe()
	if err == nil {
		err = started.Start()
	}
	if err != nil {
		p.t.Fatal(err)
	}
	p.t.Cleanup(func() {
		_ = stdin.Close()
		started.end(p.t)
	})
	lines := bufio.NewScanner(stdout)
	if !lines.Scan() || lines.Text() != "begins" {
		p.t.Fatalf("the process has written %q", lines.Text())
	}
	started.read.Go(func() {
		for lines.Scan() {
			p.t.Errorf("a process: %s", lines.Text())
		}
	})
	return started
}

// end kills a process, unless it has ended.
func (p *process) end(t *testing.T) {
	if p.ProcessState != nil {
		return
	}
	ok(t, p.Process.Kill())
	p.read.Wait()
	_ = p.Wait()
}

// stop stops a process for a time.
func (p *process) stop(t *testing.T, d time.Duration) {
	ok(t, p.Process.Signal(syscall.SIGSTOP))
	time.AfterFunc(d, func() { _ = p.Process.Signal(syscall.SIGCONT) }) // it may have been killed
}
