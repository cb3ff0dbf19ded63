package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
)

// host starts real servers, by the packages that tests start them with, for which it stands in for a test.
type host struct {
	testing.TB // nil: those packages call nothing of it but what host has

	mu   sync.Mutex
	ends []func()
}

// errMissing is matched by the error of a server that is not installed.
var errMissing = errors.New("not run")

// failure is what a call of the host panics with, since it must not return.
type failure struct{ err error }

func (*host) Helper() {}

func (h *host) Cleanup(end func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.ends = append(h.ends, end)
}

func (*host) Fatal(args ...any)                 { panic(failure{errors.New(fmt.Sprint(args...))}) }
func (*host) Fatalf(format string, args ...any) { panic(failure{fmt.Errorf(format, args...)}) } //nolint:err113 // of a server
func (*host) Skipf(format string, args ...any) {
	panic(failure{fmt.Errorf("%w: %w", errMissing, fmt.Errorf(format, args...))}) //nolint:err113 // likewise
}
func (*host) Logf(string, ...any) {}

// start calls a function that starts servers, and returns their failure, which matches errMissing if one is
// not installed.
func (h *host) start(f func()) (err error) {
	defer func() {
		switch failed := recover().(type) {
		case nil:
		case failure:
			err = failed.err
		default:
			panic(failed)
		}
	}()
	f()
	return nil
}

// close ends all that was started, the latest first.
func (h *host) close() {
	for {
		h.mu.Lock()
		n := len(h.ends)
		if n == 0 {
			h.mu.Unlock()
			return
		}
		end := h.ends[n-1]
		h.ends = h.ends[:n-1]
		h.mu.Unlock()
		end()
	}
}

// party is a process of a trial. It reaches each server by a connection of its own, which can be cut.
type party struct {
	*host
	wires []*faultproxy.Proxy
	calls atomic.Int64 // if its client counts them
}

// newParty returns a process that reaches servers at these addresses.
func (h *host) newParty(servers []string) *party {
	p := &party{host: h}
	for _, server := range servers {
		p.wires = append(p.wires, faultproxy.New(h, anyBytes{}, server))
	}
	return p
}

// addrs are where the process reaches the servers.
func (p *party) addrs() (all []string) {
	for _, w := range p.wires {
		all = append(all, w.Addr())
	}
	return all
}

// silence cuts the process off from all servers: nothing arrives at either side, and no connection ends.
func (p *party) silence() {
	for _, w := range p.wires {
		w.BlackHole()
	}
}

// kill is what servers see of a process that is killed: its connections end, and it makes no other ones.
func (p *party) kill() {
	p.silence()
	for _, w := range p.wires {
		w.CutAll()
	}
}

func (p *party) mend() {
	for _, w := range p.wires {
		w.Mend()
	}
}

// trips returns how many calls the process has made, or else how often it has written to servers.
func (p *party) trips() (n int) {
	if n := p.calls.Load(); n > 0 {
		return int(n)
	}
	for _, w := range p.wires {
		n += w.Seen(written)
	}
	return n
}

// anyBytes is a protocol of which nothing is known: each write is a command.
type anyBytes struct{}

const written = "written"

func (anyBytes) Commands() func(in *bufio.Reader) (raw []byte, name string, err error) {
	return func(in *bufio.Reader) ([]byte, string, error) {
		room := make([]byte, 4096)
		n, err := in.Read(room)
		return room[:n], written, err
	}
}

func (anyBytes) Subscribes(string) bool { return false }

func (anyBytes) Reply(*bufio.Reader) (faultproxy.Reply, error) {
	return faultproxy.Reply{}, errors.ErrUnsupported
}

// detached is a context of what outlasts a trial.
func detached() context.Context { return context.Background() }
