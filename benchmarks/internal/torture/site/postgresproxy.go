package site

import (
	"bufio"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"time"
)

// NewPostgresProxy starts a proxy in front of a PostgreSQL server, for connections without TLS.
func NewPostgresProxy(target string) (*Proxy, error) {
	return newProxy(target, protocol{(*Proxy).statements, (*Proxy).results})
}

// The messages of the protocol that matter here. Each begins with its kind, and then has its length,
// but for the first of a connection, which has no kind.
const (
	query    = 'Q'
	synced   = 'S' // the end of a statement in several messages
	ready    = 'Z' // the end of the reply to either
	notified = 'A'
)

// readMessage reads one message and returns its bytes.
func readMessage(in *bufio.Reader, first bool) ([]byte, error) {
	head := 5
	if first {
		head = 4
	}
	raw := make([]byte, head)
	if _, err := io.ReadFull(in, raw); err != nil {
		return nil, err
	}
	n := int(binary.BigEndian.Uint32(raw[head-4:]))
	if n < 4 || n > 1<<26 {
		return nil, io.ErrUnexpectedEOF
	}
	raw = append(raw, make([]byte, n-4)...)
	_, err := io.ReadFull(in, raw[head:])
	return raw, err
}

// statements carries statements to the server.
func (p *Proxy) statements(l *link, to chan<- parcel) {
	defer close(to)
	in := bufio.NewReader(l.client)
	var raw []byte
	for first := true; ; first = false {
		message, err := readMessage(in, first)
		if err != nil {
			return
		}
		raw = append(raw, message...)
		whole := first || message[0] == query || message[0] == synced
		if !whole && in.Buffered() > 0 {
			continue
		}
		rules, hole := p.now()
		if hole != nil || rules.LateRequests > 0 {
			p.hits.Add(1)
		}
		if whole {
			what := pass
			switch n := rand.IntN(100); { //nolint:gosec // no secret
			case first:
			case n < rules.CutReplies:
				what = cut
			case n < rules.Silence:
				what = silence
			}
			l.mu.Lock()
			l.pending = append(l.pending, what)
			l.mu.Unlock()
		}
		to <- parcel{raw, time.Now().Add(rules.LateRequests), hole}
		raw = nil
	}
}

// results carries replies and notifications to the client.
func (p *Proxy) results(l *link, from chan<- parcel) {
	defer close(from)
	in := bufio.NewReader(l.server)
	var raw []byte // of the reply so far
	send := func(text []byte, delay time.Duration, times int) {
		_, hole := p.now()
		if hole != nil || delay > 0 || times != 1 {
			p.hits.Add(1)
		}
		for range times {
			from <- parcel{text, time.Now().Add(delay), hole}
		}
	}
	for {
		message, err := readMessage(in, false)
		if err != nil {
			return
		}
		rules, _ := p.now()
		l.mu.Lock()
		what := pass
		if len(l.pending) > 0 {
			what = l.pending[0]
		}
		if message[0] == ready && len(l.pending) > 0 {
			l.pending = l.pending[1:]
			l.silent = l.silent || what == silence
		}
		silent := l.silent
		l.mu.Unlock()
		switch {
		case silent || what != pass:
			if message[0] == ready {
				p.hits.Add(1)
			}
			if message[0] == ready && what == cut {
				_ = l.client.Close()
				return
			}
		case message[0] == notified:
			times := 1
			if rules.LosePushes {
				times = 0
			} else if rules.RepeatPushes {
				times = 2
			}
			send(message, rules.LatePushes, times)
		default:
			if raw = append(raw, message...); message[0] == ready || in.Buffered() == 0 {
				send(raw, rules.LateReplies, 1)
				raw = nil
			}
		}
	}
}
