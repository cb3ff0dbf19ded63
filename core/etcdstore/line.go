package etcdstore

import (
	"context"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/internal/position"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

const (
	// beatEvery is how often a line whose first request is the next in the queue reads what it watches,
	// since a watch may hang; others do more seldom, by a beat for each request before theirs, up to
	// slowestBeat.
	beatEvery   = time.Second
	slowestBeat = 10 * time.Second
	// overdue is how long an event may take to arrive that a beat has found.
	overdue = 50 * time.Millisecond
)

// line waits for the grants of a process's requests for a key that calls await.
type line struct {
	store  *Store
	of     *key
	cancel context.CancelFunc
	poke   chan struct{} // has room for one

	learned *snapshot // by an acquire; guarded by the store's mu

	// Of its goroutine.
	seen  *snapshot
	watch *watching
}

// watching is a watch of a line.
type watching struct {
	at      string
	prefix  bool
	began   time.Time
	replies <-chan clientv3.WatchResponse
	cancel  context.CancelFunc
}

// join starts the line of a key, or tells it of another request. The caller holds mu.
func (s *Store) join(k *key) {
	if l := k.line; l != nil {
		l.wake()
		return
	}
	ctx, cancel := context.WithCancel(s.life)
	l := &line{store: s, of: k, cancel: cancel, poke: make(chan struct{}, 1), learned: k.seen}
	k.line, k.seen = l, nil
	if !s.start(func() { l.run(ctx) }) {
		cancel()
	}
}

// leave ends the line of a key if no call awaits a request. The caller holds mu.
func (s *Store) leave(k *key) {
	if l := k.line; l != nil && !l.needed() {
		l.cancel()
		k.line = nil
	}
}

// needed reports whether a call awaits a request. The caller holds mu.
func (l *line) needed() bool {
	for _, r := range l.of.requests {
		if r.stage == waiting && r.awaiting > 0 {
			return true
		}
	}
	return false
}

func (l *line) wake() {
	select {
	case l.poke <- struct{}{}:
	default:
	}
}

// learn notes what an acquire has read. The caller holds mu.
func (l *line) learn(seen *snapshot) {
	if l.learned == nil || l.learned.revision < seen.revision {
		l.learned = seen
	}
}

// takeLearned takes over what an acquire has read, if it is newer.
func (l *line) takeLearned() {
	l.store.mu.Lock()
	defer l.store.mu.Unlock()
	if l.learned != nil && (l.seen == nil || l.learned.revision > l.seen.revision) {
		l.seen = l.learned
	}
	l.learned = nil
}

func (l *line) run(ctx context.Context) {
	defer l.cancel()
	defer l.stopWatch()
	pause := backoff.Growing{Min: 10 * time.Millisecond, Max: 250 * time.Millisecond}
	l.takeLearned()
	for ctx.Err() == nil {
		if l.seen == nil {
			var err error
			if l.seen, err = l.read(ctx); err != nil {
				if !backoff.Sleep(ctx, pause.Next()) {
					return
				}
				continue
			}
			pause.Reset()
		}
		switch l.decide(ctx) {
		case decidedAll:
			return
		case changed:
			l.seen = nil
		case unchanged:
			if !l.await(ctx) && !backoff.Sleep(ctx, pause.Next()) {
				return
			}
		}
	}
}

// read reads the entries of the key.
func (l *line) read(ctx context.Context) (*snapshot, error) {
	s := l.store
	return run(ctx, s, opAwait, func(ctx context.Context, _ bool) (*snapshot, error) {
		reply, err := s.client.Get(ctx, l.of.path, clientv3.WithPrefix())
		if err != nil {
			return nil, err
		}
		return snapshotOf(reply.Header.Revision, reply.Kvs), nil
	})
}

// decision is what a line has done about a snapshot.
type decision int

const (
	unchanged  decision = iota // some requests wait
	changed                    // the state that was read is old: a step was taken, or could not be
	decidedAll                 // no call awaits any
)

// decide grants the requests that hold by what was seen.
func (l *line) decide(ctx context.Context) decision {
	s := l.store
	q := l.seen.queue()
	var (
		tier *entry // the one of a request with a reserve that fits
		old  *lease // one that is near its end
	)
	s.mu.Lock()
	now := time.Now()
	for id, r := range l.of.requests {
		if r.stage != waiting || l.seen.revision < r.entry.Created {
			continue
		}
		e, there := l.seen.entries[id]
		switch {
		case !there || e.Created != r.entry.Created:
			s.endRequest(r, nil) // its place is lost
			continue
		case e.mod > r.entry.mod:
			r.entry = e
		}
		switch {
		case r.awaiting == 0:
		case q.Holding(id) && !r.lease.dead && r.lease.lasts(now).Sub(now) < r.lease.ttl/4:
			old = r.lease
		case q.Holding(id):
			s.hold(r, now)
		case e.Reserve > 0 && tier == nil && q.Fits(e.Entry):
			tier = &e
		}
	}
	needed := l.needed()
	if !needed && l.of.line == l {
		l.of.line = nil
	}
	s.mu.Unlock()
	switch {
	case !needed:
		return decidedAll
	case old != nil:
		if s.leases.keepAlive(ctx, old) != nil {
			backoff.Sleep(ctx, keepEvery/10)
		}
		return changed
	case tier != nil:
		tier.Order, tier.Held = q.Next(l.seen.revision), true
		if err := s.rewrite(ctx, tier, l.seen.revision, l.of.path); err != nil {
			backoff.Sleep(ctx, keepEvery/10)
		}
		return changed
	}
	return unchanged
}

// target returns what to watch: the entry that the first awaited request waits for, or the prefix of all
// entries; and how many requests stand before it.
func (l *line) target(q *position.Queue) (at string, prefix bool, ahead int) {
	s := l.store
	s.mu.Lock()
	defer s.mu.Unlock()
	at, ahead = l.of.path, -1
	for i, w := range q.Waiting {
		r := l.of.requests[w.ID]
		if r == nil || r.awaiting == 0 || r.stage != waiting {
			continue
		}
		if w.Reserve > 0 {
			return l.of.path, true, max(ahead, 0)
		}
		if ahead < 0 {
			ahead = i
			at += q.Behind(w.ID)
		}
	}
	return at, at == l.of.path, max(ahead, 0)
}

// await waits until what was seen may have changed. It returns false if that is to be slowed down.
func (l *line) await(ctx context.Context) bool {
	at, prefix, ahead := l.target(l.seen.queue())
	if w := l.watch; w == nil || w.at != at || w.prefix != prefix {
		l.stopWatch()
		watched, cancel := context.WithCancel(ctx)
		l.watch = &watching{at, prefix, time.Now(), l.store.watch(watched, at, prefix, l.seen.revision+1), cancel}
	}
	beat := time.NewTimer(min(beatEvery*time.Duration(max(ahead, 1)), slowestBeat))
	defer beat.Stop()
	select {
	case reply, ok := <-l.watch.replies:
		return l.hear(reply, ok)
	case <-l.poke:
		l.takeLearned()
	case <-beat.C:
		l.beat(ctx)
	case <-ctx.Done():
	}
	return true
}

// hear takes over the events of a watch. It returns false if the watch has ended soon after it began.
func (l *line) hear(reply clientv3.WatchResponse, ok bool) bool {
	if !ok || reply.Err() != nil { // compacted, without a leader, or of a client that is closed
		began := l.watch.began
		l.stopWatch()
		l.seen = nil
		return time.Since(began) > keepEvery/10
	}
	for _, event := range reply.Events {
		if !l.watch.prefix {
			l.seen = nil
			return true
		}
		l.seen.apply(event)
	}
	l.seen.revision = max(l.seen.revision, reply.Header.Revision)
	return true
}

func (l *line) stopWatch() {
	if l.watch != nil {
		l.watch.cancel()
		l.watch = nil
	}
}
