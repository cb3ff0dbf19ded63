// Package delayproxy makes a server distant: a TCP proxy on loopback that delays what it forwards.
package delayproxy

import (
	"net"
	"sync"
	"time"
)

// Proxy forwards connections to a server, and delays both directions. It adds latency, as a long
// line does, without limiting throughput.
type Proxy struct {
	target   string
	oneWay   time.Duration
	listener net.Listener
	running  sync.WaitGroup

	mu     sync.Mutex
	closed bool
	conns  map[net.Conn]struct{}
}

// Start starts a proxy in front of the server at an address. It adds roundTrip to a request and its
// reply, and nothing to connecting.
func Start(target string, roundTrip time.Duration) (*Proxy, error) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	p := &Proxy{target: target, oneWay: roundTrip / 2, listener: listener, conns: make(map[net.Conn]struct{})}
	p.running.Go(p.accept)
	return p, nil
}

// Addr returns the address for clients.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// Close closes all connections, and returns when all goroutines of the proxy have ended.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	for c := range p.conns {
		_ = c.Close()
	}
	p.mu.Unlock()
	_ = p.listener.Close()
	p.running.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		server, err := net.Dial("tcp", p.target)
		if err != nil {
			_ = client.Close()
			continue
		}
		if !p.keep(client, server) {
			return
		}
		p.forward(client, server)
		p.forward(server, client)
	}
}

// keep registers the connections for Close. If that has been called, it closes them and reports
// false.
func (p *Proxy) keep(conns ...net.Conn) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		if p.closed {
			_ = c.Close()
		} else {
			p.conns[c] = struct{}{}
		}
	}
	return !p.closed
}

func (p *Proxy) drop(conns ...net.Conn) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, c := range conns {
		_ = c.Close()
		delete(p.conns, c)
	}
}

// chunk is the result of one read, and its arrival time at the other end.
type chunk struct {
	bytes []byte
	due   time.Time
}

// forward forwards one direction, on two goroutines: one reads while the other delays.
func (p *Proxy) forward(from, to net.Conn) {
	under := make(chan chunk, 1024)
	p.running.Go(func() {
		defer close(under)
		buffer := make([]byte, 64<<10)
		for {
			n, err := from.Read(buffer)
			if n > 0 {
				under <- chunk{append([]byte(nil), buffer[:n]...), time.Now().Add(p.oneWay)}
			}
			if err != nil {
				return
			}
		}
	})
	p.running.Go(func() {
		defer p.drop(from, to)
		timer := time.NewTimer(0)
		defer timer.Stop()
		var failed error
		for c := range under { // to the end, so that the reader never blocks
			if failed != nil {
				continue
			}
			timer.Reset(time.Until(c.due))
			<-timer.C
			if _, failed = to.Write(c.bytes); failed != nil {
				p.drop(from, to)
			}
		}
	})
}
