package pgstore

import (
	"context"
	"errors"
	"net"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// dialer returns a function that dials connections which the store can cut: for a connection whose
// context has ended, the client dials one more, and waits for 15 s for a server that does not reply.
func (s *Store) dialer(dial pgconn.DialFunc) pgconn.DialFunc {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		defer context.AfterFunc(s.cut, cancel)()
		conn, err := dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		return &socket{conn, context.AfterFunc(s.cut, func() { _ = conn.Close() })}, nil
	}
}

// socket is a connection that is cut unless it is closed before.
type socket struct {
	net.Conn
	keep func() bool
}

func (s *socket) Close() error {
	s.keep()
	return s.Conn.Close()
}

// SyscallConn implements syscall.Conn, for isQuiet.
func (s *socket) SyscallConn() (syscall.RawConn, error) {
	if conn, ok := s.Conn.(syscall.Conn); ok {
		return conn.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
