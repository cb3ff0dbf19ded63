// Package faultproxy makes faults of a network, for tests of stores on real servers.
package faultproxy

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"slices"
	"sync"
	"testing"
	"time"
)

// Protocol is how clients and a server talk.
type Protocol interface {
	// Commands returns a function that reads the commands of a new connection, one by one, and
	// returns the bytes of each and its name.
	Commands() func(in *bufio.Reader) (raw []byte, name string, err error)
	// Subscribes reports whether a command of this name makes its connection one for pushes.
	Subscribes(name string) bool
	// Reply reads a reply or a push.
	Reply(in *bufio.Reader) (Reply, error)
}

// Reply is a reply of a server, or a push.
type Reply struct {
	Text    string
	Message string                      // of a push
	Push    func(message string) string // the text of the push with another message; nil for a reply
}

// Proxy is between clients and a server, and makes faults of a network: it loses replies to
// commands that have run, delays them, does not reply, and cuts connections. It parses commands, so
// faults are exact.
type Proxy struct {
	t        testing.TB
	protocol Protocol
	target   string
	listener net.Listener
	running  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	links  map[*link]struct{}
	seen   map[string]int
	losses map[string]*loss
	delay  time.Duration
	rate   int           // bytes a second, each way of a connection; 0 for no bound
	held   chan struct{} // closed when replies are not held back any more; nil while they are not
	mended chan struct{} // closed when it is not a black hole any more; nil while it is none
	old    string
	new    string
	pushes func(message string, deliver func(string))
	noCall chan struct{} // as mended, for connections without a subscription

	stranded chan struct{} // as mended, for the connections that Strand has found
}

// Loss is what happens instead of a reply.
type Loss int

const (
	// Cut closes the connection.
	Cut Loss = iota
	// Silence keeps it, and no later reply arrives on it.
	Silence
)

type loss struct {
	left int // negative: all
	how  Loss
}

// link is one connection of a client, with one to the server.
type link struct {
	client, server net.Conn
	lost           bool // the next reply, and all after it, are lost
	how            Loss
	subscribed     bool
	stranded       chan struct{} // see Proxy.stranded; guarded by Proxy.mu
	writing        sync.Mutex    // to the client
}

func (l *link) close() {
	_ = l.client.Close()
	_ = l.server.Close()
}

// New starts a proxy in front of the server at an address. It ends with the test.
func New(t testing.TB, protocol Protocol, target string) *Proxy {
	t.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &Proxy{
		t: t, protocol: protocol, target: target, listener: listener,
		links: make(map[*link]struct{}), seen: make(map[string]int), losses: make(map[string]*loss),
	}
	p.running.Go(p.accept)
	t.Cleanup(p.close)
	return p
}

// Addr is where clients connect to.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// MoveTo makes new connections go to another server, as after a failover behind an address that stays.
// The open ones stay with theirs.
func (p *Proxy) MoveTo(target string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.target = target
}

// Strand makes the open connections lead nowhere until Mend: nothing arrives on them, and nothing ends
// them. New ones work.
func (p *Proxy) Strand() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.stranded == nil {
		p.stranded = make(chan struct{})
	}
	for l := range p.links {
		l.stranded = p.stranded
	}
}

// LoseReplies has the replies to the next n commands of a name lost, after the
// server has carried them out: of all of them, if n is negative.
func (p *Proxy) LoseReplies(command string, n int, how Loss) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.losses[command] = &loss{n, how}
}

// Delay makes every reply arrive later by d.
func (p *Proxy) Delay(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.delay = d
}

// Throttle limits the bytes per second in each direction of a connection; 0 is no limit.
func (p *Proxy) Throttle(rate int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rate = rate
}

// pass writes to one side, at the limit of the connection.
func (p *Proxy) pass(to net.Conn, text []byte) error {
	p.mu.Lock()
	rate := p.rate
	p.mu.Unlock()
	if rate == 0 {
		_, err := to.Write(text)
		return err
	}
	for part := range slices.Chunk(text, 64<<10) {
		due := time.Now().Add(time.Duration(len(part)) * time.Second / time.Duration(rate))
		if _, err := to.Write(part); err != nil {
			return err
		}
		<-time.After(time.Until(due))
	}
	return nil
}

// Hold keeps every reply until Release or Mend.
func (p *Proxy) Hold() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.held == nil {
		p.held = make(chan struct{})
	}
}

// Release sends the kept replies.
func (p *Proxy) Release() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.release()
}

// release is Release. The caller holds mu.
func (p *Proxy) release() {
	if p.held != nil {
		close(p.held)
		p.held = nil
	}
}

// Rewrite replaces a text in replies.
func (p *Proxy) Rewrite(old, new string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.old, p.new = old, new
}

// BlackHole accepts connections and commands, and forwards nothing until Mend.
func (p *Proxy) BlackHole() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.mended == nil {
		p.mended = make(chan struct{})
	}
}

