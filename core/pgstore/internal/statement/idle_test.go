//go:build unix

package statement

import (
	"net"
	"testing"
	"time"
)

func TestIsQuiet(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = listener.Close() }()
	connect := func() (client, server net.Conn) {
		client, err := net.Dial("tcp", listener.Addr().String())
		must(t, err)
		server, err = listener.Accept()
		must(t, err)
		t.Cleanup(func() { _ = client.Close(); _ = server.Close() })
		return client, server
	}
	becomes := func(conn net.Conn, want bool) {
		t.Helper()
		eventually(t, "what is seen", func() bool { return isQuiet(conn) == want })
	}
	client, server := connect()
	becomes(client, true)
	_, err = server.Write([]byte("E"))
	must(t, err)
	becomes(client, false)

	client, server = connect()
	must(t, server.Close())
	becomes(client, false)

	// The client may have left a read behind, after a slow write.
	client, server = connect()
	read := make(chan struct{})
	go func() {
		_, _ = client.Read(make([]byte, 1))
		close(read)
	}()
	<-time.After(10 * time.Millisecond)
	becomes(client, true)
	must(t, server.Close())
	<-read
	becomes(client, false)
	must(t, client.Close())
	becomes(client, false)
}
