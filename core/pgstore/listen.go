package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lockkeeper/lockkeeper/internal/pause"
)

// listener is the store's connection for pushes: on a channel of its own, as long as the process
// lives. What else it needs for leases and notices is theirs.
type listener struct {
	inbox      string          // the channel
	settings   *pgx.ConnConfig // nil if there is nothing to listen to
	once       sync.Once
	subscribed atomic.Bool
}

const (
	// listenCheck is how often the store checks that what it sends arrives.
	listenCheck = 5 * time.Second
	// relistenAfter is the first pause before the store listens again.
	relistenAfter = 100 * time.Millisecond
)

func (l *listener) init() { l.inbox = newInbox() }

func newInbox() string { return "lk_" + strings.ToLower(rand.Text()[:16]) }

// listen starts to listen, in the background.
func (s *Store) listen() {
	if s.listener.settings == nil {
		return
	}
	s.listener.once.Do(func() {
		s.start(func() {
			again := pause.Growing{Min: relistenAfter, Max: listenCheck}
			for s.life.Err() == nil {
				if s.listenOnce() {
					again = pause.Growing{Min: relistenAfter, Max: listenCheck}
				}
				if s.listener.subscribed.Swap(false) && s.life.Err() == nil {
					s.telemetry.Reconnect(s.life)
				}
				pause.Sleep(s.life, again.Next())
			}
		})
	})
}

// listenOnce listens until the connection breaks. It reports whether it has listened.
func (s *Store) listenOnce() (listened bool) {
	conn, err := s.subscribe(s.life, s.listener.inbox)
	if err != nil {
		s.logFault(s.life, s.explain(err, false))
		return false
	}
	defer s.hangUp(conn)
	if err := s.greet(s.life, conn, s.listener.inbox); err != nil {
		s.logFault(s.life, err)
		return false
	}
	s.listener.subscribed.Store(true)
	s.subscribed()
	for s.receives(conn) && s.echoes(conn) {
	}
	return true
}

// receives passes on what arrives until it is time for the next check. It reports whether the
// connection has not ended.
func (s *Store) receives(conn *pgx.Conn) bool {
	ctx, cancel := context.WithTimeout(s.life, listenCheck)
	defer cancel()
	for {
		push, err := conn.WaitForNotification(ctx)
		if err != nil {
			return s.life.Err() == nil && ctx.Err() != nil && !conn.IsClosed()
		}
		s.received(push)
	}
}

// echoes sends a push on a connection of the pool and waits for it on the listening one. It returns
// false if the push does not arrive: the address may lead to another server now, and the listening
// connection still to the old one. A push that cannot be sent is no evidence.
func (s *Store) echoes(conn *pgx.Conn) bool {
	err := s.greet(s.life, conn, s.listener.inbox)
	if errors.Is(err, errUnheard) && s.life.Err() == nil {
		s.config.logger.WarnContext(s.life, "lockkeeper: pushes no longer arrive on a connection; the store listens on another one",
			"store", "postgresql")
		return false
	}
	return err == nil || !conn.IsClosed() && s.within(conn.Ping) == nil
}

// subscribe returns a connection that listens on a channel. It ends with hangUp.
func (s *Store) subscribe(ctx context.Context, channel string) (*pgx.Conn, error) {
	conn, err := s.connect(ctx, s.listener.settings)
	if err != nil {
		return nil, err
	}
	if err := s.within(func(ctx context.Context) error {
		_, err := conn.Exec(ctx, "LISTEN "+channel)
		return err
	}); err != nil {
		s.hangUp(conn)
		return nil, err
	}
	return conn, nil
}

func (s *Store) hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), s.config.timeout)
	defer cancel()
	_ = conn.Close(ctx)
}

// greeting is a push of a process to itself.
const greeting = "hello"

var errUnheard = wrongServer("what is sent by NOTIFY does not arrive where the store listens: %s", poolerAdvice)

// greet checks that pushes arrive on a connection, by sending one: through a pooler of transactions
// LISTEN succeeds, and nothing ever arrives. Then it returns errUnheard.
func (s *Store) greet(ctx context.Context, conn *pgx.Conn, channel string) error {
	notify := execute("SELECT pg_notify($1, $2)", channel, greeting)
	if _, err := run(ctx, s, step{operation: opNotify, urgency: finishing}, notify); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, s.config.timeout)
	defer cancel()
	for {
		push, err := conn.WaitForNotification(waiting)
		switch {
		case err != nil && waiting.Err() != nil && ctx.Err() == nil:
			return errUnheard
		case err != nil:
			return s.explain(err, false)
		case push.Payload == greeting:
			return nil
		}
		s.received(push)
	}
}

func (s *Store) received(push *pgconn.Notification) {
	for line := range strings.SplitSeq(push.Payload, "\n") {
		s.pushed(line)
	}
}

// within calls f for the store's timeout at most.
func (s *Store) within(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(s.life, s.config.timeout)
	defer cancel()
	return f(ctx)
}

// subscribed is called when pushes arrive from now on: earlier ones are lost.
func (s *Store) subscribed() { s.waiting.Subscribed() }

// pushed is called with each push.
func (s *Store) pushed(push string) { s.waiting.Pushed(push) }
