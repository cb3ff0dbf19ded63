package memstore

import "sync"

// lostFuncs are the functions of NotifyLost.
type lostFuncs struct {
	mu    sync.Mutex
	next  int
	funcs map[int]func(id string)
}

func (n *lostFuncs) add(f func(id string)) (remove func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.funcs == nil {
		n.funcs = make(map[int]func(string))
	}
	id := n.next
	n.next++
	n.funcs[id] = f
	return func() {
		n.mu.Lock()
		defer n.mu.Unlock()
		delete(n.funcs, id)
	}
}

// call calls them all, while no mutex is held: they may call the store.
func (n *lostFuncs) call(id string) {
	n.mu.Lock()
	funcs := make([]func(string), 0, len(n.funcs))
	for _, f := range n.funcs {
		funcs = append(funcs, f)
	}
	n.mu.Unlock()
	for _, f := range funcs {
		f(id)
	}
}
