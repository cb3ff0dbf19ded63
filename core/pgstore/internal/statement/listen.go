package statement

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

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

// listener is the client's connection for pushes. It is on a channel of its own, as long as the
// process lives. Its callers bring the state for leases and notices.
type listener struct {
	inbox      string          // the channel
	settings   *pgx.ConnConfig // nil if the client listens nowhere
	once       sync.Once
	subscribed atomic.Bool
}

const (
	// listenCheck is the time between checks that pushes arrive.
	listenCheck = 5 * time.Second
	// relistenAfter is the first pause before the client listens again.
	relistenAfter = 100 * time.Millisecond
)

// Inbox returns the channel on which the client listens.
func (db *Client) Inbox() string { return db.listener.inbox }

// Listens reports whether pushes arrive.
func (db *Client) Listens() bool { return db.listener.subscribed.Load() }

func (l *listener) init() { l.inbox = newInbox() }

func newInbox() string { return "lk_" + strings.ToLower(rand.Text()[:16]) }

// Listen starts to listen in the background. It does nothing if the client listens nowhere.
func (db *Client) Listen() {
	if db.listener.settings == nil {
		return
	}
	db.listener.once.Do(func() {
		db.Start(func() {
			again := backoff.Growing{Min: relistenAfter, Max: listenCheck}
			for db.life.Err() == nil {
				if db.listenOnce() {
					again = backoff.Growing{Min: relistenAfter, Max: listenCheck}
				}
				if db.listener.subscribed.Swap(false) && db.life.Err() == nil {
					db.telemetry.Reconnect(db.life)
				}
				backoff.Sleep(db.life, again.Next())
			}
		})
	})
}

// listenOnce listens until the connection breaks. It reports whether it has listened.
func (db *Client) listenOnce() (listened bool) {
	conn, err := db.subscribe(db.life, db.listener.inbox)
	if err != nil {
		db.logFault(db.life, db.Explain(err, false))
		return false
	}
	defer db.hangUp(conn)
	if err := db.greet(db.life, conn, db.listener.inbox); err != nil {
		db.logFault(db.life, err)
		return false
	}
	db.listener.subscribed.Store(true)
	db.config.Subscribed()
	for db.receives(conn) && db.echoes(conn) {
	}
	return true
}

// receives passes on pushes until it is time for the next check. It reports whether the connection
// is still open.
func (db *Client) receives(conn *pgx.Conn) bool {
	ctx, cancel := context.WithTimeout(db.life, listenCheck)
	defer cancel()
	for {
		push, err := conn.WaitForNotification(ctx)
		if err != nil {
			return db.life.Err() == nil && ctx.Err() != nil && !conn.IsClosed()
		}
		db.received(push)
	}
}

// echoes sends a push on a connection of the pool and waits for it on the listening one. It returns
// false if the push does not arrive: the address may lead to another server now, and the listening
// connection still to the old one. If the push cannot be sent, that is no evidence.
func (db *Client) echoes(conn *pgx.Conn) bool {
	err := db.greet(db.life, conn, db.listener.inbox)
	if errors.Is(err, ErrUnheard) && db.life.Err() == nil {
		db.config.Logger.WarnContext(db.life,
			"lockkeeper: pushes no longer arrive on a connection; the store listens on another one",
			"store", "postgresql")
		return false
	}
	return err == nil || !conn.IsClosed() && db.within(conn.Ping) == nil
}

// subscribe returns a connection that listens on a channel. It ends with hangUp.
func (db *Client) subscribe(ctx context.Context, channel string) (*pgx.Conn, error) {
	conn, err := db.connect(ctx, db.listener.settings)
	if err != nil {
		return nil, err
	}
	if err := db.within(func(ctx context.Context) error {
		_, err := conn.Exec(ctx, "LISTEN "+channel)
		return err
	}); err != nil {
		db.hangUp(conn)
		return nil, err
	}
	return conn, nil
}

func (db *Client) hangUp(conn *pgx.Conn) {
	ctx, cancel := context.WithTimeout(context.Background(), db.config.Timeout)
	defer cancel()
	_ = conn.Close(ctx)
}

// greeting is a push of a process to itself.
const greeting = "hello"

// ErrUnheard is the error of a listening connection on which no pushes arrive.
var ErrUnheard = WrongServer("what is sent by NOTIFY does not arrive where the store listens: %s", poolerAdvice)

// greet checks that pushes arrive on a connection, by sending one. If none arrives, it returns
// ErrUnheard: through a pooler of transactions LISTEN succeeds, but no push ever arrives.
func (db *Client) greet(ctx context.Context, conn *pgx.Conn, channel string) error {
	notify := Execute("SELECT pg_notify($1, $2)", channel, greeting)
	if _, err := Run(ctx, db, Call{Operation: opNotify, Urgency: batch.Finishing}, notify); err != nil {
		return err
	}
	waiting, cancel := context.WithTimeout(ctx, db.config.Timeout)
	defer cancel()
	for {
		push, err := conn.WaitForNotification(waiting)
		switch {
		case err != nil && waiting.Err() != nil && ctx.Err() == nil:
			return ErrUnheard
		case err != nil:
			return db.Explain(err, false)
		case push.Payload == greeting:
			return nil
		}
		db.received(push)
	}
}

func (db *Client) received(push *pgconn.Notification) {
	for line := range strings.SplitSeq(push.Payload, "\n") {
		db.config.Pushed(line)
	}
}

// within calls f for the client's timeout at most.
func (db *Client) within(f func(ctx context.Context) error) error {
	ctx, cancel := context.WithTimeout(db.life, db.config.Timeout)
	defer cancel()
	return f(ctx)
}

// CheckListening checks by a push that pushes arrive. It returns ErrUnheard if they do not.
func (db *Client) CheckListening(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, db.Unhurried())
	defer cancel()
	channel := newInbox()
	conn, err := db.subscribe(ctx, channel)
	if err != nil {
		return db.Explain(err, false)
	}
	defer db.hangUp(conn)
	return db.greet(ctx, conn, channel)
}
