package middleware

import "sync"

// waiters bounds how many requests of this process wait for a key.
type waiters struct {
	max   int
	mu    sync.Mutex
	byKey map[string]int // without zeros
}

func newWaiters(limit int) *waiters { return &waiters{max: limit, byKey: map[string]int{}} }

// join reports whether one more request may wait. That request then calls leave.
func (w *waiters) join(key string) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := w.byKey[key]
	if n < w.max {
		w.byKey[key] = n + 1
	}
	return n < w.max
}

func (w *waiters) leave(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.byKey[key]--; w.byKey[key] == 0 {
		delete(w.byKey, key)
	}
}
