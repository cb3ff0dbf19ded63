package waiting

import (
	"context"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/store"
)

const (
	// noticeBeat is how often a waiter checks, since a push may be lost.
	noticeBeat = 3 * time.Second
	// NoticeLife is how long the server sends pushes after a check.
	NoticeLife = 3 * noticeBeat
	// noticeSilence is the time without a reply after which a wait fails.
	noticeSilence = 5 * time.Second
)

// notices are the waiters of this process for pushes that announce an event: a latch has opened, an
// attempt has ended. The map's key is the push's text.
type notices struct {
	mu    sync.Mutex
	waits map[string]map[chan bool]struct{}
}

// wait returns a channel that receives true when the push has arrived, and false when one may be
// lost.
func (ns *notices) wait(push string) (came chan bool, forget func()) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	if ns.waits == nil {
		ns.waits = make(map[string]map[chan bool]struct{})
	}
	if ns.waits[push] == nil {
		ns.waits[push] = make(map[chan bool]struct{})
	}
	came = make(chan bool, 1)
	ns.waits[push][came] = struct{}{}
	return came, func() {
		ns.mu.Lock()
		defer ns.mu.Unlock()
		if delete(ns.waits[push], came); len(ns.waits[push]) == 0 {
			delete(ns.waits, push)
		}
	}
}

// deliver makes all waiters for a push check. came reports whether it has arrived.
func (ns *notices) deliver(push string, came bool) {
	ns.mu.Lock()
	defer ns.mu.Unlock()
	for waiter := range ns.waits[push] {
		pushed := came
		select {
		case earlier := <-waiter:
			pushed = pushed || earlier
		default:
		}
		waiter <- pushed // has room: only this sends, with mu held
	}
}

// deliverAll makes all waiters check.
func (ns *notices) deliverAll() {
	ns.mu.Lock()
	pushes := slices.Collect(maps.Keys(ns.waits))
	ns.mu.Unlock()
	for _, push := range pushes {
		ns.deliver(push, false)
	}
}

// AwaitPush blocks until check reports that the event of a push has happened. check makes the
// server send the push, and returns after which time the event may happen without one. It is called
// at first, after a push, and about every three seconds.
func (p *Process[R]) AwaitPush(ctx context.Context, push string, check func(pushed bool) (happened bool, in time.Duration, err error)) error {
	over := p.store.Hooks.Over()
	came, forget := p.notices.wait(push)
	defer forget()
	p.listen()
	heard := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for pushed := false; ; {
		if p.store.Hooks.Begun() {
			return store.ErrClosed
		}
		pause := noticeBeat
		if p.store.Broken() {
			pause = beatEvery
		}
		happened, in, err := check(pushed)
		switch {
		case err == nil && happened:
			return nil
		case err == nil:
			heard = time.Now()
		case ctx.Err() != nil:
			return lease.Ended(ctx)
		case p.store.Life.Err() != nil || time.Since(heard) > noticeSilence:
			return err
		default:
			pause = retryBeat
		}
		pause += rand.N(pause/5) - pause/10
		if in > 0 {
			pause = min(pause, in+time.Millisecond)
		}
		timer.Reset(pause)
		select {
		case pushed = <-came:
		case <-timer.C:
		case <-ctx.Done():
			return lease.Ended(ctx)
		case <-over:
			return store.ErrClosed
		}
	}
}
