package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/redis/go-redis/v9"
)

// process is an instance of a service. It has connections of its own, on which it can be stopped
// before a command: forever, as by a crash, or for a while, as by a garbage collector, a debugger
// or a suspended machine. The code that locks cannot notice that.
type process struct {
	client *redis.Client
	writes atomic.Int64 // requests that were sent

	mu      sync.Mutex
	stopAt  string        // the command that it is stopped before: "" is any, "-" is none
	reached chan struct{} // closed when it is stopped
	resume  chan struct{} // closed when it resumes
	goOn    func()        // closes it
	died    bool
	times   []time.Time // that it has sent
}

var errDied = errors.New("the process has died")

// newProcess returns a process with a client of these options.
func newProcess(o redis.Options) *process {
	p := &process{stopAt: "-"}
	o.ContextTimeoutEnabled = true
	if o.Dialer == nil {
		o.Dialer = redis.NewDialer(&o)
	}
	dial := o.Dialer
	o.Dialer = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return countingConn{conn, &p.writes}, nil
	}
	p.client = redis.NewClient(&o)
	p.client.AddHook(stopHook{p})
	return p
}

// pauseBefore pauses the process before its next command with a name in lower case, or before any
// command. It returns a channel that is closed when the process is paused, and a function that
// resumes it.
func (p *process) pauseBefore(command string) (paused <-chan struct{}, goOn func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	resume := make(chan struct{})
	p.stopAt, p.reached, p.resume = command, make(chan struct{}), resume
	p.goOn = sync.OnceFunc(func() { close(resume) })
	return p.reached, p.goOn
}

// dieBefore stops the process forever before its next command with a name in lower case, or before
// any command.
func (p *process) dieBefore(command string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopAt, p.reached, p.resume = command, make(chan struct{}), nil
}

// revive undoes pauseBefore and dieBefore.
func (p *process) revive() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopAt, p.reached, p.died = "-", nil, false
	if p.goOn != nil {
		p.goOn()
	}
}

// before is called before each command.
func (p *process) before(ctx context.Context, commands ...redis.Cmder) error {
	p.mu.Lock()
	for _, cmd := range commands {
		p.times = append(p.times, timesIn(cmd.Args(), time.Now())...)
	}
	if p.died {
		p.mu.Unlock()
		return errDied
	}
	for _, cmd := range commands {
		if p.stopAt == "" || p.stopAt == cmd.Name() {
			close(p.reached)
			p.stopAt, p.died = "-", p.resume == nil
			break
		}
	}
	reached, resume, died := p.reached, p.resume, p.died
	p.mu.Unlock()
	if died {
		return errDied
	}
	select {
	case <-reached: // nil if no stop was set
	default:
		return nil
	}
	select {
	case <-resume:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// timesSent returns the clock times that the process has sent, of a clock that may be somewhat
// wrong.
func (p *process) timesSent() []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.times)
}

// timesIn returns the arguments that are a time near now, in seconds or a fraction of a second.
func timesIn(args []any, now time.Time) []time.Time {
	var times []time.Time
	for _, arg := range args {
		n, err := strconv.ParseFloat(fmt.Sprint(arg), 64)
		if err != nil {
			continue
		}
		for _, perSecond := range []float64{1, 1e3, 1e6, 1e9} {
			if at := time.UnixMicro(int64(n / perSecond * 1e6)); at.Sub(now).Abs() < 24*time.Hour {
				times = append(times, at)
			}
		}
	}
	return times
}

type stopHook struct{ *process }

func (h stopHook) DialHook(next redis.DialHook) redis.DialHook { return next }

func (h stopHook) ProcessHook(next redis.ProcessHook) redis.ProcessHook {
	return func(ctx context.Context, cmd redis.Cmder) error {
		if err := h.before(ctx, cmd); err != nil {
			cmd.SetErr(err)
			return err
		}
		return next(ctx, cmd)
	}
}

func (h stopHook) ProcessPipelineHook(next redis.ProcessPipelineHook) redis.ProcessPipelineHook {
	return func(ctx context.Context, cmds []redis.Cmder) error {
		if err := h.before(ctx, cmds...); err != nil {
			for _, cmd := range cmds {
				cmd.SetErr(err)
			}
			return err
		}
		return next(ctx, cmds)
	}
}

// countingConn counts what is written: a request, or the requests of a pipeline.
type countingConn struct {
	net.Conn
	writes *atomic.Int64
}

func (c countingConn) Write(b []byte) (int, error) {
	c.writes.Add(1)
	return c.Conn.Write(b)
}
