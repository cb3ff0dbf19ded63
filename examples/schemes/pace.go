package main

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"
)

// pace is how the trials of a side share the machine. Processes of Lockkeeper load their scripts one
// after the other, and the trials begin when all have: a server in this process takes more CPU time
// to parse scripts than for all the rest, and leases would run out during that.
type pace struct {
	main  *server // of all trials, or nil if each starts its own
	loads sync.Mutex
	left  atomic.Int32  // trials that are not ready
	ready chan struct{} // closed when all are
}

func newPace(main *server, trials int) *pace {
	p := &pace{main: main, ready: make(chan struct{})}
	p.left.Store(int32(trials)) //nolint:gosec // a few
	return p
}

// arrive counts a trial that is ready, or has ended.
func (p *pace) arrive() {
	if p.left.Add(-1) == 0 {
		close(p.ready)
	}
}

// plays is how often a trial is played, at most.
const plays = 3

// play plays a side of a trial, which should end as wanted. If it does not, and its control was late,
// the machine has spoiled it: it is played again, with longer leases.
func (p *pace) play(
	ctx context.Context, prefix string, ttl time.Duration, play side, wanted func(verdict) bool,
) (finding, error) {
	arrive := sync.OnceFunc(p.arrive)
	defer arrive()
	for n := 1; ; n, ttl = n+1, 2*ttl {
		found, late, err := p.playOnce(ctx, fmt.Sprint(prefix, ":", n), ttl, arrive, play)
		switch {
		case err == nil && wanted(found.verdict), late < tooLate, ctx.Err() != nil:
			return found, err
		case n == plays:
			return found, errors.Join(err, fmt.Errorf("the machine is too slow: a timer was %v late: %s", late, found))
		}
	}
}

func (p *pace) playOnce(
	ctx context.Context, prefix string, ttl time.Duration, arrive func(), play side,
) (found finding, late time.Duration, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute+20*ttl)
	defer cancel()
	s, err := newStage(p.main, prefix, ttl)
	if err != nil {
		return finding{}, 0, err
	}
	defer s.close()
	s.pace, s.arrive = p, arrive
	defer s.control.start()()
	found, err = play(ctx, s)
	return found, s.control.worst(), err
}

// begin waits until all trials are ready.
func (s *stage) begin(ctx context.Context) error {
	s.arrive()
	if err := await(ctx, s.pace.ready); err != nil {
		return err
	}
	s.control.late.Store(0)
	return nil
}

// control is a timer beside a trial, which is late if the machine does not run the trial in time.
type control struct{ late atomic.Int64 }

const (
	every = 10 * time.Millisecond
	// tooLate spoils a trial. A request takes several turns of goroutines on both sides of its
	// connection, and the members of a quorum have 200 ms for it, however long the lease.
	tooLate = 20 * time.Millisecond
)

// start starts the timer, and returns a function that stops it.
func (c *control) start() (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			asked := time.Now()
			if wait(ctx, every) != nil {
				return
			}
			c.late.Store(max(c.late.Load(), int64(time.Since(asked)-every)))
		}
	}()
	return func() {
		cancel()
		<-stopped
	}
}

// worst returns how late the timer was, at most.
func (c *control) worst() time.Duration { return time.Duration(c.late.Load()) }
