// Package background runs work that outlives its caller, in bounds, and lets Close wait for it.
package background

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
)

// Group counts work that may outlive its caller. The zero value is empty.
type Group struct {
	running atomic.Int64
	awaited atomic.Bool // there is an idle channel; without one, End skips the mutex

	mu   sync.Mutex
	idle chan struct{} // closed when none is running; nil without waiters
}

// Run calls f in a goroutine.
func (g *Group) Run(f func()) {
	g.Begin()
	go func() {
		defer g.End()
		f()
	}()
}

// Begin counts work that the caller runs itself, until it calls End.
func (g *Group) Begin() { g.running.Add(1) }

// End is called once for each Begin.
func (g *Group) End() {
	if g.running.Add(-1) == 0 && g.awaited.Load() {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.wake()
	}
}

// wake ends all calls of Wait. The caller holds mu.
func (g *Group) wake() {
	if g.idle != nil {
		close(g.idle)
		g.idle = nil
		g.awaited.Store(false)
	}
}

// Running returns the number of running pieces of work.
func (g *Group) Running() int { return int(g.running.Load()) }

// Wait blocks until none is running. If ctx ends first, it returns an error that matches ctx's
// cause. Unlike WaitGroup.Wait, it may be called while other work begins.
func (g *Group) Wait(ctx context.Context) error {
	if g.running.Load() == 0 {
		return nil
	}
	g.mu.Lock()
	if g.idle == nil {
		g.idle = make(chan struct{})
		g.awaited.Store(true)
	}
	idle := g.idle
	if g.running.Load() == 0 { // the last one may have ended before it could see the channel
		g.wake()
	}
	g.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("calls are still in flight: %w", context.Cause(ctx))
	}
}
