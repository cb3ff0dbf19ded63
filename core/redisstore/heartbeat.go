package redisstore

import (
	"math/rand/v2"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
)

const (
	// beatEvery is the time between heartbeats of a key, unless there are more than maxBeats keys: then
	// the process sends that many heartbeats in a second.
	beatEvery = time.Second
	maxBeats  = 2000
	// maxBeatKeys is how many keys share a script call on a single server: about those that are due
	// within shareEvery, since their heartbeats are sent together.
	maxBeatKeys = 100
	shareEvery  = maxBeatKeys * time.Second / maxBeats * 4 / 5
	// maxWholeBeats is their number for keys at which more than usual is to be done.
	maxWholeBeats = 20
	// silentBeats is for how many intervals a waiter puts up with a silent server. Its place may be lost
	// earlier, and is restored if the server replies in time.
	silentBeats = 6
	// retryBeat is when a failed heartbeat is retried.
	retryBeat = 300 * time.Millisecond
	// recheckAfter is when a heartbeat is repeated that knows less than the process.
	recheckAfter = 50 * time.Millisecond
	// mostSurplus is how many heartbeats in a row may know more: a withdrawal may be on its way.
	mostSurplus = 2
)

// waitedKey is a key with queued requests of this process.
type waitedKey struct {
	keys    leaseKeys
	linger  int64
	waiters map[*waiter]struct{}
	due     time.Time // the next heartbeat
	heard   time.Time // last reply of the store
	missing int       // consecutive heartbeats of which the store knew fewer waiters
	surplus int       // or more
	index   int       // in the heap
}

func jitter(most time.Duration) time.Duration { return rand.N(max(most, 1)) }

// sendBeats sends heartbeats when they are due, while there are waiters.
func (s *Store) sendBeats() {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for {
		due, next, more := s.waiters.dueNow()
		if !more {
			return
		}
		if len(due) > 0 {
			s.beat(due)
			continue
		}
		if echo := s.checkInbox(); echo.Before(next) {
			next = echo
		}
		timer.Reset(time.Until(next))
		select {
		case <-timer.C:
		case <-s.waiters.changed:
		case <-s.redis.Life().Done():
			return
		}
	}
}

// beat sends heartbeats, and handles the replies. One script does what is usual for many keys,
// another one whatever is to be done at the rest.
func (s *Store) beat(due []*waitedKey) {
	head := []any{s.inbox.process, strconv.FormatInt(elapsed(), 10), s.pushMode(), s.waiters.deadAfter().Microseconds()}
	rest := s.beatEach(due, maxBeatKeys, beatLeases.Call(nil, head...), func(c *script.Call, k *waitedKey) {
		c.Keys = append(c.Keys, k.keys[0], k.keys[3])
	})
	s.beatEach(rest, maxWholeBeats, beatLease.Call(nil, append(head, s.inbox.channels)...), func(c *script.Call, k *waitedKey) {
		c.Keys, c.Args = append(c.Keys, k.keys[:]...), append(c.Args, k.linger, s.waiters.resets(k))
	})
}

// beatEach sends heartbeats, several keys in a call on a single server. It returns the keys at which
// more is to be done. add adds a key to a call.
func (s *Store) beatEach(due []*waitedKey, together int, call script.Call, add func(c *script.Call, k *waitedKey)) (rest []*waitedKey) {
	if _, cluster := s.client.(*redis.ClusterClient); cluster {
		together = 1
	}
	var calls []script.Call
	groups := slices.Collect(slices.Chunk(due, together))
	for _, group := range groups {
		c := call
		c.Args = slices.Clip(c.Args)
		for _, k := range group {
			add(&c, k)
		}
		calls = append(calls, c)
	}
	broken := s.inbox.broken()
	var mu sync.Mutex // guards rest
	_ = s.redis.RunEach(s.redis.Life(), opBeat, script.Ordinary, calls, func(i int, reply any, err error) error {
		var r script.Reader
		if err == nil {
			r = *script.Fields(reply)
		}
		for _, k := range groups[i] {
			places, ends := 0, time.Duration(0)
			if err == nil {
				places, ends = int(r.Number()), r.Micros()
				err = r.Err
			}
			if err != nil {
				s.waiters.silent(k, err)
			} else if places < 0 || s.waiters.heard(k, places, ends, broken) {
				mu.Lock()
				rest = append(rest, k)
				mu.Unlock()
			}
		}
		return nil
	})
	return rest
}

// interval returns the time between the heartbeats of a key. The caller holds mu.
func (ws *waiters) interval() time.Duration {
	return max(beatEvery, time.Duration(len(ws.keys))*time.Second/maxBeats)
}

