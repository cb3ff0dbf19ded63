package zktest

import (
	"bufio"
	"encoding/binary"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
)

// closeSession is the operation that ends a session.
const closeSession = 0xfffffff5 // -11

// operations are the names of commands by their numbers on the wire.
var operations = map[uint32]string{
	1: "create", 2: "delete", 3: "exists", 4: "getData", 5: "setData", 9: "sync", 11: "ping", 12: "getChildren", 14: "multi",
	19: "createContainer", 100: "auth", 101: "setWatches", closeSession: "close",
}

// NewProxy starts a proxy in front of the server at an address. It ends with the test. The commands
// are "connect", "create", "delete", "exists", "getData", "setData", "sync", "ping", "getChildren",
// "multi", "createContainer", "auth", "setWatches" and "close"; events of watches are pushes.
func NewProxy(t testing.TB, target string) *faultproxy.Proxy {
	t.Helper()
	return faultproxy.New(t, protocol{}, target)
}

type protocol struct{}

// Commands reads frames: the first of a connection has no number.
func (protocol) Commands() func(in *bufio.Reader) (raw []byte, name string, err error) {
	started := false
	return func(in *bufio.Reader) ([]byte, string, error) {
		raw, err := readFrame(in)
		switch {
		case err != nil:
			return nil, "", err
		case !started:
			started = true
			return raw, "connect", nil
		case len(raw) < 12:
			return raw, "", nil
		}
		return raw, operations[binary.BigEndian.Uint32(raw[8:])], nil
	}
}

// Subscribes implements faultproxy.Protocol: every connection has pushes.
func (protocol) Subscribes(name string) bool { return name == "connect" }

// Reply implements faultproxy.Protocol: events have the number -1.
func (protocol) Reply(in *bufio.Reader) (r faultproxy.Reply, err error) {
	raw, err := readFrame(in)
	if err != nil {
		return r, err
	}
	r.Text = string(raw)
	const header = 4 + 4 + 8 + 4
	if len(raw) >= header && binary.BigEndian.Uint32(raw[4:]) == 0xffffffff {
		r.Message = r.Text[header:]
		r.Push = func(message string) string {
			frame := append([]byte(nil), raw[:header]...)
			binary.BigEndian.PutUint32(frame, uint32(header-4+len(message))) //nolint:gosec // short
			return string(frame) + message
		}
	}
	return r, nil
}
