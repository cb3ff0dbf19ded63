// Package worker runs parts of a measurement in processes of their own, which are instances of the
// same program.
package worker

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

// variable marks a process as a worker, and names its job.
const variable = "LOCKKEEPER_BENCH_WORKER"

const (
	ready = "ready\n" // from a worker: it is prepared
	start = "start\n" // to a worker: all are
)

// Job is the work of a worker process.
type Job struct {
	Name string
	// Run prepares, calls begin, which returns when every worker of the group is prepared, and does
	// the work. Its arguments are JSON, and its result is encoded as JSON. The context ends when
	// the process that started the group has ended.
	Run func(ctx context.Context, args []byte, begin func() error) (any, error)
}

// Main runs the job that this process was started for, and exits. In a process that is not a worker
// it returns at once. A program calls it before everything else.
func Main(jobs ...Job) {
	name := os.Getenv(variable)
	if name == "" {
		return
	}
	for _, job := range jobs {
		if job.Name == name {
			if err := job.serve(os.Stdin, os.Stdout); err != nil {
				fmt.Fprintf(os.Stderr, "worker %s: %v\n", name, err)
				os.Exit(1)
			}
			os.Exit(0)
		}
	}
	fmt.Fprintf(os.Stderr, "worker: no job %q\n", name)
	os.Exit(2)
}

func (j Job) serve(in io.Reader, out io.Writer) error {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	orders := bufio.NewReader(in)
	args, err := orders.ReadBytes('\n')
	if err != nil {
		return err
	}
	begin := func() error {
		if _, err := io.WriteString(out, ready); err != nil {
			return err
		}
		if word, err := orders.ReadString('\n'); err != nil || word != start {
			return fmt.Errorf("got %q instead of the start: %w", word, err)
		}
		go func() { // the other end stays open until it has the result
			_, _ = io.Copy(io.Discard, orders)
			cancel()
		}()
		return nil
	}
	result, err := j.Run(ctx, args, begin)
	if err != nil {
		return err
	}
	return json.NewEncoder(out).Encode(result)
}

// Group runs the named job in n processes, which begin together, and returns their results. Process
// i gets args(i). Group calls began when all are prepared, before they start. The first error ends
// all of them.
func Group[R any](ctx context.Context, n int, job string, args func(i int) any, began func()) ([]R, error) {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	began = sync.OnceFunc(began)
	var (
		results  = make([]R, n)
		errs     = make([]error, n)
		running  sync.WaitGroup
		prepared sync.WaitGroup
	)
	prepared.Add(n)
	for i := range n {
		running.Go(func() {
			once := sync.OnceFunc(prepared.Done)
			defer once()
			errs[i] = run(ctx, job, args(i), &results[i], func(*os.Process) {
				once()
				prepared.Wait()
				began()
			})
			if errs[i] != nil {
				cancel()
			}
		})
	}
	running.Wait()
	return results, errors.Join(errs...)
}

// Victim runs the named job in a process of its own until it is prepared, calls fn with the
// process, which fn may kill or stop, and kills it. It returns the error of fn, or that of its preparation.
func Victim(ctx context.Context, job string, args any, fn func(*os.Process) error) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var (
		prepared bool
		failure  error
	)
	err := run(ctx, job, args, nil, func(p *os.Process) {
		prepared, failure = true, fn(p)
		cancel()
	})
	if prepared {
		return failure
	}
	return err
}

// run runs one process. It calls wait after the process is prepared, before its start.
func run(ctx context.Context, job string, args, result any, wait func(*os.Process)) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	cmd := exec.CommandContext(ctx, self)
	cmd.Env = append(os.Environ(), variable+"="+job)
	cmd.Stderr = os.Stderr
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	err = func() error {
		if err := json.NewEncoder(in).Encode(args); err != nil {
			return err
		}
		answers := bufio.NewReader(out)
		if word, err := answers.ReadString('\n'); err != nil || word != ready {
			return fmt.Errorf("got %q instead of ready: %w", word, err)
		}
		wait(cmd.Process)
		if _, err := io.WriteString(in, start); err != nil {
			return err
		}
		return json.NewDecoder(answers).Decode(result)
	}()
	_ = in.Close()
	if gone := cmd.Wait(); gone != nil {
		err = errors.Join(gone, err) // its error is on standard error
	}
	if err != nil {
		return fmt.Errorf("worker %s: %w", job, err)
	}
	return nil
}
