package redisstore

import (
	"context"
	"fmt"
	"runtime"
	"sync"
	"time"
)

// What is asked of one server while other calls to it are under way goes together: it costs the server,
// and the client, a fraction of what as many calls would. Whoever asks while nobody else does has a call of
// its own, at once.

const (
	// minTakers is how many calls are under way before requests are collected: at least one that the server
	// works on, and one that is on its way.
	minTakers = 2
	// patience is how long a request waits for one of them to end, beside what the server needs for what they ask:
	// that is less than slowWork for each part of it. If the server is far away it then goes in one more call, or it
	// would wait for a second round trip; but one more call to a server that is busy would not be answered earlier.
	patience = time.Millisecond
	slowWork = 10 * time.Microsecond
	// maxWaiting bounds the memory of those that wait.
	maxWaiting = 1 << 16
)

// request is what goes with others.
type request interface {
	inLane() *turn
	// work is its part of what one call may do.
	work() int
}

// turn is what a lane knows of a request.
type turn struct {
	since time.Time     // it waits
	sent  time.Time     // or about to be; zero if it was not
	state turnState     // the lane's mu guards it, and err until it has ended
	ended chan struct{} // has room for one
	err   error
}

func (t *turn) inLane() *turn { return t }

type turnState int

const (
	turnWaits turnState = iota
	turnSent            // or about to be
	turnEnded           // it was answered, or its deadline has come
	turnLeft            // its caller has left
)

// lane is where requests to one server wait, while as many calls are under way as may be.
type lane[R request] struct {
	start   func(func()) bool   // has the store wait for a call before it closes
	take    func(*lane[R], []R) // has a batch answered
	few     int                 // calls under way before requests are collected
	most    int                 // calls under way
	maxWork int                 // of a batch, since others wait for it
	// A request waits until limit has passed, and for half of silence if the server answers nobody for
	// that long. If they are zero, it expires otherwise.
	silence, limit time.Duration

	mu      sync.Mutex
	takers  int // calls under way
	working int // the work of those of them that have a batch
	waiting []R
	heard   time.Time   // when the server last answered, or was first asked
	timer   *time.Timer // for the first of those that wait
	timed   bool        // it runs
}

// begin reports whether a caller may make a call of its own. It then ends it with end.
func (l *lane[R]) begin() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.takers >= l.few {
		return false
	}
	l.taking()
	return true
}

// taking notes that one more call is under way. A server that nobody has asked is not silent. The caller
// holds mu.
func (l *lane[R]) taking() {
	if l.takers == 0 && l.silence > 0 {
		l.heard = time.Now()
	}
	l.takers++
}

// end ends a call, or has it go on, in the background, with what has come meanwhile.
func (l *lane[R]) end() {
	if batch, work := l.next(0); batch != nil {
		l.goOn(batch, work)
	}
}

// hear notes that the server has answered.
func (l *lane[R]) hear() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.heard = time.Now()
}

func (l *lane[R]) goOn(batch []R, work int) {
	takeAll := func() {
		for ; batch != nil; batch, work = l.next(work) {
			l.take(l, batch)
			runtime.Gosched() // those who were answered are about to ask again
		}
	}
	if !l.start(takeAll) { // the store is closed, and says so
		takeAll()
	}
}

// next returns what goes with the next call, after one with so much work is done, and how much work it is. If
// nobody waits it returns nothing, and the call has ended.
func (l *lane[R]) next(done int) (batch []R, work int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	n, now := 0, time.Now()
	for ; n < len(l.waiting); n++ {
		r := l.waiting[n]
		if r.inLane().state != turnWaits {
			continue
		}
		if l.silent(now) && now.Sub(r.inLane().since) >= l.silence/2 { // it would be answered too late, if at all
			r.inLane().end(late(context.DeadlineExceeded, false))
			continue
		}
		if work+r.work() > l.maxWork && len(batch) > 0 {
			break
		}
		work += r.work()
		r.inLane().state, r.inLane().sent = turnSent, now
		batch = append(batch, r)
	}
	clear(l.waiting[:n])
	if l.waiting = l.waiting[n:]; len(l.waiting) == 0 {
		l.waiting = nil
	}
	if batch == nil {
		l.takers--
	}
	l.working += work - done
	return batch, work
}