// CutOffCalls is BlackHole for the connections without a subscription.
func (p *Proxy) CutOffCalls() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.noCall == nil {
		p.noCall = make(chan struct{})
	}
}

// Pushes has f called with each message to a subscription that is made from now on. f delivers the
// message, or another one, at any time and as often as it likes. It must not block.
func (p *Proxy) Pushes(f func(message string, deliver func(string))) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.pushes = f
}

// Mend ends all faults, and cuts connections with commands in a black hole.
func (p *Proxy) Mend() {
	p.mu.Lock()
	defer p.mu.Unlock()
	clear(p.losses)
	p.delay, p.rate, p.old, p.new = 0, 0, "", ""
	p.release()
	if p.mended != nil {
		close(p.mended)
		p.mended = nil
	}
	if p.noCall != nil {
		close(p.noCall)
		p.noCall = nil
	}
	if p.stranded != nil {
		close(p.stranded)
		p.stranded = nil
	}
	if p.pushes != nil {
		p.pushes = func(message string, deliver func(string)) { deliver(message) }
	}
}

// CutAll closes all open connections.
func (p *Proxy) CutAll() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.links {
		l.close()
	}
}

// Seen returns the number of commands of a name.
func (p *Proxy) Seen(command string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[command]
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	_ = p.listener.Close()
	p.Mend()
	p.CutAll()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		target := p.target
		p.mu.Unlock()
		server, err := net.Dial("tcp", target)
		if err != nil {
			_ = client.Close()
			continue
		}
		l := &link{client: client, server: server}
		p.mu.Lock()
		if p.closed {
			l.close()
			p.mu.Unlock()
			return
		}
		p.links[l] = struct{}{}
		p.running.Go(func() {
			p.forward(l)
			p.mu.Lock()
			defer p.mu.Unlock()
			l.close()
			delete(p.links, l)
		})
		p.running.Go(func() { p.back(l) })
		p.mu.Unlock()
	}
}

// forward sends commands to the server, one by one.
func (p *Proxy) forward(l *link) {
	in, readCommand := bufio.NewReader(l.client), p.protocol.Commands()
	for {
		raw, name, err := readCommand(in)
		if err != nil {
			return
		}
		if hole := p.arrived(l, name); hole != nil {
			<-hole
			return
		}
		if p.pass(l.server, raw) != nil {
			return
		}
	}
}

// arrived counts a command and applies its fault, if any. It returns the end of the black hole that
// has the command.
func (p *Proxy) arrived(l *link, name string) (hole chan struct{}) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen[name]++
	if p.protocol.Subscribes(name) {
		l.subscribed = true
	}
	switch {
	case p.mended != nil:
		return p.mended
	case l.stranded != nil:
		return l.stranded
	}
	if p.noCall != nil && !l.subscribed {
		return p.noCall
	}
	if f := p.losses[name]; f != nil && f.left != 0 {
		f.left--
		l.lost, l.how = true, f.how
	}
	return nil
}

// back sends replies to the client.
func (p *Proxy) back(l *link) {
	defer l.close()
	// A delay is the network's, not the server's: several replies are in flight.
	underway := make(chan reply, 256)
	defer close(underway)
	p.running.Go(func() {
		for r := range underway {
			if r.held != nil {
				<-r.held
			}
			if wait := time.Until(r.due); wait > 0 {
				<-time.After(wait)
			}
			if p.pass(l.client, r.text) != nil {
				l.close() // back reads an error, and closes the channel
			}
		}
	})
	buf := make([]byte, 64<<10)
	for {
		n, err := l.server.Read(buf)
		if err != nil {
			return
		}
		p.mu.Lock()
		if l.subscribed && p.pushes != nil && p.mended == nil {
			p.mu.Unlock()
			p.relay(l, io.MultiReader(bytes.NewReader(buf[:n]), l.server))
			return
		}
		lost, how, hole := l.lost, l.how, p.mended != nil || l.stranded != nil || p.noCall != nil && !l.subscribed
		r := reply{bytes.Clone(buf[:n]), time.Now().Add(p.delay), p.held}
		if p.old != "" {
			r.text = bytes.ReplaceAll(r.text, []byte(p.old), []byte(p.new))
		}
		p.mu.Unlock()
		switch {
		case lost && how == Cut:
			return
		case lost, hole:
		default:
			underway <- r
		}
	}
}

// reply is a reply of the server, and the earliest time for the client to get it.
type reply struct {
	text []byte
	due  time.Time
	held <-chan struct{}
}

// readCommand reads one command, and returns its bytes and its name in lower case.

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
		r, err := p.protocol.Reply(in)
		if err != nil {
			return
		}
		p.mu.Lock()
		pushes, hole := p.pushes, p.mended != nil || l.stranded != nil
		p.mu.Unlock()
		switch {
		case hole:
		case r.Push == nil:
			write(r.Text)
		default:
			pushes(r.Message, func(message string) { write(r.Push(message)) })
		}
	}
}
