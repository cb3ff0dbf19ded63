package hooks

import (
	"maps"
	"slices"
	"sync"
)

// registry has functions until they are removed. The zero value has none.
type registry[F any] struct {
	mu    sync.Mutex
	funcs map[*F]bool
}

// add adds f, and returns a function that removes it.
func (r *registry[F]) add(f F) (remove func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.funcs == nil {
		r.funcs = make(map[*F]bool)
	}
	r.funcs[&f] = true
	return func() {
		r.mu.Lock()
		defer r.mu.Unlock()
		delete(r.funcs, &f)
	}
}

// all returns the functions. They are called while no mutex is held, since they may call the store.
func (r *registry[F]) all() []*F {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Collect(maps.Keys(r.funcs))
}

// Listeners are functions that are called with an ID. The zero value has none.
type Listeners struct{ funcs registry[func(id string)] }

// Add adds f, and returns a function that removes it.
func (n *Listeners) Add(f func(id string)) (remove func()) { return n.funcs.add(f) }

// Call calls them all.
func (n *Listeners) Call(id string) {
	for _, f := range n.funcs.all() {
		(*f)(id)
	}
}
