package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"
)

// wire knows whether a call may have been carried out. The client's last error does not tell: it
// may re-send by itself and then fail to connect, or be stopped by the deadline before it had a
// connection.
type wire struct {
	mu     sync.Mutex
	sends  int // requests written whose outcome is not known
	last   time.Time
	gaveUp bool
}

type wireKey struct{}

// errGaveUp keeps a request from being written when its caller has been told that it was not.
var errGaveUp = errors.New("redisstore: not sent, the caller has left")

// write is called as a request is written.
func (w *wire) write() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.gaveUp {
		return errGaveUp
	}
	w.sends++
	w.last = time.Now()
	return nil
}

// silence is for how long the server has said nothing: nothing if it was not asked.
func (w *wire) silence() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sends == 0 {
		return 0
	}
	return time.Since(w.last)
}

// settle takes back what was sent since there were so many, since the server did not do it.
func (w *wire) settle(sends int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.sends = sends
}

func (w *wire) count() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.sends
}

func (w *wire) open() bool { return w.count() > 0 }

// giveUp is open, and nothing is sent after it.
func (w *wire) giveUp() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gaveUp = true
	return w.sends > 0
}

// wired is an argument of a request, a script or its hash, that tells the wire when it is written. It
// works because the client marshals an argument for each time that it sends it, and not before.
type wired struct {
	script []byte
	wire   *wire
}

func (a *wired) MarshalBinary() ([]byte, error) { return a.script, a.wire.write() }

func (a *wired) String() string { return string(a.script) } // in traces

// wireOf returns the wire of the call that a context belongs to.
func wireOf(ctx context.Context) *wire {
	if c, ok := ctx.(*callContext); ok {
		return &c.sent
	}
	if w, ok := ctx.Value(wireKey{}).(*wire); ok {
		return w
	}
	return new(wire)
}
