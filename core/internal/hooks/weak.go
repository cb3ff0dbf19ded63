package hooks

import (
	"context"
	"runtime"
	"weak"
)

// AtShutdown registers f of an owner with a store, by its AtShutdown in add, for as long as the
// owner is reachable. A store lives as long as its process; an owner that was dropped without Close
// must not. f must not refer to the owner, which is its argument.
func AtShutdown[O any](
	owner *O, add func(func(context.Context) error) (remove func()), f func(*O, context.Context) error,
) (remove func()) {
	of := weak.Make(owner)
	remove = add(func(ctx context.Context) error {
		if owner := of.Value(); owner != nil {
			return f(owner, ctx)
		}
		return nil
	})
	runtime.AddCleanup(owner, func(remove func()) { remove() }, remove)
	return remove
}

// NotifyLost is AtShutdown for a store's NotifyLost.
func NotifyLost[O any](owner *O, add func(func(id string)) (remove func()), f func(owner *O, id string)) (remove func()) {
	of := weak.Make(owner)
	remove = add(func(id string) {
		if owner := of.Value(); owner != nil {
			f(owner, id)
		}
	})
	runtime.AddCleanup(owner, func(remove func()) { remove() }, remove)
	return remove
}
