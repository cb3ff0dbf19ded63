package statement

import (
	"context"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
)

// outbox has pushes to other processes that are to be sent. A push has a transaction of its own,
// after that of its step. NOTIFY takes a lock on the whole server at the commit, and would keep it
// until the step's writes are on the disk. Pushes that come while others are sent share the next
// transaction.
type outbox struct {
	mu      sync.Mutex
	pushes  map[string][]string // by channel
	sending bool
	sent    chan struct{} // closed when the pushes are sent; nil if there were none
}

var opNotify = Operation{"notify", ReleaseShare}

// maxPayload is the largest payload of NOTIFY in bytes. The server accepts less than 8000.
const maxPayload = 7900

// Deliver delivers pushes in the background. Each begins with its channel. They may be lost.
func (db *Client) Deliver(pushes []string) {
	others := 0
	for _, push := range pushes {
		if channel, text, _ := strings.Cut(push, " "); channel == db.listener.inbox {
			db.config.Pushed(text)
		} else {
			others++
			db.outbox.add(channel, text)
		}
	}
	if others > 0 && db.outbox.begin() && !db.Start(db.send) { // the client is closed
		db.outbox.take()
		db.outbox.take()
	}
}

func (o *outbox) add(channel, push string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.pushes == nil {
		o.pushes = make(map[string][]string)
	}
	o.pushes[channel] = append(o.pushes[channel], push)
}

// begin reports whether the caller has to start to send.
func (o *outbox) begin() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	begin := !o.sending && len(o.pushes) > 0
	if begin {
		o.sending, o.sent = true, make(chan struct{})
	}
	return begin
}

// take returns the payloads to send and their channels. If there are none, it ends the sending.
func (o *outbox) take() (channels, payloads []string) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for channel, pushes := range o.pushes {
		payload := ""
		for _, push := range pushes {
			if payload != "" && len(payload)+1+len(push) > maxPayload {
				channels, payloads = append(channels, channel), append(payloads, payload)
				payload = ""
			}
			if payload != "" {
				payload += "\n"
			}
			payload += push
		}
		channels, payloads = append(channels, channel), append(payloads, payload)
	}
	o.pushes = nil
	if len(channels) == 0 {
		o.sending = false
		close(o.sent)
	}
	return channels, payloads
}

// send sends pushes until there are none.
func (db *Client) send() {
	for {
		channels, payloads := db.outbox.take()
		if len(channels) == 0 {
			return
		}
		const notify = "SELECT pg_notify(n.channel, n.payload) FROM unnest($1::text[], $2::text[]) n (channel, payload)"
		call := Call{Operation: opNotify, Urgency: batch.Finishing}
		_, _ = Run(db.life, db, call, func(ctx context.Context, c *pgx.Conn) (struct{}, error) {
			_, err := c.Exec(ctx, notify, channels, payloads)
			return struct{}{}, err
		})
	}
}

// flush returns when the pushes are sent, or after most.
func (o *outbox) flush(most time.Duration) {
	o.mu.Lock()
	sent := o.sent
	o.mu.Unlock()
	if sent == nil {
		return
	}
	select {
	case <-sent:
	case <-time.After(most):
	}
}

// Silence loses all pushes to others from now on, for tests of the consequences.
func (db *Client) Silence() {
	db.outbox.mu.Lock()
	defer db.outbox.mu.Unlock()
	db.outbox.sending, db.outbox.sent = true, nil
}
