package waiting

import (
	"math/rand/v2"
	"time"
)

const (
	// beatEvery is the time between heartbeats of a key, unless there are more than maxBeats keys:
	// then the process sends that many heartbeats in a second.
	beatEvery = time.Second
	maxBeats  = 2000
	// MaxBeatKeys is the maximum of keys that share a call of the store, if the store can share
	// calls. Heartbeats that are due within shareEvery are sent together: about that many.
	MaxBeatKeys = 100
	shareEvery  = MaxBeatKeys * time.Second / maxBeats * 4 / 5
	// silentBeats is for how many intervals a waiter tolerates a server without replies. Its place
	// may be lost earlier, and is restored if the server replies in time.
	silentBeats = 6
	// retryBeat is when a failed heartbeat is retried.
	retryBeat = 300 * time.Millisecond
	// recheckAfter is when a heartbeat is repeated if its reply has fewer waiters than the process.
	recheckAfter = 50 * time.Millisecond
	// mostSurplus is how many replies in a row may have more: a withdrawal may be on its way.
	mostSurplus = 2
)

// Key is a key with queued requests of this process.
type Key[R Record] struct {
	Record  R
	waiters map[*waiter[R]]struct{}
	due     time.Time // the next heartbeat
	heard   time.Time // last reply of the store
	missing int       // consecutive replies with fewer waiters
	surplus int       // or with more
	index   int       // in the heap
}

func jitter(most time.Duration) time.Duration { return rand.N(max(most, 1)) }

// sendBeats sends heartbeats when they are due, while there are waiters.
func (p *Process[R]) sendBeats() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, next, more := p.dueNow()
		if !more {
			return
		}
		if len(due) > 0 {
			p.store.Beat(due)
			continue
		}
		if p.store.Check != nil {
			if check := p.store.Check(); check.Before(next) {
				next = check
			}
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-p.changed:
		case <-p.store.Life.Done():
			return
		}
	}
}

// interval returns the time between the heartbeats of a key. The caller holds mu.
func (p *Process[R]) interval() time.Duration {
	return max(beatEvery, time.Duration(len(p.keys))*time.Second/maxBeats)
}

// DeadAfter returns the time without a heartbeat after which the store may take the process for
// dead.
func (p *Process[R]) DeadAfter() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return 3 * p.interval()
}

// schedule sets the next heartbeat of a key: when a hold ends, since no push reports that, or after
// the usual time. The caller holds mu.
func (p *Process[R]) schedule(k *Key[R], ends time.Duration) {
	wait := p.interval()
	wait -= jitter(wait / 5)
	switch {
	case ends > 0 && ends < shareEvery:
		p.scheduleAt(k, time.Now().Add(ends+time.Millisecond))
		return
	case ends > 0 && ends < wait:
		wait = ends + shareEvery
	}
	due := time.Now().Add(wait)
	p.scheduleAt(k, due.Add(-(due.Sub(p.began) % shareEvery))) // together with others
}

func (p *Process[R]) scheduleAt(k *Key[R], due time.Time) {
	if k.index < 0 {
		return
	}
	k.due = due
	p.due.Fix(k)
	p.notify()
}

// beatSoon makes the heartbeat of a key due.
func (p *Process[R]) beatSoon(record string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if k := p.keys[record]; k != nil {
		p.scheduleAt(k, time.Now())
	}
}

// BeatNow makes all heartbeats due.
func (p *Process[R]) BeatNow() {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	for _, k := range p.due {
		k.due = now // all are equal, so the heap stays valid
	}
	p.notify()
}

// startBeating reports whether the caller has to start the goroutine that sends heartbeats.
func (p *Process[R]) startBeating() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	start := !p.beating && len(p.due) > 0
	p.beating = p.beating || start
	return start
}

// dueNow returns the keys whose heartbeats are due, and when the next one is. more is false if
// there are no keys.
func (p *Process[R]) dueNow() (due []*Key[R], next time.Time, more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.due) == 0 {
		p.beating = false
		return nil, next, false
	}
	now := time.Now()
	wait := p.interval()
	for !p.due[0].due.After(now) {
		k := p.due[0]
		due = append(due, k)
		k.due = now.Add(wait) // until the reply changes it
		p.due.Fix(k)
	}
	p.sleepsUntil = p.due[0].due
	return due, p.sleepsUntil, true
}

// notify wakes the goroutine that sends heartbeats if one is due before it wakes up by itself. The
// caller holds mu.
func (p *Process[R]) notify() {
	if len(p.due) == 0 || !p.due[0].due.Before(p.sleepsUntil) {
		return
	}
	select {
	case p.changed <- struct{}{}:
	default:
	}
}

// Heard handles the reply to a heartbeat of a key: the number of the process's requests that wait
// there, and the time until the first hold ends, or 0. It returns true if the store has requests
// that the process does not have: another heartbeat then removes all of them.
func (p *Process[R]) Heard(k *Key[R], places int, ends time.Duration) (surplus bool) {
	broken := p.store.Broken()
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	k.heard = now
	for w := range k.waiters {
		if w.awaited == 0 && w.asking == 0 && now.Sub(w.left) > keptUnawaited {
			p.remove(w)
		}
	}
	if len(k.waiters) == 0 {
		return false
	}
	switch n := len(k.waiters); {
	case places < n:
		k.surplus = 0
		if k.missing++; k.missing == 1 && !broken { // a push may be on its way
			p.scheduleAt(k, now.Add(recheckAfter))
			return false
		}
		k.missing = 0
		for w := range k.waiters {
			w.ask = true
			w.wake()
		}
	case places > n && p.inFlight == 0: // otherwise a reply may be on its way
		k.missing = 0
		k.surplus++
	default:
		k.missing, k.surplus = 0, 0
	}
	p.schedule(k, ends)
	return k.surplus > mostSurplus
}

// Silent records that the store did not reply to a heartbeat of a key, and ends the waits if the
// places must be lost.
func (p *Process[R]) Silent(k *Key[R], err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	if now.Sub(k.heard) > silentBeats*p.interval() {
		for w := range k.waiters {
			w.end(err)
		}
	}
	p.scheduleAt(k, now.Add(retryBeat-jitter(retryBeat/3)))
}

// Resets reports whether a heartbeat removes the process's requests for a key, which are then
// queued anew. It returns true once.
func (p *Process[R]) Resets(k *Key[R]) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	resets := k.surplus > mostSurplus
	if resets {
		k.surplus, k.missing = 0, 1
	}
	return resets
}

// Before implements heap.Item.
func (k *Key[R]) Before(other *Key[R]) bool { return k.due.Before(other.due) }

// Index implements heap.Item.
func (k *Key[R]) Index() *int { return &k.index }
