package main

import (
	"bytes"
	"errors"
	"io"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// keyText is a key as lines have it: the key itself with -show-keys, otherwise its ID.
func keyText(k operate.ShownKey) string {
	if k.Key == "" {
		return k.ID
	}
	return quoted(k.Key)
}

func (c *call) shown(key string) operate.ShownKey { return operate.Show(key, c.showKeys) }

// keyFromStdin reports whether the key is the content of standard input.
func (c *call) keyFromStdin() bool { return len(c.args) > 1 && c.args[1] == "-" }

// maxKey bounds a key that is read, in bytes. That of any mechanism is shorter.
const maxKey = 64 << 10

// key returns the key of the second argument, or its ID.
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

// literalKey returns the key of the second argument, of a mechanism whose keys are not listed.
func (c *call) literalKey() (string, error) {
	if c.keyFromStdin() {
		return c.readKey()
	}
	return c.args[1], nil
}

func (c *call) readKey() (string, error) {
	text, err := io.ReadAll(io.LimitReader(c.stdin, maxKey+1))
	switch text = trimLine(text); {
	case err != nil:
		return "", err
	case len(text) == 0 || len(text) > maxKey:
		return "", errors.New("standard input has no key")
	}
	return string(text), nil
}

// trimLine removes one line break from the end.
func trimLine(text []byte) []byte {
	return bytes.TrimSuffix(bytes.TrimSuffix(text, []byte("\n")), []byte("\r"))
}
