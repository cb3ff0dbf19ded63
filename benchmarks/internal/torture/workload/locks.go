package workload

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/core/lock"
)

// hold is a lease, several, a permit or an attempt.
type hold interface{ Context() context.Context }

// valid reports whether a hold is valid: if so it was at the time that it returns, which is read
// first. It also returns when the hold ends, if that is known.
func valid(h hold) (at, until int64, ok bool) {
	at = history.Now()
	if h, ok := h.(interface{ ValidUntil() time.Time }); ok {
		until = history.At(h.ValidUntil())
	}
	return at, until, h.Context().Err() == nil
}

// held is a hold of one key, and what adds its events.
type held struct {
	add   func(history.Event)
	fence int64
}

// granted adds a returned hold of some keys, and reports whether it is valid.
func granted(h hold, of ...held) bool {
	at, until, ok := valid(h)
	for _, k := range of {
		if ok {
			k.add(history.Event{At: at, Step: history.Granted, N: k.fence, Until: until})
		} else {
			k.add(history.Event{At: at, Step: history.Late, N: k.fence})
		}
	}
	return ok
}

// work is the time of a hold. It returns early if the hold ends, and adds that it is valid
// meanwhile, so that something is known of it if its process is killed.
func (a *actor) work(h hold, of ...held) {
	const step = 50 * time.Millisecond
	left := a.upTo(10 * time.Millisecond)
	if a.rand.IntN(1000) < a.long {
		left = a.upTo(2 * a.TTL)
	}
	for {
		sleep(h.Context(), min(left, step))
		if left -= step; left <= 0 {
			return
		}
		at, until, ok := valid(h)
		if !ok {
			return
		}
		for _, k := range of {
			k.add(history.Event{At: at, Step: history.Valid, Until: until})
		}
	}
}

// releasing adds the end of a hold, before its release. Holders of exclusive locks write once more,
// valid or not: what must not be written is for the fence to refuse.
func releasing(h hold, writes bool, of ...held) {
	at, _, ok := valid(h)
	for _, k := range of {
		if writes {
			e := history.Event{At: at, Step: history.Wrote}
			if ok {
				e.Until = at
			}
			k.add(e)
		}
		if ok {
			k.add(history.Event{At: at, Step: history.Releasing})
		} else {
			k.add(history.Event{At: at, Step: history.Ended})
		}
	}
}

// exclusive locks a key.
func (a *actor) exclusive() {
	ctx, cancel := a.patience()
	defer cancel()
	try, key := a.chance(10), a.key(a.rand.IntN(a.Keys))
	add := a.called(key, Exclusive, 0, !try)
	request := a.locks.Lock
	if try {
		request = a.locks.TryLock
	}
	lease, err := request(ctx, key)
	if err != nil {
		a.failed(add, err)
		return
	}
	h := held{add, lease.Fence().Number}
	if granted(lease, h) {
		if a.chance(10) {
			a.reenter(lease)
		}
		a.work(lease, h)
		releasing(lease, true, h)
	}
	_ = lease.Unlock(ctx)
}

// reenter locks the key of a lease again. That needs no store, so it succeeds while the lease is
// valid.
func (a *actor) reenter(outer *lock.Lease) {
	inner, err := a.locks.Lock(outer.Context(), outer.Key())
	switch {
	case err != nil && outer.Context().Err() == nil:
		a.wrong("a valid lease was not re-entered: %v", err)
	case err != nil:
	case inner.Fence() != outer.Fence():
		a.wrong("re-entry has the fence %v instead of %v", inner.Fence(), outer.Fence())
	default:
		if err := inner.Unlock(a.ctx); err != nil && outer.Context().Err() == nil {
			a.wrong("leaving a valid lease: %v", err)
		}
	}
}

// readWrite locks a key shared, or exclusively, or first exclusively and then shared.
func (a *actor) readWrite() {
	ctx, cancel := a.patience()
	defer cancel()
	key, shared := a.key(0), a.chance(70)
	request, weight := a.locks.Lock, int64(Exclusive)
	if shared {
		request, weight = a.locks.RLock, 1
	}
	add := a.called(key, weight, 0, true)
	lease, err := request(ctx, key)
	if err != nil {
		a.failed(add, err)
		return
	}
	h := held{add, lease.Fence().Number}
	if granted(lease, h) {
		a.work(lease, h)
		releasing(lease, !shared, h)
		if !shared && a.chance(30) {
			a.downgrade(ctx, lease)
		}
	}
	_ = lease.Unlock(ctx)
}

func (a *actor) downgrade(ctx context.Context, lease *lock.Lease) {
	add := a.called(lease.Key(), 1, 0, false)
	if err := lease.Downgrade(ctx); err != nil {
		add(history.Event{Step: history.Failed, Text: a.class(err)})
		return
	}
	h := held{add, lease.Fence().Number}
	if granted(lease, h) {
		a.work(lease, h)
		releasing(lease, false, h)
	}
}

// lockAll locks some of the keys. Its calls do not count as waiting for a key, which they may hold.
func (a *actor) lockAll() {
	ctx, cancel := a.patience()
	defer cancel()
	leave := a.rand.IntN(a.Keys)
	var (
		keys []string
		adds = make(map[string]func(history.Event))
		of   []held
	)
	for i := range a.Keys {
		if i != leave {
			keys = append(keys, a.key(i))
			adds[a.key(i)] = a.called(a.key(i), Exclusive, 0, false)
		}
	}
	all, err := a.locks.LockAll(ctx, keys)
	if err != nil {
		for _, add := range adds {
			add(history.Event{Step: history.Failed, Text: a.class(err)})
		}
		a.pause(100 * time.Millisecond)
		return
	}
	for _, key := range keys {
		fence, ok := all.Fence(key)
		if !ok {
			a.wrong("LockAll has not locked one of its keys")
		}
		of = append(of, held{adds[key], fence.Number})
	}
	if granted(all, of...) {
		a.work(all, of...)
		releasing(all, true, of...)
	}
	_ = all.Unlock(ctx)
}
