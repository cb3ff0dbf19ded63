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
	mu      sync.Mutex
	sends   int  // requests written whose outcome is not known
	written bool // one was written, whatever became of it
	last    time.Time
	gaveUp  bool
	call    *callContext // which has time for the reply from the first write on; nil for none
}

// errGaveUp keeps a request from being written when its caller has been told that it was not.
var errGaveUp = errors.New("redisstore: not sent, the caller has left")

// write is called as a request is written.
func (w *wire) write() error {
	w.mu.Lock()
	if w.gaveUp {
		w.mu.Unlock()
		return errGaveUp
	}
	first := !w.written
	w.sends++
	w.written = true
	w.last = time.Now()
	w.mu.Unlock()
	if first && w.call != nil {
		w.call.written()
	}
	return nil
}

// since is when a request was last written: zero if none was.
func (w *wire) since() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
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

// wasWritten reports whether a request was written, whatever became of it.
func (w *wire) wasWritten() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written
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

// giveUpUnsent keeps a request from being written if none has been, and reports whether one has.
func (w *wire) giveUpUnsent() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.written {
		w.gaveUp = true
	}
	return w.written
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
	if c := callOf(ctx); c != nil {
		return &c.sent
	}
	return new(wire)
}
