package redisstore

import (
	"context"
	"errors"
	"sync"
	"time"
)

// wire records whether a call may have been carried out. The client's last error does not show
// that: the client may re-send by itself and then fail to connect, or reach the deadline before it
// has a connection.
type wire struct {
	mu      sync.Mutex
	sends   int  // requests written without a known outcome
	written bool // one was written, with any outcome
	last    time.Time
	gaveUp  bool
	call    *callContext // whose time for the reply begins with the first write; may be nil
}

// errGaveUp prevents the write of a request that was reported to its caller as not sent.
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

// since returns when a request was last written: zero if none was.
func (w *wire) since() time.Time {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.last
}

// silence returns the time since the last write without a reply; zero if there is none.
func (w *wire) silence() time.Duration {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.sends == 0 {
		return 0
	}
	return time.Since(w.last)
}

// wasWritten reports whether a request was written, with any outcome.
func (w *wire) wasWritten() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.written
}

// settle resets the count of requests without a known outcome, since the server has reported that
// it did not run the later ones.
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

// giveUpUnsent prevents later writes if no request was written. It reports whether one was.
func (w *wire) giveUpUnsent() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.written {
		w.gaveUp = true
	}
	return w.written
}

// wired is an argument of a request, a script or its hash, that records in the wire when it is
// written. The client marshals an argument each time that it sends it, and not before.
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
