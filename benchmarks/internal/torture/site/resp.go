package site

import (
	"bufio"
	"bytes"
	"io"
	"strconv"
	"strings"
)

// readFrame reads one value of the protocol, RESP2 or RESP3, and returns its bytes.
func readFrame(in *bufio.Reader) ([]byte, error) { return appendFrame(nil, in) }

func appendFrame(raw []byte, in *bufio.Reader) ([]byte, error) {
	line, err := in.ReadBytes('\n')
	raw = append(raw, line...)
	if err != nil {
		return raw, err
	}
	n, _ := strconv.Atoi(strings.TrimSpace(string(line[1:])))
	switch line[0] {
	case '$', '!', '=': // of n bytes, or null
		if n < 0 {
			return raw, nil
		}
		text := make([]byte, n+2)
		_, err = io.ReadFull(in, text)
		return append(raw, text...), err
	case '*', '~', '>':
	case '%':
		n *= 2
	case '|': // attributes, and the value that has them
		n = 2*n + 1
	default: // a line
		return raw, nil
	}
	for range n {
		if raw, err = appendFrame(raw, in); err != nil {
			return raw, err
		}
	}
	return raw, nil
}

// commandName returns the name of a command in lower case.
func commandName(raw []byte) string {
	parts := bytes.SplitN(raw, []byte("\r\n"), 4)
	if len(parts) < 4 {
		return ""
	}
	return strings.ToLower(string(parts[2]))
}
