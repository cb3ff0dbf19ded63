package main

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"syscall"

	"golang.org/x/sync/errgroup"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
)

// workers is how many workers there are.
const workers = 4

// processes are workers that are processes of this program.
type processes map[string]*exec.Cmd

// runProcesses has processes increment a counter on a store at an address, until it has its target.
func runProcesses(ctx context.Context, kind, addr string, c *counter) error {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	server := &http.Server{Handler: c} //nolint:gosec // a paused process is slow
	go func() { _ = server.Serve(listener) }()
	defer func() { _ = server.Close() }()
	self, err := os.Executable()
	if err != nil {
		return err
	}
	group, ctx := errgroup.WithContext(ctx) // its end kills the running ones
	all := make(processes)
	c.crowd = all
	for i := range workers {
		j := job{Kind: kind, Addr: addr, Counter: "http://" + listener.Addr().String() + "/", Name: fmt.Sprint("worker ", i+1)}
		text, err := json.Marshal(j)
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, self)
		cmd.Env = append(os.Environ(), variable+"="+string(text))
		cmd.Stderr = os.Stderr
		all[j.Name] = cmd
	}
	for name, cmd := range all {
		group.Go(func() error {
			c.mu.Lock() // which is held by what kills or pauses a process
			err := cmd.Start()
			c.mu.Unlock()
			if err == nil {
				err = cmd.Wait()
			}
			c.mu.Lock()
			defer c.mu.Unlock()
			if err != nil && name != c.killed {
				return fmt.Errorf("%s: %w", name, err)
			}
			return nil
		})
	}
	return group.Wait()
}

func (p processes) kill(worker string) error { return p[worker].Process.Kill() }

func (p processes) pause(worker string) (resume, wait func(), err error) {
	process := p[worker].Process
	return func() { _ = process.Signal(syscall.SIGCONT) }, nil, process.Signal(syscall.SIGSTOP)
}

// goroutines are workers in this process, in the place of processes. Their leases are not renewed.
type goroutines struct{}

// runGoroutines has goroutines increment a counter on a store in memory.
func runGoroutines(ctx context.Context, c *counter) error {
	st := memstore.New()
	defer func() { _ = st.Close() }()
	c.crowd = goroutines{}
	group, ctx := errgroup.WithContext(ctx)
	for i := range workers {
		locks, err := lock.New(st, "counters", lock.WithTTL(lease), lock.WithoutRenewal())
		if err != nil {
			return err
		}
		group.Go(func() error { return increment(ctx, locks, fmt.Sprint("worker ", i+1), c) })
	}
	return group.Wait()
}

func (goroutines) kill(string) error { return nil } // read returns errKilled, and the worker leaves

func (goroutines) pause(string) (resume, wait func(), err error) {
	resumed := make(chan struct{})
	return func() { close(resumed) }, func() { <-resumed }, nil
}
