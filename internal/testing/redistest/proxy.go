package redistest

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
)

// Proxy is a proxy for the protocol of Redis. The names of commands are in lower case.
type Proxy = faultproxy.Proxy

// Loss is what happens instead of a reply.
type Loss = faultproxy.Loss

// Losses.
const (
	Cut     = faultproxy.Cut
	Silence = faultproxy.Silence
)

// NewProxy starts a proxy in front of the server at an address. It ends with the test.
func NewProxy(t testing.TB, target string) *Proxy {
	t.Helper()
	return faultproxy.New(t, protocol{}, target)
}

type protocol struct{}

func (protocol) Commands() func(in *bufio.Reader) (raw []byte, name string, err error) {
	return readCommand
}

func (protocol) Subscribes(name string) bool { return name == "subscribe" }

func (protocol) Reply(in *bufio.Reader) (r faultproxy.Reply, err error) {
	r.Text, err = readFrame(in)
	// A push is a list of "message", channel and message, each with its length before it.
	if lines := strings.SplitN(r.Text, "\r\n", 7); len(lines) == 7 && lines[2] == "message" {
		head := strings.Join(lines[:5], "\r\n")
		r.Message = strings.TrimSuffix(lines[6], "\r\n")
		r.Push = func(message string) string { return fmt.Sprintf("%s\r\n$%d\r\n%s\r\n", head, len(message), message) }
	}
	return r, err
}

func readCommand(in *bufio.Reader) (raw []byte, name string, err error) {
	length := func() (int, error) {
		line, err := in.ReadBytes('\n')
		raw = append(raw, line...)
		if err != nil {
			return 0, err
		}
		return strconv.Atoi(strings.TrimSpace(string(line[1:])))
	}
	args, err := length()
	for i := 0; i < args && err == nil; i++ {
		var size int
		if size, err = length(); err != nil {
			break
		}
		arg := make([]byte, size+2)
		_, err = io.ReadFull(in, arg)
		raw = append(raw, arg...)
		if i == 0 {
			name = strings.ToLower(string(arg[:size]))
		}
	}
	return raw, name, err
}

// readFrame reads one reply or push.
func readFrame(in *bufio.Reader) (string, error) {
	line, err := in.ReadString('\n')
	if err != nil {
		return "", err
	}
	parts, size := 0, 0
	switch n, _ := strconv.Atoi(strings.TrimSpace(line[1:])); line[0] {
	case '$', '=', '!':
		if n >= 0 {
			size = n + 2
		}
	case '*', '>', '~':
		parts = n
	case '%':
		parts = 2 * n
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(in, text); err != nil {
		return "", err
	}
	frame := line + string(text)
	for range parts {
		part, err := readFrame(in)
		if err != nil {
			return "", err
		}
		frame += part
	}
	return frame, nil
}
