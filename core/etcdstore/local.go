package etcdstore

import (
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// key is a key with requests of this process. The store's mu guards it.
type key struct {
	path     string // the prefix of its entries
	requests map[string]*request
	line     *line     // waits for grants; nil while no call awaits any
	seen     *snapshot // the latest one with a request that waits; nil before
}

// stage is the progress of a request.
type stage int

const (
	asked   stage = iota // an acquire is in flight, or its outcome is unknown
	waiting              // the server has its entry
	holding
	ended // its entry is being deleted, or is gone
)

// request is a request of this process. The store's mu guards it.
type request struct {
	of      *key
	req     store.LeaseRequest // with its place, if it has waited
	entry   entry
	stage   stage
	lease   *lease        // that its entry hangs on
	changed chan struct{} // closed when the stage changes, and replaced
	err     error         // if ended: that of its waiting calls; nil if the place was lost
	unknown bool          // whether the server has its entry is not known
	asking  int           // acquires in flight
	late    bool          // a try to acquire it may still be in flight

	awaiting int // calls

	granted time.Time // for people
	sent    time.Time // as a hold: when its TTL began, or later
	ends    time.Time // as a hold: its end; else that of a place which no call awaits, zero while one does
	untaken bool
	timer   *time.Timer
}

const (
	// placeFor is how long a place is kept while no call awaits it.
	placeFor = 6 * time.Second
	// withdrawnFor is how long the ID of a released request is kept.
	withdrawnFor = time.Minute
)

// find returns a request of this process, or nil. The caller holds mu.
func (s *Store) find(path, id string) *request {
	if k := s.keys[path]; k != nil {
		return k.requests[id]
	}
	return nil
}

// ask returns the request that an acquire is about. The caller holds mu.
func (s *Store) ask(path string, req *store.LeaseRequest) *request {
	k := s.keys[path]
	if k == nil {
		k = &key{path: path, requests: make(map[string]*request)}
		s.keys[path] = k
	}
	r := k.requests[req.ID]
	if r == nil {
		r = &request{of: k, req: *req, changed: make(chan struct{})}
		k.requests[req.ID] = r
	}
	return r
}

// forget removes a request. The caller holds mu.
func (s *Store) forget(r *request) {
	r.stop()
	r.hang(nil)
	if r.of.requests[r.req.ID] == r {
		delete(r.of.requests, r.req.ID)
	}
	if len(r.of.requests) == 0 && s.keys[r.of.path] == r.of {
		delete(s.keys, r.of.path)
	}
}

// endRequest ends a request: its waiting calls return err, or queue it anew if that is nil. The caller holds mu.
func (s *Store) endRequest(r *request, err error) {
	r.err = err
	r.become(ended)
	s.forget(r)
}

// become changes the stage. The caller holds mu.
func (r *request) become(next stage) {
	r.stage = next
	close(r.changed)
	r.changed = make(chan struct{})
}

// hang notes the lease that the entry hangs on. The caller holds mu.
func (r *request) hang(on *lease) {
	if r.lease == on {
		return
	}
	if r.lease != nil {
		delete(r.lease.attached, r)
	}
	if r.lease = on; on != nil {
		on.attached[r] = struct{}{}
	}
}

// until sets when the request ends by itself; zero is never. The caller holds mu.
func (s *Store) until(r *request, end time.Time) {
	r.ends = end
	switch {
	case end.IsZero():
		r.stop()
	case r.timer == nil:
		r.timer = time.AfterFunc(time.Until(end), func() { s.ring(r) })
	default:
		r.timer.Reset(time.Until(end))
	}
}

func (r *request) stop() {
	if r.timer != nil {
		r.timer.Stop()
	}
}

// ring is called at the end of a request.
func (s *Store) ring(r *request) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.expire(r, time.Now())
}

// expire ends a request whose time is over, and reports whether it is. The caller holds mu.
func (s *Store) expire(r *request, now time.Time) bool {
	if r.stage == ended || r.ends.IsZero() || now.Before(r.ends) || s.life.Err() != nil {
		return r.stage == ended
	}
	s.condemn(r)
	return true
}

// condemn ends a request, and deletes its entry in the background. The caller holds mu.
func (s *Store) condemn(r *request) {
	c := &condemned{deletion: s.deletionOf(r), lease: r.lease, done: make(chan struct{})}
	s.endRequest(r, nil)
	s.sentence(c)
}

// takenUp is the least TTL of a grant that is to be taken up.
const takenUp = 100 * time.Millisecond

// hold makes a request a hold. Its entry is on the lease of waiting requests, so it is to be taken up,
// by a renewal, unless its TTL is so short that it would hardly last for that; until then it is shorter.
// The caller holds mu.
func (s *Store) hold(r *request, sent time.Time) {
	r.sent, r.granted, r.untaken = sent, time.Now(), r.req.TTL >= takenUp
	end := sent.Add(r.req.TTL)
	if r.untaken {
		end = sent.Add(r.req.TTL - r.req.TTL/16)
	}
	if last := r.lease.lasts(sent); last.Before(end) {
		end, r.untaken = last, true
	}
	r.become(holding)
	s.until(r, end)
	s.openInbox()
}

// grant returns the grant of a hold. The caller holds mu.
func (r *request) grant() store.Grant {
	return store.Grant{
		Sent: r.sent, TTL: max(r.ends.Sub(r.sent), 1), Untaken: r.untaken, Fence: r.entry.firstFence(), LastFence: r.entry.lastFence(), Place: r.req.Place,
	}
}

// isWithdrawn reports whether a request was released before. The caller holds mu.
func (s *Store) isWithdrawn(id string) bool {
	return s.withdrawn.Len() > 0 && s.withdrawn.Get(id, time.Now().UnixMicro()) != nil
}

// withdraw notes the release of a request. The caller holds mu.
func (s *Store) withdraw(id string) {
	now := time.Now()
	if !s.isWithdrawn(id) && s.withdrawn.Room(1, now.UnixMicro()) {
		s.withdrawn.Add(id, struct{}{}, now.Add(withdrawnFor).UnixMicro(), now.UnixMicro())
	}
}

// stopTimers stops the timers of all requests, of a store that is closed.
func (s *Store) stopTimers() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, k := range s.keys {
		for _, r := range k.requests {
			r.stop()
		}
	}
}
