package redistest

import (
	"bufio"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// relay sends what arrives on a connection with a subscription to the client: messages by p.pushes,
// the rest at once.
func (p *Proxy) relay(l *link, from io.Reader) {
	in := bufio.NewReader(from)
	write := func(text string) {
		l.writing.Lock()
		defer l.writing.Unlock()
		_, _ = io.WriteString(l.client, text)
	}
	for {
		frame, err := readFrame(in)
		if err != nil {
			return
		}
		p.mu.Lock()
		pushes, hole := p.pushes, p.mended != nil
		p.mu.Unlock()
		// A push is a list of "message", channel and message, each with its length before it.
		lines := strings.SplitN(frame, "\r\n", 7)
		switch {
		case hole:
		case len(lines) < 7 || lines[2] != "message":
			write(frame)
		default:
			head := strings.Join(lines[:5], "\r\n")
			pushes(strings.TrimSuffix(lines[6], "\r\n"), func(message string) {
				write(fmt.Sprintf("%s\r\n$%d\r\n%s\r\n", head, len(message), message))
			})
		}
	}
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
