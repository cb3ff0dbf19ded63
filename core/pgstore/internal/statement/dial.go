package statement

import (
	"bytes"
	"context"
	"errors"
	"io"
	"net"
	"sync"
	"syscall"
	"time"

	"github.com/jackc/pgx/v5/pgconn"
)

// dialer returns a function that dials connections which the client can cut. pgx dials one more for
// a connection whose context has ended, and waits for 15 s for a server that does not reply.
func (db *Client) dialer(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(db.cut, cancel)()
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		c := &socket{Conn: conn}
		c.keep = context.AfterFunc(db.cut, c.interrupt)
		return c, nil
	}
}

// socket is a connection that is cut if it is not closed before.
//
// A connection with a cancel request stays open until the server closes it, or for cancelLinger:
// PgBouncer 1.18.0 to 1.19.0 crashes if the client leaves before
// (https://github.com/pgbouncer/pgbouncer/issues/801).
type socket struct {
	net.Conn
	keep  func() bool
	dials *dials // nil if it is not the pool's

	mu      sync.Mutex
	cancels bool // a cancel request without a reply
}

const cancelLinger = 5 * time.Second

func (s *socket) interrupt() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancels {
		_ = s.SetDeadline(time.Now())
		return
	}
	_ = s.Conn.Close()
}

func (s *socket) Write(p []byte) (int, error) {
	if len(p) == 16 && bytes.HasPrefix(p, cancelRequest) {
		s.setCancels(true) // before it is written: interrupt must not close in between
	}
	return s.Conn.Write(p)
}

// cancelRequest begins the only message of a connection: its length, and its code.
var cancelRequest = []byte{0, 0, 0, 16, 1234 >> 8, 1234 & 0xff, 5678 >> 8, 5678 & 0xff}

func (s *socket) Read(p []byte) (int, error) {
	n, err := s.Conn.Read(p)
	if errors.Is(err, io.EOF) {
		s.setCancels(false)
	}
	return n, err
}

func (s *socket) setCancels(cancels bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cancels = cancels
}

func (s *socket) Close() error {
	s.keep()
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.cancels {
		time.AfterFunc(cancelLinger, func() { _ = s.Conn.Close() })
		return nil
	}
	return s.Conn.Close()
}

// drain is the time for the server to end a connection that pgx has ended. pgx waits for 15 s, and
// until then a dead connection keeps its place in the pool.
const drain = time.Second

func (s *socket) SetDeadline(t time.Time) error {
	if s.dials != nil && s.dials.ended.Load() {
		if most := time.Now().Add(drain); t.After(most) {
			t = most
		}
	}
	return s.Conn.SetDeadline(t)
}

// SyscallConn implements syscall.Conn, for isQuiet.
func (s *socket) SyscallConn() (syscall.RawConn, error) {
	if conn, ok := s.Conn.(syscall.Conn); ok {
		return conn.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
