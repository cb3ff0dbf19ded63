package site

import (
	"bufio"
	"bytes"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

// Rules are the faults of a network. The zero value has none.
type Rules struct {
	LateRequests, LateReplies, LatePushes time.Duration

	LosePushes   bool
	RepeatPushes bool

	// Of scripts, or of statements: how many in a hundred. A repeated script runs twice, and the
	// client gets the second reply; statements are not repeated, since their client never sends one
	// again. A lost reply cuts the connection, or leaves it without any further one.
	RepeatRequests, CutReplies, Silence int

	BlackHole bool // nothing arrives, until it is over; then all of it
}

// Proxy is the network between one worker and one server. It carries whole commands and replies,
// and knows pushes from replies.
type Proxy struct {
	speaks   protocol
	listener net.Listener
	running  sync.WaitGroup
	hits     atomic.Int64

	mu     sync.Mutex
	target string
	rules  Rules
	closed bool
	links  map[*link]struct{}
	hole   chan struct{} // closed when nothing is held back; nil while nothing is
}

// protocol is that of a server. Its functions carry what a connection says, in one direction each,
// until that ends.
type protocol struct {
	commands func(p *Proxy, l *link, to chan<- parcel)
	replies  func(p *Proxy, l *link, from chan<- parcel)
}

// NewProxy starts a proxy in front of a Redis server.
func NewProxy(target string) (*Proxy, error) {
	return newProxy(target, protocol{(*Proxy).commands, (*Proxy).replies})
}

func newProxy(target string, speaks protocol) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, speaks: speaks, listener: listener, links: make(map[*link]struct{})}
	p.running.Go(p.accept)
	return p, nil
}

// Addr is where the worker connects to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Set replaces the rules.
func (p *Proxy) Set(r Rules) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = r
	if r.BlackHole && p.hole == nil {
		p.hole = make(chan struct{})
	}
	if !r.BlackHole && p.hole != nil {
		close(p.hole)
		p.hole = nil
	}
}

// Cut closes all connections.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		p.hits.Add(1)
		l.close()
	}
}

// MoveTo makes new connections lead to another server. Open ones stay with theirs.
func (p *Proxy) MoveTo(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Strand makes the open connections lead nowhere, and ends none of them: nothing arrives on them
// any more, either way. New ones work.
func (p *Proxy) Strand() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		p.hits.Add(1)
		l.stranded.Store(true)
	}
}

// Hits returns how many commands, replies, pushes and connections a rule, Cut or Strand has
// changed.
func (p *Proxy) Hits() int64 { return p.hits.Load() }

// Close closes all connections, and returns when the proxy has ended.
func (p *Proxy) Close() {
	p.Set(Rules{})
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Cut()
	p.running.Wait()
}

func (p *Proxy) now() (Rules, <-chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rules, p.hole
}

// link is a connection of the worker, and one to the server.
type link struct {
	client, server net.Conn
	stranded       atomic.Bool

	mu      sync.Mutex
	pending []fate // of the replies that are due
	silent  bool
	pushes  bool // it has subscribed
}

// fate is what happens to a reply.
type fate int

const (
	pass fate = iota
	drop      // of the first run of a repeated command
	cut
	silence
)

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.running.Go(func() { p.connect(client) })
	}
}

func (p *Proxy) connect(client net.Conn) {
	p.mu.Lock()
	target := p.target
	p.mu.Unlock()
	server, err := net.DialTimeout("tcp", target, time.Second)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{client: client, server: server}
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		l.close()
		return
	}
	p.links[l] = struct{}{}
	to, from := make(chan parcel, 4096), make(chan parcel, 4096)
	p.running.Go(func() { p.speaks.commands(p, l, to) })
	p.running.Go(func() { p.speaks.replies(p, l, from) })
	p.running.Go(func() { // what was sent arrives, also if the client has gone
		l.deliver(to, l.server)
		_ = l.server.Close()
	})
	p.running.Go(func() {
		l.deliver(from, l.client)
		_ = l.client.Close()
		p.mu.Lock()
		defer p.mu.Unlock()
		delete(p.links, l)
	})
}

// parcel is what is on its way, and what delays it.
type parcel struct {
	raw  []byte
	due  time.Time
	hole <-chan struct{}
}

func (l *link) deliver(way <-chan parcel, to net.Conn) {
	var failed error
	for m := range way { // to the end, so that the other side never blocks
		if failed != nil {
			continue
		}
		if m.hole != nil {
			<-m.hole
		}
		if wait := time.Until(m.due); wait > 0 {
			<-time.After(wait)
		}
		if !l.stranded.Load() {
			_, failed = to.Write(m.raw)
		}
	}
}

// commands carries commands to the server.
func (p *Proxy) commands(l *link, to chan<- parcel) {
	defer close(to)
	in := bufio.NewReader(l.client)
	for {
		raw, err := readFrame(in)
		if err != nil {
			return
		}
		rules, hole := p.now()
		name := commandName(raw)
		m := parcel{raw, time.Now().Add(rules.LateRequests), hole}
		if hole != nil || rules.LateRequests > 0 {
			p.hits.Add(1)
		}
		fates := []fate{pass}
		if name == "evalsha" || name == "eval" {
			switch n := rand.IntN(100); { //nolint:gosec // no secret
			case n < rules.RepeatRequests:
				fates = []fate{drop, pass}
			case n < rules.CutReplies:
				fates = []fate{cut}
			case n < rules.Silence:
				fates = []fate{silence}
			}
		}
		l.mu.Lock()
		if strings.HasSuffix(name, "subscribe") { // answered by pushes
			fates, l.pushes = nil, true
		}
		l.pending = append(l.pending, fates...)
		l.mu.Unlock()
		to <- m
		if len(fates) == 2 {
			p.hits.Add(1)
			to <- m
		}
	}
}

// replies carries replies and pushes to the client.
func (p *Proxy) replies(l *link, from chan<- parcel) {
	defer close(from)
	in := bufio.NewReader(l.server)
	for {
		raw, err := readFrame(in)
		if err != nil {
			return
		}
		rules, hole := p.now()
		l.mu.Lock()
		push := raw[0] == '>' || len(l.pending) == 0
		what := pass
		if !push {
			what, l.pending = l.pending[0], l.pending[1:]
		}
		if what == silence {
			l.silent = true
		}
		silent := l.silent
		l.mu.Unlock()
		delay, times := rules.LateReplies, 1
		if push && message(raw) {
			delay = rules.LatePushes
			if rules.LosePushes {
				times = 0
			} else if rules.RepeatPushes {
				times = 2
			}
		}
		if hole != nil || delay > 0 || times != 1 || what == cut || silent {
			p.hits.Add(1)
		}
		switch {
		case what == cut:
			_ = l.client.Close()
			return
		case silent, what == drop:
			continue
		}
		for range times {
			from <- parcel{raw, time.Now().Add(delay), hole}
		}
	}
}

// message reports whether a push is a message, and not the answer to a subscription.
func message(raw []byte) bool {
	return bytes.Contains(raw[:min(len(raw), 32)], []byte("\r\nmessage\r\n"))
}
