package script

import (
	"context"
	"errors"
	"sync"
	"time"
)

// inFlight records whether a call may have been carried out. The client's last error does not show
// that. The client may send a request again and then fail to connect, or reach the deadline before
// it has a connection.
type inFlight struct {
	mu      sync.Mutex
	sends   int  // requests written without a known outcome
	written bool // one was written, with any outcome
	last    time.Time
	gaveUp  bool
	call    *callContext // whose time for the reply begins with the first write
}

// errGaveUp prevents the write of a request that was reported to its caller as not sent.
var errGaveUp = errors.New("redis: not sent, the caller has left")

// write is called as a request is written.
func (f *inFlight) write() error {
	f.mu.Lock()
	if f.gaveUp {
		f.mu.Unlock()
		return errGaveUp
	}
	first := !f.written
	f.sends++
	f.written = true
	now := time.Now()
	f.last = now
	f.mu.Unlock()
	if first {
		f.call.written(now)
	}
	return nil
}

// since returns when a request was last written: zero if none was.
func (f *inFlight) since() time.Time {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.last
}

// wasWritten reports whether a request was written, with any outcome.
func (f *inFlight) wasWritten() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.written
}

// settle resets the count of requests without a known outcome: the server has reported that it did
// not run the later ones.
func (f *inFlight) settle(sends int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.sends = sends
}

func (f *inFlight) count() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.sends
}

func (f *inFlight) open() bool { return f.count() > 0 }

// giveUpUnsent prevents later writes if no request was written. It reports whether one was.
func (f *inFlight) giveUpUnsent() bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if !f.written {
		f.gaveUp = true
	}
	return f.written
}

// tracked is an argument of a request, a script or its hash, that records each write of the request
// in inFlight. The client marshals an argument each time that it sends it, and not before.
type tracked struct {
	script   []byte
	inFlight *inFlight
}

func (a *tracked) MarshalBinary() ([]byte, error) { return a.script, a.inFlight.write() }

func (a *tracked) String() string { return string(a.script) } // in traces

// Sent is called by a command that has effects, right before it is sent. It marks the outcome as
// unknown until there is a reply, and starts the time for the reply.
func Sent(ctx context.Context) error {
	if c, ok := ctx.Value(callKey{}).(*callContext); ok {
		return c.sent.write()
	}
	return nil
}
