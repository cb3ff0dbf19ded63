package zkstore

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"
)

// wire is the client's connection to a server. It knows what the client does not tell: the session
// with its negotiated length, and when the server was last heard. And it mends what the client does
// not do:
//   - A server that accepts a connection and does not reply to it is given up in time, for the next
//     one of the list. The client waits for several sessions' lengths.
//   - What the client sends on a resumed session waits until the client has set its watches again.
//     Otherwise a reply may come first, and the client would then miss the events before it.
//   - A peer that is no ZooKeeper server makes the client allocate no gigabytes.
type wire struct {
	net.Conn
	patience time.Duration // for the reply to the first request
	opened   time.Time
	failed   func(error) // is called if there is no reply to the first request, or a wrong one

	mu      sync.Mutex
	asked   int64 // the session that the first request resumes; zero for a new one
	greeted bool  // the first reply is complete
	session int64
	length  time.Duration
	reply   []byte // the first one, until it is complete
	heard   time.Time

	unanswered time.Time // when a call began, after which nothing was heard
	early      []byte    // packets that wait for the watches; nil if none wait any more
	waits      bool      // for the watches
	severed    bool
}

const (
	// watchesWithin is how long other packets wait for the client's watches.
	watchesWithin = 50 * time.Millisecond

	opSetAuth    = 100
	opSetWatches = 101
	// A reply to the first request has less bytes than this, and any other frame less than maxFrame.
	maxGreeting = 1 << 10
	maxFrame    = 16 << 20
)

var errNoServer = errors.New("the peer is no ZooKeeper server")

// SetReadDeadline implements net.Conn. Until the first reply the deadline is that of a handshake.
func (w *wire) SetReadDeadline(t time.Time) error {
	if latest := w.opened.Add(w.patience); !w.isGreeted() && (t.IsZero() || t.After(latest)) {
		t = latest
	}
	return w.Conn.SetReadDeadline(t)
}

func (w *wire) Read(b []byte) (int, error) {
	n, err := w.Conn.Read(b)
	if n, wrong := w.read(b[:n]); wrong != nil {
		w.failed(wrong)
		return n, wrong
	}
	if err != nil && !w.isGreeted() {
		w.failed(err)
	}
	return n, err
}

func (w *wire) isGreeted() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.greeted
}

// read learns from what was read. It returns an error if that is no reply of ZooKeeper.
func (w *wire) read(b []byte) (n int, err error) {
	if n = len(b); n == 0 {
		return n, nil
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.heard = time.Now()
	if w.greeted {
		return n, nil
	}
	w.reply = append(w.reply, b...)
	if len(w.reply) < 4 {
		return n, nil
	}
	size := int(binary.BigEndian.Uint32(w.reply))
	if size < 20 || size > maxGreeting {
		return 0, errNoServer
	}
	if len(w.reply) < 4+size {
		return n, nil
	}
	w.greeted = true
	w.length = time.Duration(binary.BigEndian.Uint32(w.reply[8:])) * time.Millisecond
	w.session = int64(binary.BigEndian.Uint64(w.reply[12:])) //nolint:gosec // bits
	w.reply = nil
	if w.session != 0 && w.session == w.asked {
		w.waits = true
		time.AfterFunc(watchesWithin, w.flush)
	}
	return n, nil
}

// Write is called with one packet at a time.
func (w *wire) Write(packet []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	switch {
	case w.severed:
		return 0, net.ErrClosed
	case !w.greeted:
		if len(packet) >= 4+24 {
			w.asked = int64(binary.BigEndian.Uint64(packet[4+16:])) //nolint:gosec // bits
		}
	case !w.waits, operation(packet) == opSetAuth: // the client waits for its reply before it sends others
	case operation(packet) == opSetWatches:
		n, err := w.Conn.Write(packet)
		w.release()
		return n, err
	default:
		w.early = append(w.early, packet...)
		return len(packet), nil
	}
	return w.Conn.Write(packet)
}

// operation returns the number of a packet's operation.
func operation(packet []byte) uint32 {
	if len(packet) < 12 {
		return 0
	}
	return binary.BigEndian.Uint32(packet[8:])
}

// flush sends what waits, since the client had no watches.
func (w *wire) flush() {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.waits {
		w.release()
	}
}

// release is called with mu held. An error closes the connection, which ends the client's loops.
func (w *wire) release() {
	w.waits = false
	if len(w.early) > 0 && !w.severed {
		if _, err := w.Conn.Write(w.early); err != nil {
			_ = w.Close()
		}
	}
	w.early = nil
}

// greeting returns the session of the connection.
func (w *wire) greeting() (id int64, length time.Duration) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.session, w.length
}

// leastSilence is how long a server is silent before its connection is given up.
const leastSilence = 500 * time.Millisecond

// silent reports whether nothing was heard since a call that began at that time, and got no reply, or
// since one before it, for as long as leastSilence.
func (w *wire) silent(began time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if began.Before(w.opened) || !w.heard.Before(began) {
		return false
	}
	if w.unanswered.IsZero() || w.heard.After(w.unanswered) || began.Before(w.unanswered) {
		w.unanswered = began
	}
	return time.Since(w.unanswered) >= leastSilence
}

// sever closes the connection, and sends nothing more, so that the session lasts until it expires.
func (w *wire) sever() {
	w.mu.Lock()
	w.severed = true
	w.mu.Unlock()
	_ = w.Close()
}

// dial connects to a server. It resolves names anew each time.
func (l *link) dial(network, address string, timeout time.Duration) (net.Conn, error) {
	if pause := l.hosts.pause(); pause > 0 {
		select {
		case <-time.After(pause):
		case <-l.life:
		}
	}
	if l.severed.Load() {
		return nil, net.ErrClosed
	}
	conn, err := (&net.Dialer{Timeout: timeout}).Dial(network, address)
	if err != nil {
		l.failed(err)
		return nil, err
	}
	w := &wire{Conn: conn, patience: l.patience, opened: time.Now(), failed: l.failed}
	l.opened(w)
	return w, nil
}

// hosts are the addresses that the client tries, in turn.
type hosts struct {
	mu        sync.Mutex
	addresses []string
	next      int
	tried     int // since the last session
}

// quickTurns is how many turns the store makes with short pauses of its own, before the client rests
// for a second after each, and fails the requests that it has not sent.
const quickTurns = 4

// Init implements zk.HostProvider.
func (h *hosts) Init(addresses []string) error {
	for _, address := range addresses {
		if _, _, err := net.SplitHostPort(address); err != nil {
			return fmt.Errorf("server %q is no host:port", address)
		}
	}
	h.addresses = addresses
	return nil
}

// Len implements zk.HostProvider.
func (h *hosts) Len() int { return len(h.addresses) }

// Next implements zk.HostProvider.
func (h *hosts) Next() (server string, rest bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	server = h.addresses[h.next]
	h.next = (h.next + 1) % len(h.addresses)
	rest = h.tried%len(h.addresses) == 0 && h.tried/len(h.addresses) > quickTurns
	h.tried++
	return server, rest
}

// pause returns how long to wait before the present attempt: after the first turn, twice as long at
// each.
func (h *hosts) pause() time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	turn := (h.tried - 1) / len(h.addresses)
	if turn < 1 || turn > quickTurns || (h.tried-1)%len(h.addresses) != 0 {
		return 0
	}
	return leastPause << turn
}

// Connected implements zk.HostProvider: it is called when a session has begun, or is resumed, or has
// ended.
func (h *hosts) Connected() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.tried = 0
}
