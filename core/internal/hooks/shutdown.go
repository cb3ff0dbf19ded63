// Package hooks keeps the functions that a store calls when it shuts down, and when a hold is lost.
package hooks

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"time"
)

// Shutdown are functions that are called at shutdown. The zero value is ready to use.
type Shutdown struct {
	begun  atomic.Bool
	closed atomic.Bool
	hooks  registry[func(context.Context) error]

	mu   sync.Mutex
	over chan struct{} // closed when the shutdown begins; nil without waiters
}

// Begun reports whether the shutdown has begun.
func (h *Shutdown) Begun() bool { return h.begun.Load() }

// Over returns a channel that is closed when the shutdown begins.
func (h *Shutdown) Over() <-chan struct{} {
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

// AtShutdown registers f, and returns a function that removes it.
func (h *Shutdown) AtShutdown(f func(context.Context) error) (remove func()) { return h.hooks.add(f) }

// closeTimeout bounds the hooks in Close.
const closeTimeout = time.Second

// Close calls all hooks, for at most closeTimeout, and then close. Later calls do nothing.
func (h *Shutdown) Close(close func()) error {
	if h.closed.Swap(true) {
		return nil
	}
	ctx, cancel := context.WithTimeout(context.Background(), closeTimeout)
	defer cancel()
	err := h.Run(ctx)
	close()
	return err
}

// Run calls all hooks concurrently, waits for them, and joins their errors. They stay registered: a
// second Run finishes the work that the first has left.
func (h *Shutdown) Run(ctx context.Context) error {
	h.mu.Lock()
	if !h.begun.Swap(true) && h.over != nil {
		close(h.over)
	}
	h.mu.Unlock()
	hooks := h.hooks.all()
	errs := make([]error, len(hooks))
	var wg sync.WaitGroup
	for i, f := range hooks {
		wg.Go(func() { errs[i] = (*f)(ctx) })
	}
	wg.Wait()
	return errors.Join(errs...)
}
