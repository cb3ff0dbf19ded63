package postgres

import (
	"context"
	"errors"
	"net"
	"sync/atomic"
	"syscall"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/lockkeeper/lockkeeper/core/pgstore"
)

// openCounted returns a store that counts what it sends: as often as it writes to a connection, and
// then waits for the reply.
func openCounted(ctx context.Context, dsn string) (*pgstore.Store, *atomic.Int64, error) {
	p, sent, err := countedPool(ctx, dsn, many)
	if err != nil {
		return nil, nil, err
	}
	defer p.Close() // the store makes its own, with the same settings
	st, err := pgstore.NewFromPool(p, pgstore.WithLogger(quiet))
	return st, sent, err
}

func countedPool(ctx context.Context, dsn string, connections int32) (*pgxpool.Pool, *atomic.Int64, error) {
	settings, err := pgxpool.ParseConfig(dsn)
	if err != nil {
		return nil, nil, err
	}
	sent, dial := new(atomic.Int64), settings.ConnConfig.DialFunc
	settings.MaxConns = connections
	settings.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		return &counted{conn, sent}, nil
	}
	p, err := pgxpool.NewWithConfig(ctx, settings)
	return p, sent, err
}

// counted is a connection whose writes are counted.
type counted struct {
	net.Conn
	sent *atomic.Int64
}

func (c *counted) Write(text []byte) (int, error) {
	c.sent.Add(1)
	return c.Conn.Write(text)
}

// SyscallConn implements syscall.Conn, as the connection does that is counted.
func (c *counted) SyscallConn() (syscall.RawConn, error) {
	if conn, ok := c.Conn.(syscall.Conn); ok {
		return conn.SyscallConn()
	}
	return nil, errors.ErrUnsupported
}
