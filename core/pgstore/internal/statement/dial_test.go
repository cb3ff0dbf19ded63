package statement

import (
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"os"
	"testing"
	"time"
)

// A store that closes cuts its connections, and does not wait for the reply to a cancel request; the
// connection with the request stays open, though, since poolers crash when it ends before their reply.
func TestACancelRequestIsNotCut(t *testing.T) {
	t.Parallel()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
	defer func() { _ = listener.Close() }()
	cut, cutAll := context.WithCancel(t.Context())
	defer cutAll()
	dial := (&Client{cut: cut}).dialer(new(net.Dialer).DialContext)
	open := func(code uint32) (ours, theirs net.Conn) {
		ours, err := dial(t.Context(), "tcp", listener.Addr().String())
		must(t, err)
		theirs, err = listener.Accept()
		must(t, err)
		message := make([]byte, 16)
		binary.BigEndian.PutUint32(message, 16)
		binary.BigEndian.PutUint32(message[4:], code)
		_, err = ours.Write(message)
		must(t, err)
		_, err = io.ReadFull(theirs, message)
		must(t, err)
		return ours, theirs
	}
	const cancel, startup = 80877102, 3 << 16
	other, otherServer := open(startup)
	waiting, waitingServer := open(cancel)
	replied, repliedServer := open(cancel)
	must(t, repliedServer.Close())
	if _, err := replied.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("the reply to a cancel request: %v", err)
	}
	must(t, replied.Close())
	if err := replied.SetDeadline(time.Now()); !errors.Is(err, net.ErrClosed) {
		t.Errorf("a connection whose cancel request has a reply is open: %v", err)
	}

	cutAll()
	for _, conn := range []net.Conn{other, waiting} {
		if _, err := conn.Read(make([]byte, 1)); err == nil {
			t.Error("a connection is read after it was cut")
		}
		_ = conn.Close()
	}
	if _, err := otherServer.Read(make([]byte, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("a connection that was cut: %v", err)
	}
	must(t, waitingServer.SetReadDeadline(time.Now().Add(100*time.Millisecond)))
	if _, err := waitingServer.Read(make([]byte, 1)); !errors.Is(err, os.ErrDeadlineExceeded) {
		t.Errorf("a cancel request without a reply: %v", err)
	}
}
