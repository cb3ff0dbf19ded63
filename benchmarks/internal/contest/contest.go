// Package contest has goroutines compete for a lock or for permits, in one process or in several.
package contest

import (
	"cmp"
	"context"
	"fmt"
	"sync"
	"time"
)

// Contender is a library with its options.
type Contender struct {
	Row   string
	Tuned bool // configured for this measurement, not as documented
	// Sends are the commands that its clients send, besides scripts and those of every client.
	Sends []string
	Open  func(addr string) (Client, error)
}

// Client is the access of one process to locks, or to a semaphore.
type Client interface {
	// Lock blocks until it holds the lock of a key, or a permit.
	Lock(ctx context.Context, key string) (Held, error)
	Close()
}

// Held is a held lock or permit.
type Held interface {
	Unlock(ctx context.Context) error
}

// Local is a lock or a semaphore without Redis: the ceiling.
type Local struct{ Acquire, Release func() }

// Lock acquires it.
func (l Local) Lock(context.Context, string) (Held, error) {
	l.Acquire()
	return l, nil
}

// Unlock releases it.
func (l Local) Unlock(context.Context) error {
	l.Release()
	return nil
}

// Close does nothing.
func (Local) Close() {}

// hold is one hold by a goroutine. Its times are those of the machine's clock in nanoseconds, which
// the processes share.
type hold struct {
	Worker    int
	Granted   int64
	Releasing int64 // before the call that releases it
}

// Record is the part of one process in a contest.
type Record struct {
	Holds []hold
	// Waits are the nanoseconds from request to grant; for requests that were still waiting, to the
	// end of the contest.
	Waits    []int64
	Failures int // calls that failed before the end
	Error    string
}

// Run runs n goroutines of each client, which compete until the time is over and hold for the time
// held. They are numbered from first.
func Run(ctx context.Context, clients []Client, n, first int, held, d time.Duration) Record {
	ctx, cancel := context.WithTimeout(ctx, d)
	defer cancel()
	var (
		mu      sync.Mutex
		all     Record
		running sync.WaitGroup
	)
	for i, client := range clients {
		for j := range n {
			running.Go(func() {
				mine := compete(ctx, client, first+i*n+j, held)
				mu.Lock()
				defer mu.Unlock()
				all.Holds = append(all.Holds, mine.Holds...)
				all.Waits = append(all.Waits, mine.Waits...)
				all.Failures += mine.Failures
				all.Error = cmp.Or(all.Error, mine.Error)
			})
		}
	}
	running.Wait()
	return all
}

func compete(ctx context.Context, client Client, worker int, held time.Duration) Record {
	var r Record
	for ctx.Err() == nil {
		sent := time.Now()
		lock, err := client.Lock(ctx, "contested")
		granted := time.Now()
		if ctx.Err() != nil {
			r.Waits = append(r.Waits, int64(granted.Sub(sent)))
			if err == nil {
				_ = lock.Unlock(context.WithoutCancel(ctx))
			}
			return r
		}
		if err != nil {
			r.Failures++
			r.Error = err.Error()
			continue
		}
		Rest(held)
		releasing := time.Now()
		if err := lock.Unlock(context.WithoutCancel(ctx)); err != nil {
			r.Failures++
			r.Error = err.Error()
		}
		r.Holds = append(r.Holds, hold{worker, granted.UnixNano(), releasing.UnixNano()})
		r.Waits = append(r.Waits, int64(granted.Sub(sent)))
	}
	return r
}

// Rest waits, as a holder does for its work.
func Rest(d time.Duration) {
	if d > 0 {
		<-time.After(d)
	}
}

// Warm connects, loads scripts and subscribes.
func Warm(ctx context.Context, client Client) error {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second) // a library may block forever
	defer cancel()
	for range 3 {
		lock, err := lockPatiently(ctx, client)
		if err != nil {
			return fmt.Errorf("warming up: %w", err)
		}
		if err := lock.Unlock(ctx); err != nil {
			return fmt.Errorf("warming up: %w", err)
		}
	}
	return nil
}

// lockPatiently retries failures of a machine that has just started several processes.
func lockPatiently(ctx context.Context, client Client) (lock Held, err error) {
	for range 20 {
		if lock, err = client.Lock(ctx, "warm"); err == nil || ctx.Err() != nil {
			break
		}
	}
	return lock, err
}