// deadAfter returns the time without a heartbeat after which the store may take the process for dead.
func (ws *waiters) deadAfter() time.Duration {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return 3 * ws.interval()
}

// schedule sets the next heartbeat of a key: when a hold ends, since there is no push then, or after
// the usual time. The caller holds mu.
func (ws *waiters) schedule(k *waitedKey, ends time.Duration) {
	wait := ws.interval()
	wait -= jitter(wait / 5)
	switch {
	case ends > 0 && ends < shareEvery:
		ws.scheduleAt(k, time.Now().Add(ends+time.Millisecond))
		return
	case ends > 0 && ends < wait:
		wait = ends + shareEvery
	}
	due := time.Now().Add(wait)
	ws.scheduleAt(k, due.Add(-(due.Sub(ws.began) % shareEvery))) // together with others
}

func (ws *waiters) scheduleAt(k *waitedKey, due time.Time) {
	if k.index < 0 {
		return
	}
	k.due = due
	ws.due.Fix(k)
	ws.notify()
}

// beatSoon makes the heartbeat of a key due.
func (ws *waiters) beatSoon(record string) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if k := ws.keys[record]; k != nil {
		ws.scheduleAt(k, time.Now())
	}
}

// beatNow makes all heartbeats due.
func (ws *waiters) beatNow() {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	now := time.Now()
	for _, k := range ws.due {
		k.due = now // all are equal, so the heap stays valid
	}
	ws.notify()
}

// startBeating reports whether the caller has to start the goroutine that sends heartbeats.
func (ws *waiters) startBeating() bool {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	start := !ws.beating && len(ws.due) > 0
	ws.beating = ws.beating || start
	return start
}

// dueNow returns the keys whose heartbeats are due, and when the next one is. more is false if there
// are no keys.
func (ws *waiters) dueNow() (due []*waitedKey, next time.Time, more bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if len(ws.due) == 0 {
		ws.beating = false
		return nil, next, false
	}
	now := time.Now()
	wait := ws.interval()
	for !ws.due[0].due.After(now) {
		k := ws.due[0]
		due = append(due, k)
		k.due = now.Add(wait) // until the reply changes it
		ws.due.Fix(k)
	}
	ws.sleepsUntil = ws.due[0].due
	return due, ws.sleepsUntil, true
}

// notify wakes the goroutine that sends heartbeats if one is due before it wakes up by itself. The
// caller holds mu.
func (ws *waiters) notify() {
	if len(ws.due) == 0 || !ws.due[0].due.Before(ws.sleepsUntil) {
		return
	}
	select {
	case ws.changed <- struct{}{}:
	default:
	}
}

// heard handles the reply to a heartbeat of a key: how many requests of the process wait there, and
// when the first hold ends. broken says that pushes do not arrive. It reports whether the store is to
// remove the requests, since it knows some that the process does not.
func (ws *waiters) heard(k *waitedKey, places int, ends time.Duration, broken bool) (surplus bool) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	now := time.Now()
	k.heard = now
	for w := range k.waiters {
		if w.awaited == 0 && w.asking == 0 && now.Sub(w.left) > keptUnawaited {
			ws.remove(w)
		}
	}
	if len(k.waiters) == 0 {
		return false
	}
	switch n := len(k.waiters); {
	case places < n:
		k.surplus = 0
		if k.missing++; k.missing == 1 && !broken { // a push may be on its way
			ws.scheduleAt(k, now.Add(recheckAfter))
			return false
		}
		k.missing = 0
		for w := range k.waiters {
			w.ask = true
			w.wake()
		}
	case places > n && ws.inFlight == 0: // otherwise a reply may be on its way
		k.missing = 0
		k.surplus++
	default:
		k.missing, k.surplus = 0, 0
	}
	ws.schedule(k, ends)
	return k.surplus > mostSurplus
}

// silent records that the store did not reply to a heartbeat of a key, and ends the waits if the
// places must be lost.
func (ws *waiters) silent(k *waitedKey, err error) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	now := time.Now()
	if now.Sub(k.heard) > silentBeats*ws.interval() {
		for w := range k.waiters {
			w.end(err)
		}
	}
	ws.scheduleAt(k, now.Add(retryBeat-jitter(retryBeat/3)))
}

// resets returns the argument of a heartbeat that has the store remove the process's requests for a
// key, which are then queued anew.
func (ws *waiters) resets(k *waitedKey) string {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if k.surplus > mostSurplus {
		k.surplus, k.missing = 0, 1
		return "1"
	}
	return "0"
}

// Before implements heap.Item.
func (k *waitedKey) Before(other *waitedKey) bool { return k.due.Before(other.due) }

// Index implements heap.Item.
func (k *waitedKey) Index() *int { return &k.index }
