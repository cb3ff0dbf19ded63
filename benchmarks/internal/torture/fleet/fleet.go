// Package fleet runs the workers of a run, which are processes of the same program, and collects
// what they write.
package fleet

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

// Fleet is a number of workers. When one is killed, another takes its place.
type Fleet struct {
	log *history.Log
	job func(i int) workload.Job

	mu      sync.Mutex
	workers []*Worker
	started int
	err     error
}

// Worker is a process.
type Worker struct {
	Name  string
	cmd   *exec.Cmd
	stdin io.WriteCloser
	read  chan struct{} // closed when all its events have been added
}

// Start starts n workers. job says what the i-th one is to do, but for its name.
func Start(n int, log *history.Log, job func(i int) workload.Job) (*Fleet, error) {
	f := &Fleet{log: log, job: job, workers: make([]*Worker, n)}
	for i := range n {
		if err := f.start(i); err != nil {
			return nil, errors.Join(err, f.Stop(0))
		}
	}
	return f, nil
}

// Size is the number of workers.
func (f *Fleet) Size() int { return len(f.workers) }

// Worker returns the worker in a place now.
func (f *Fleet) Worker(i int) *Worker {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.workers[i]
}

func (f *Fleet) start(i int) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	job := f.job(i)
	job.Name = fmt.Sprintf("w%d-%d", i, f.started)
	job.Seed += uint64(f.started) //nolint:gosec // not negative
	f.started++
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.Command(self) //nolint:gosec // this program
	cmd.Env = append(os.Environ(), workload.Variable+"=1")
	cmd.Stderr = os.Stderr
	// A group of its own: an interrupt from the terminal is the parent's to handle.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	w := &Worker{job.Name, cmd, stdin, make(chan struct{})}
	f.workers[i] = w
	go f.collect(w, stdout)
	return json.NewEncoder(stdin).Encode(job)
}

// collect adds the events of a worker, until it has ended.
func (f *Fleet) collect(w *Worker, from io.Reader) {
	defer close(w.read)
	lines := bufio.NewReaderSize(from, 1<<20)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil { // at most half a line of a killed worker is left
			return
		}
		var e history.Event
		if err := json.Unmarshal(line, &e); err != nil {
			f.fail(fmt.Errorf("%s wrote %q: %w", w.Name, line, err))
			continue
		}
		f.log.Add(w.Name, e)
	}
}

func (f *Fleet) fail(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.err = errors.Join(f.err, err)
}

// Kill kills a worker, as a crash would, and starts another in its place.
func (f *Fleet) Kill(i int) error {
	w := f.Worker(i)
	w.kill(f.log)
	return f.start(i)
}

func (w *Worker) kill(log *history.Log) {
	_ = w.cmd.Process.Kill()
	at := history.Now()
	<-w.read
	_ = w.cmd.Wait()
	log.Died(w.Name, at)
}

// Pause stops a worker where it is, until Resume.
func (w *Worker) Pause() error { return w.cmd.Process.Signal(syscall.SIGSTOP) }

// Resume continues a paused worker.
func (w *Worker) Resume() error { return w.cmd.Process.Signal(syscall.SIGCONT) }

// Order tells a worker what to do beside its job.
func (w *Worker) Order(o workload.Order) error { return json.NewEncoder(w.stdin).Encode(o) }

// Stop has all workers finish, and kills those that have not within a time. Its error says which,
// and what else went wrong with them.
func (f *Fleet) Stop(patience time.Duration) error {
	var running sync.WaitGroup
	for _, w := range f.workers {
		if w == nil { // not started
			continue
		}
		running.Go(func() {
			_ = w.stdin.Close()
			select {
			case <-w.read:
				if err := w.cmd.Wait(); err != nil {
					f.fail(fmt.Errorf("%s: %w", w.Name, err))
				}
			case <-time.After(patience):
				f.fail(fmt.Errorf("%s has not ended within %v", w.Name, patience))
				w.kill(f.log)
			}
		})
	}
	running.Wait()
	return f.err
}
