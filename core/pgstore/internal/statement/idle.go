//go:build unix

package statement

import (
	"crypto/tls"
	"errors"
	"net"
	"syscall"
)

// isQuiet reports whether an idle connection has neither ended nor received anything. A server
// sends nothing by itself but its farewell, and news that a new connection gets as well. The check
// takes no round trip. It matters since a step that was sent on a connection that has ended may not
// be sent again.
func isQuiet(conn net.Conn) bool {
	if encrypted, ok := conn.(*tls.Conn); ok {
		conn = encrypted.NetConn()
	}
	file, ok := conn.(syscall.Conn)
	if !ok {
		return true
	}
	raw, err := file.SyscallConn()
	if err != nil {
		return errors.Is(err, errors.ErrUnsupported)
	}
	quiet := true
	err = raw.Control(func(fd uintptr) { // Read would wait for a read of the client that it has left behind
		var b [1]byte
		_, _, err := syscall.Recvfrom(int(fd), b[:], syscall.MSG_PEEK)
		quiet = errors.Is(err, syscall.EAGAIN) || errors.Is(err, syscall.EINTR)
	})
	return quiet && err == nil
}
