package main

import (
	"errors"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fence"
)

var (
	errDone   = errors.New("the counter has its target")
	errKilled = errors.New("the worker was killed")
)

// shared is the counter as a worker has it.
type shared interface {
	// read returns the counter's value. Its error matches errDone, errKilled, or fence.ErrStale.
	read(worker string, t fence.Token) (value int, err error)
	// write sets the counter's value. Its error matches fence.ErrStale if a later holder has read it.
	write(worker string, t fence.Token, value int) error
}

// crowd ends and stops workers.
type crowd interface {
	kill(worker string) error
	// pause stops a worker where it is. wait returns when the worker may continue, where that has to
	// be awaited.
	pause(worker string) (resume, wait func(), err error)
}

// counter is what the workers share, and what their lock protects: each of them reads it, and writes it
// back, one more. As any resource should, it compares fences, also of readers: a holder whose lease
// has ended cannot write once the next one has read.
//
// It has one worker killed while that holds the lock, and then one paused until others have written.
type counter struct {
	target int
	crowd  crowd

	mu             sync.Mutex
	mark           fence.Mark
	value          int
	lost           int // increments that another one has overwritten
	late           int // writes that a fence has refused
	killed, paused string
	stopped        time.Time // when the last of them was; zero once another worker has the lock
	resume         func()
	afterKill      time.Duration
	afterPause     time.Duration
}

func (c *counter) read(worker string, t fence.Token) (int, error) {
	c.mu.Lock()
	value, wait, err := c.readLocked(worker, t)
	c.mu.Unlock()
	if wait != nil {
		wait()
	}
	return value, err
}

func (c *counter) readLocked(worker string, t fence.Token) (value int, wait func(), err error) {
	if c.mark, err = c.mark.Admit(t); err != nil {
		return 0, nil, err
	}
	if !c.stopped.IsZero() {
		took := &c.afterKill
		if c.paused != "" {
			took = &c.afterPause
		}
		*took, c.stopped = time.Since(c.stopped), time.Time{}
	}
	switch {
	case c.value >= c.target:
		return 0, nil, errDone
	case c.killed == "" && c.value >= c.target/4:
		c.killed, c.stopped = worker, time.Now()
		return 0, nil, errors.Join(errKilled, c.crowd.kill(worker))
	case c.killed != "" && c.paused == "" && c.value >= c.target/2:
		c.paused, c.stopped = worker, time.Now()
		c.resume, wait, err = c.crowd.pause(worker)
		return c.value, wait, err
	}
	return c.value, nil, nil
}

func (c *counter) write(worker string, t fence.Token, value int) (err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.mark, err = c.mark.Admit(t); err != nil {
		c.late++
		return err
	}
	if value != c.value+1 {
		c.lost++
	}
	c.value = value
	if c.resume != nil && worker != c.paused {
		c.resume()
		c.resume = nil
	}
	return nil
}

// end has a worker that is still paused continue.
func (c *counter) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.resume != nil {
		c.resume()
		c.resume = nil
	}
}
