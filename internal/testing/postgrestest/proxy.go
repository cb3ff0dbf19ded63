package postgrestest

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"io"
	"regexp"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
)

// NewProxy starts a proxy in front of the server at an address. It ends with the test. A command is
// an execution of a statement. Its name is the first name with a schema in the statement, such as
// "lk.acquire", or else its first word in lower case.
func NewProxy(t testing.TB, target string) *faultproxy.Proxy {
	t.Helper()
	return faultproxy.New(t, protocol{}, target)
}

// Through returns a DSN with another address.
func Through(dsn, address string) string {
	return regexp.MustCompile(`@[^/]*/`).ReplaceAllLiteralString(dsn, "@"+address+"/")
}

type protocol struct{}

// Messages of clients and servers, by their types.
const (
	query        = 'Q'
	parse        = 'P'
	bind         = 'B'
	notification = 'A'
)

// Commands reads messages: each has a type, but for the first one of a connection, and a length.
func (protocol) Commands() func(in *bufio.Reader) (raw []byte, name string, err error) {
	started, names := false, make(map[string]string) // of prepared statements
	return func(in *bufio.Reader) ([]byte, string, error) {
		if !started {
			started = true
			raw, err := readBody(in, nil)
			return raw, "", err
		}
		raw, body, err := readMessage(in)
		if err != nil {
			return nil, "", err
		}
		switch texts := bytes.SplitN(body, []byte{0}, 3); raw[0] {
		case query:
			return raw, nameOf(texts[0]), nil
		case parse:
			names[string(texts[0])] = nameOf(texts[1])
		case bind: // its first text is the portal
			return raw, names[string(texts[1])], nil
		}
		return raw, "", nil
	}
}

var qualified = regexp.MustCompile(`\b[a-z][a-z0-9_]*\.[a-z][a-z0-9_]*`)

func nameOf(statement []byte) string {
	if name := qualified.Find(statement); name != nil {
		return string(name)
	}
	word, _, _ := strings.Cut(string(statement), " ")
	return strings.ToLower(word)
}

func (protocol) Subscribes(name string) bool { return name == "listen" }

func (protocol) Reply(in *bufio.Reader) (r faultproxy.Reply, err error) {
	raw, body, err := readMessage(in)
	if err != nil {
		return r, err
	}
	r.Text = string(raw)
	if raw[0] == notification { // the process, the channel and the message
		head, texts := body[:4], bytes.SplitN(body[4:], []byte{0}, 3)
		r.Message = string(texts[1])
		r.Push = func(message string) string {
			body := string(head) + string(texts[0]) + "\x00" + message + "\x00"
			return string(binary.BigEndian.AppendUint32([]byte{notification}, uint32(4+len(body)))) + body //nolint:gosec // short
		}
	}
	return r, nil
}

func readMessage(in *bufio.Reader) (raw, body []byte, err error) {
	kind, err := in.ReadByte()
	if err != nil {
		return nil, nil, err
	}
	raw, err = readBody(in, []byte{kind})
	if err != nil {
		return nil, nil, err
	}
	return raw, raw[5:], nil
}

// readBody reads a length, which includes itself, and what follows.
func readBody(in *bufio.Reader, raw []byte) ([]byte, error) {
	var length [4]byte
	if _, err := io.ReadFull(in, length[:]); err != nil {
		return nil, err
	}
	rest := make([]byte, max(0, int(binary.BigEndian.Uint32(length[:]))-len(length)))
	_, err := io.ReadFull(in, rest)
	return append(append(raw, length[:]...), rest...), err
}
