// Package errand counts what goes on after its caller has left, or may do so, so that whoever closes
// up can wait for it.
package errand

import (
	"context"
	"fmt"
	"sync"
)

// Group is errands that are under way. The zero value has none.
type Group struct {
	mu      sync.Mutex
	running int
	idle    chan struct{} // closed when none is running; nil if nobody waits for that
}

// Run calls f in a goroutine.
func (g *Group) Run(f func()) {
	g.Begin()
	go func() {
		defer g.End()
		f()
	}()
}

// Begin counts an errand that the caller does itself, until it calls End.
func (g *Group) Begin() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running++
}

// End is called once for each Begin.
func (g *Group) End() {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.running--; g.running == 0 && g.idle != nil {
		close(g.idle)
		g.idle = nil
	}
}

// Wait waits until none is running, or until ctx ends: then it returns an error
// that matches ctx's cause. Unlike a WaitGroup it may be called while others begin.
func (g *Group) Wait(ctx context.Context) error {
	g.mu.Lock()
	if g.running == 0 {
		g.mu.Unlock()
		return nil
	}
	if g.idle == nil {
		g.idle = make(chan struct{})
	}
	idle := g.idle
	g.mu.Unlock()
	select {
	case <-idle:
		return nil
	case <-ctx.Done():
		return fmt.Errorf("not all that was under way has ended: %w", context.Cause(ctx))
	}
}
