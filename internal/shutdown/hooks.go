// Package shutdown keeps what must be finished before a store goes.
package shutdown

import (
	"context"
	"errors"
	"sync"
)

// Hooks are functions to be called once, at shutdown. The zero value is ready to use.
type Hooks struct {
	mu    sync.Mutex
	next  int
	hooks map[int]func(context.Context) error
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

// Run calls all hooks at once, waits for them, and joins their errors. They stay registered: a
// second Run finishes what came after the first.
func (h *Hooks) Run(ctx context.Context) error {
	h.mu.Lock()
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
