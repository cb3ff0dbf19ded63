package main

import (
	"context"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"
)

// stage is the environment of one trial of one scheme: its servers and processes.
type stage struct {
	prefix string        // of every key
	ttl    time.Duration // of every lock
	main   *server
	closer []func()

	pace    *pace
	arrive  func() // tells it that the trial is ready
	control control
}

// newStage returns a stage whose main server is the given one, or a new one if that is nil.
func newStage(given *server, prefix string, ttl time.Duration) (*stage, error) {
	s := &stage{prefix: prefix, ttl: ttl, main: given}
	if given != nil {
		return s, nil
	}
	var err error
	s.main, err = s.newServer()
	return s, err
}

// process returns a process that is connected to the main server.
func (s *stage) process() *process { return s.processOn(s.main.options) }

func (s *stage) processOn(o redis.Options) *process {
	o.MaxRetries = -1 // no use on a server that is down
	p := newProcess(o)
	s.closer = append(s.closer, func() { _ = p.client.Close() })
	return p
}

// pass advances the clock of the main server. If it is our own, that takes no time.
func (s *stage) pass(ctx context.Context, d time.Duration) error {
	if s.main.inside == nil {
		return wait(ctx, d)
	}
	s.main.inside.FastForward(d)
	return nil
}

// wait lets time pass everywhere.
func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// key is the name of a key of this trial.
func (s *stage) key(name string) string { return s.prefix + ":" + name }

// close ends the trial.
func (s *stage) close() {
	for i := len(s.closer) - 1; i >= 0; i-- {
		s.closer[i]()
	}
}

// room is a critical section, which counts who is inside.
type room struct {
	mu     sync.Mutex
	inside int
	most   int
}

func (r *room) enter() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inside++
	r.most = max(r.most, r.inside)
}

func (r *room) leave() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.inside--
}

// crowd returns the maximum that was inside at once.
func (r *room) crowd() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.most
}
