package main

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// keyText returns a key for a line of output: the key itself with -show-keys, otherwise its ID.
func keyText(k operate.ShownKey) string {
	if k.Key == "" {
		return k.ID
	}
	return quoted(k.Key)
}

func (c *call) shown(key string) operate.ShownKey { return operate.Show(key, c.showKeys) }

// keyFromStdin reports whether the key is the content of standard input.
func (c *call) keyFromStdin() bool { return len(c.args) > 1 && c.args[1] == "-" }

// maxKey is the maximum size of a key on standard input in bytes: more than any mechanism allows.
const maxKey = 64 << 10

// key returns the key or the ID in the second argument: "-" is a key on standard input, and "id:"
// begins an ID. The other result is empty.
func (c *call) key() (key, id string, err error) {
	switch arg := c.args[1]; {
	case arg == "-":
		key, err = c.readKey()
		return key, "", err
	case strings.HasPrefix(arg, "id:"):
		return "", strings.TrimPrefix(arg, "id:"), nil
	default:
		return arg, "", nil
	}
}

// literalKey returns the key in the second argument, or on standard input if that is "-". It is for
// commands that take no ID in place of the key.
func (c *call) literalKey() (string, error) {
	if c.keyFromStdin() {
		return c.readKey()
	}
	return c.args[1], nil
}

// readKey returns standard input without the line break at its end. It returns an error if that is
// empty, too long or cannot be read.
func (c *call) readKey() (string, error) {
	text, err := io.ReadAll(io.LimitReader(c.stdin, maxKey+1))
	switch text = trimLine(text); {
	case err != nil:
		return "", err
	case len(text) == 0:
		return "", errors.New("standard input has no key")
	case len(text) > maxKey:
		return "", fmt.Errorf("the key on standard input is longer than %d bytes", maxKey)
	}
	return string(text), nil
}

// trimLine removes one line break, "\n" or "\r\n", from the end.
func trimLine(text []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
}
