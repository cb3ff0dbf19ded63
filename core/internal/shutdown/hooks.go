// Package shutdown keeps what must be finished before a store goes.
package shutdown

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Hooks are functions to be called once, at shutdown. The zero value is ready to use.
type Hooks struct {
	begun  atomic.Bool
	closed atomic.Bool

	mu    sync.Mutex
	over  chan struct{} // closed when the shutdown begins; nil if nobody waits for that
	next  int
	hooks map[int]func(context.Context) error
}

// Begun reports whether the shutdown has begun.
func (h *Hooks) Begun() bool { return h.begun.Load() }

// Over returns a channel that is closed when the shutdown begins.
func (h *Hooks) Over() <-chan struct{} {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.over == nil {
		h.over = make(chan struct{})
		if h.begun.Load() {
			close(h.over)
		}
	}
	return h.over
}

// AtShutdown registers f, and returns a function that takes it back.
func (h *Hooks) AtShutdown(f func(context.Context) error) (remove func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.hooks == nil {
		h.hooks = make(map[int]func(context.Context) error)
	}
	id := h.next
	h.next++
	h.hooks[id] = f
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.hooks, id)
	}
}

// closeTimeout bounds what Close waits for.
const closeTimeout = time.Second

// Close calls all hooks, for as long as closeTimeout at most, and then close. It does nothing but the first
// time.
func (h *Hooks) Close(close func()) error {
	if h.closed.Swap(true) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := h.Run(ctx)
	close()
	return err
}

// Run calls all hooks at once, waits for them, and joins their errors. They stay registered: a
// second Run finishes what came after the first.
func (h *Hooks) Run(ctx context.Context) error {
	h.mu.Lock()
	if !h.begun.Swap(true) && h.over != nil {
		close(h.over)
	}
	var (
		wg   sync.WaitGroup
		errs = make([]error, len(h.hooks))
	)
	i := 0
	for _, f := range h.hooks {
		err := &errs[i]
		wg.Go(func() { *err = f(ctx) })
		i++
	}
	h.mu.Unlock()
	wg.Wait()
	return errors.Join(errs...)
}
