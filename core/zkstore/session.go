package zkstore

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// session is a session of the client's connection. Whatever was learned under one is void under any
// other.
type session struct {
	id     int64
	length time.Duration // as negotiated
	over   chan struct{} // closed when it has ended, or another one has begun
}

func (s *session) ended() bool { return isClosed(s.over) }

// longest returns the longest TTL of a hold: four fifths of the session. A server reports to its
// leader only every half tick which sessions it has heard of, and one that is cut off reports
// nothing. So the leader may count a session from an earlier request than the last one that was
// answered, which is at most two beats older.
func (s *session) longest() time.Duration { return s.length * 4 / 5 }

// beatEvery returns how often the store sends something while it has entries.
func (s *session) beatEvery() time.Duration {
	return min(max(s.length/16, 100*time.Millisecond), 2*time.Second)
}

// link is the state of the client's connection. It learns of every event: the client calls it, and
// drops events for a channel that is full.
type link struct {
	patience time.Duration // for the reply of a handshake
	hosts    hosts
	life     <-chan struct{} // closed when the store is
	severed  atomic.Bool     // no connection is made any more
	again    func()          // called when a session was resumed, or another one has begun
	ended    func(*session)

	mu      sync.Mutex
	wire    *wire
	current *session // nil if there was none yet, or it has ended
	up      bool
	ready   bool          // the server knows the store's credentials
	changed chan struct{} // closed at the next change
	cause   error         // of the last failure to connect
	refused error         // of the credentials: waiting does not help
	since   time.Time     // when it was last up, or the store's begin
}

func newLink(patience time.Duration, life <-chan struct{}) *link {
	return &link{patience: patience, life: life, changed: make(chan struct{}), since: time.Now()}
}

// change wakes the waiters for a change. The caller holds mu.
func (l *link) change() {
	close(l.changed)
	l.changed = make(chan struct{})
}

func (l *link) opened(w *wire) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.wire = w
}

func (l *link) failed(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cause = err
}

// authenticated records that the server has accepted the credentials, or has refused them.
func (l *link) authenticated(err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ready, l.refused = err == nil, err
	l.change()
}

// event is called by the client with each event of the session. It does not block.
func (l *link) event(state zk.State) {
	switch state {
	case zk.StateHasSession:
		l.begins()
	case zk.StateExpired:
		l.hosts.Connected() // the server works, so the client does not rest
		l.mu.Lock()
		over := l.end()
		l.mu.Unlock()
		if over != nil {
			l.ended(over)
		}
	case zk.StateDisconnected:
		l.mu.Lock()
		if l.up {
			l.up, l.since = false, time.Now()
			l.change()
		}
		l.mu.Unlock()
	}
}

// begins records that the connection has a session: the same one, or a new one.
func (l *link) begins() {
	l.mu.Lock()
	id, length := l.wire.greeting()
	var over *session
	first := l.current == nil
	if !first && l.current.id != id {
		over = l.end()
	}
	if l.current == nil {
		l.current = &session{id: id, length: length, over: make(chan struct{})}
	}
	l.up = true
	l.change()
	l.mu.Unlock()
	if over != nil {
		l.ended(over)
	}
	l.again()
}

// end ends the current session, and returns it. The caller holds mu.
func (l *link) end() (over *session) {
	if over = l.current; over != nil {
		close(over.over)
	}
	l.current = nil
	l.up, l.since = false, time.Now()
	l.change()
	return over
}

// errNoConnection is the error of a call while there is no connection.
type errNoConnection struct{ cause error }

func (e errNoConnection) Error() string {
	text := "there is no connection to ZooKeeper"
	if e.cause != nil {
		text += ": " + e.cause.Error()
	}
	return text
}

func (e errNoConnection) Unwrap() error { return e.cause }

// await returns the session once calls can be made under it, and an error if there is none at the
// time of late, or when ctx ends.
func (l *link) await(ctx context.Context, late <-chan time.Time) (*session, error) {
	for {
		l.mu.Lock()
		current, changed, refused := l.current, l.changed, l.refused
		up := l.up && l.ready && current != nil
		l.mu.Unlock()
		switch {
		case refused != nil:
			return nil, refused
		case up:
			return current, nil
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, ctx.Err()
		case <-late:
			return nil, errNoConnection{l.lastFailure()}
		}
	}
}

// session returns the current session, nil if there is none.
func (l *link) session() *session {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.current
}

// lastFailure returns the error of the last failure to connect.
func (l *link) lastFailure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.cause
}

// changes returns a channel that is closed at the next change.
func (l *link) changes() <-chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.changed
}

// silence returns for how long there has been no connection.
func (l *link) silence() time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.up {
		return 0
	}
	return time.Since(l.since)
}

// present returns the present connection, nil before the first one.
func (l *link) present() *wire {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.wire
}

// suspect closes a connection if nothing was heard on it since a call began that got no reply, for half
// a second at least, so that the client tries the next server. It would wait for two thirds of the
// session.
func (l *link) suspect(w *wire, began time.Time) {
	if w != nil && w.silent(began) {
		l.failed(errSilent)
		_ = w.Close()
	}
}

// refuse closes a connection on which the server has said that the session has ended, or moved to
// another one: the client learns that only when it connects again.
func (l *link) refuse(w *wire) {
	if w != nil {
		_ = w.Close()
	}
}

var errSilent = errors.New("the server does not reply")

// sever closes the connection for good, and leaves the session to expire.
func (l *link) sever() {
	l.severed.Store(true)
	if w := l.present(); w != nil {
		w.sever()
	}
}

// tooLong returns the error of a TTL above the session's limit.
func (s *session) tooLong(ttl time.Duration) error {
	return store.Misconfigured(store.OtherCause, fmt.Errorf("a TTL of %v, lock-delay included, is above %v, four fifths of the "+
		"negotiated session of %v: set a shorter lock.WithTTL, or a longer zkstore.WithSession if the server's maxSessionTimeout allows it",
		ttl, s.longest(), s.length))
}