// patience is how long a request waits for a call to end: for a part of its limit at most, which is looked at
// then, too. The caller holds mu.
func (l *lane[R]) patience() time.Duration {
	busy := patience + time.Duration(l.working)*slowWork
	if l.limit > 0 {
		return min(busy, max(patience, l.limit/4))
	}
	return busy
}

// add has a request go with the next call. It reports false if too many wait. A call that has ended
// meanwhile is begun again.
func (l *lane[R]) add(r R) bool {
	l.mu.Lock()
	if len(l.waiting) >= maxWaiting {
		l.mu.Unlock()
		return false
	}
	l.waiting = append(l.waiting, r)
	idle := l.takers < l.few
	if idle {
		l.taking()
	} else {
		l.watch(l.patience())
	}
	l.mu.Unlock()
	if idle {
		l.end()
	}
	return true
}

// watch has somebody look after the requests that wait, in a while. The caller holds mu.
func (l *lane[R]) watch(in time.Duration) {
	switch {
	case l.timed:
		return
	case l.timer == nil:
		l.timer = time.AfterFunc(in, l.overdue)
	default:
		l.timer.Reset(in)
	}
	l.timed = true
}

// overdue begins one more call if a request has waited for too long, and ends the wait of those that
// have no time left.
func (l *lane[R]) overdue() {
	l.mu.Lock()
	l.timed = false
	now, begin := time.Now(), false
	for len(l.waiting) > 0 {
		t := l.waiting[0].inLane()
		waited := now.Sub(t.since)
		if t.state == turnWaits && (l.limit == 0 || waited < l.limit) {
			enough := l.patience()
			if waited >= enough {
				if begin = l.takers < l.most; begin {
					l.taking()
				}
				waited = 0 // for the next look
			}
			l.watch(enough - waited)
			break
		}
		if t.state == turnWaits {
			t.end(late(context.DeadlineExceeded, false))
		}
		clear(l.waiting[:1])
		l.waiting = l.waiting[1:]
	}
	l.mu.Unlock()
	if begin {
		l.end()
	}
}

// silent reports whether the server has been asked, and has answered nobody, for too long.
func (l *lane[R]) silent(now time.Time) bool { return l.silence > 0 && now.Sub(l.heard) >= l.silence }

// end answers a request. The caller holds the lane's mu.
func (t *turn) end(err error) {
	t.state, t.err = turnEnded, err
	t.ended <- struct{}{} // whoever hears it may use the request for something else
}

// answer answers those of a batch who still wait, of whom the server may have been heard.
func (l *lane[R]) answer(batch []R, heard bool, of func(i int, r R) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if heard {
		l.heard = time.Now()
	}
	for i, r := range batch {
		if t := r.inLane(); t.state == turnSent {
			t.end(of(i, r))
		}
	}
}

// expire answers a request that has had no turn in time. One that was sent is answered when its call ends.
func (l *lane[R]) expire(r R) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if t := r.inLane(); t.state == turnWaits {
		t.end(late(context.DeadlineExceeded, false))
	}
}

// leave takes back a request whose caller leaves. It reports false if it has been answered.
func (l *lane[R]) leave(r R, why error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := r.inLane()
	if t.state == turnEnded {
		return false
	}
	t.err = late(why, t.state == turnSent)
	t.state = turnLeft
	return true
}

func late(why error, sent bool) error { return explain(fmt.Errorf("no reply in time: %w", why), sent) }

// newLane returns a lane of a node whose batches are answered by take.
func newLane[R request](s *Store, take func(*lane[R], []R)) *lane[R] {
	return &lane[R]{start: s.start, take: take, few: minTakers, most: s.mostTakers()}
}

// mostTakers leaves half of the connections to others.
func (s *Store) mostTakers() int { return max(minTakers, s.poolSize/2) }
