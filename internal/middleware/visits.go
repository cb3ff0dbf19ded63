package middleware

import (
	"context"
	"fmt"
	"hash/maphash"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// visits are the requests that limiters have let pass and whose handlers run, each by a hash. A
// limit that is twice in the chain of a request finds the first visit here. A mark in the request's
// context, as for locks and guards, would cost two allocations. A hash has eight places, which
// share a cache line; a ninth request with the same ones is not found.
var (
	visits     [512][8]atomic.Uint64
	visitsSeed = maphash.MakeSeed()
)

// Visit is a request behind a limit. The zero Visit is none.
type Visit struct {
	place *atomic.Uint64
	id    uint64
}

// End is called when the request's handler has returned.
func (v Visit) End() {
	if v.place != nil {
		v.place.CompareAndSwap(v.id, 0)
	}
}

// visit takes one of the places for a hash, or none if all are taken. It reports whether the hash
// has one already.
func visit(places *[8]atomic.Uint64, id uint64) (v Visit, again bool) {
	for i := range places {
		if places[i].Load() == id {
			return Visit{}, true
		}
	}
	for i := range places {
		if places[i].CompareAndSwap(0, id) {
			return Visit{&places[i], id}, false
		}
	}
	return Visit{}, false
}

// Begin begins the visit of a request with a key. It returns a denial if this limiter has already
// charged the request with this key.
//
// The address identifies the request while it runs: all middleware of its chain see it, and no
// other request has it; zero is none. The path tells a request apart from one that its handler
// sends within the process. Copies with one header that an application serves at the same time,
// under one path, count as one chain.
func (m *RateLimit) Begin(ctx context.Context, address uintptr, path, key string) (Visit, *policy.Denial) {
	if address == 0 || key == "" {
		return Visit{}, nil
	}
	id := maphash.Comparable(visitsSeed, struct {
		limiter   *tokenbucket.Limiter
		address   uintptr
		path, key string
	}{m.Limiter, address, path, key})
	places := &visits[id%uint64(len(visits))]
	if v, again := visit(places, id); !again {
		return v, nil
	}
	err := fmt.Errorf("middleware: the limiter %q is in one chain twice with the same key", m.Limiter.Name())
	m.twiceInChain(ctx, err)
	if m.shadow || !m.Limiter.Enforces(key) {
		return Visit{}, nil
	}
	d := policy.Denial{Reason: policy.InternalError, Err: err}
	Fail(ctx, d)
	return Visit{}, &d
}
