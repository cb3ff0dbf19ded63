package etcdstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"

	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
)

// proxy is between clients and a server, and makes faults by the names of calls, such as "Txn".
type proxy struct {
	address string
	server  *grpc.Server
	to      *grpc.ClientConn

	mu       sync.Mutex
	losses   map[string]loss
	seen     map[string]int
	refusals map[string]error // of calls, which do not reach the server
	kept     map[string]*kept
	noEvents bool // of watches
	dropped  int  // events
}

// loss is what becomes of the replies to calls, which the server has carried out.
type loss struct {
	left   int
	silent bool // there is no reply; else the call ends with an error
}

// kept is a call that is kept from the server.
type kept struct {
	left   int // calls of the name until it is there
	f      func()
	method string
	md     metadata.MD
	frame  frame
}

// frame is a message that is passed on.
type frame []byte

// frames is the codec of frames.
type frames struct{}

func (frames) Name() string { return "proto" }

func (frames) Marshal(v any) ([]byte, error) {
	f, ok := v.(*frame)
	if !ok {
		return nil, fmt.Errorf("%T is no frame", v)
	}
	return *f, nil
}

func (frames) Unmarshal(data []byte, v any) error {
	f, ok := v.(*frame)
	if !ok {
		return fmt.Errorf("%T is no frame", v)
	}
	*f = append(frame(nil), data...)
	return nil
}

func newProxy(t testing.TB, target string) *proxy {
	t.Helper()
	to, err := grpc.NewClient("passthrough:///"+target, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDefaultCallOptions(grpc.ForceCodec(frames{})))
	if err != nil {
		t.Fatal(err)
	}
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	p := &proxy{address: listener.Addr().String(), to: to, losses: map[string]loss{}, refusals: map[string]error{}, seen: map[string]int{}, kept: map[string]*kept{}}
	p.server = grpc.NewServer(grpc.ForceServerCodec(frames{}), grpc.UnknownServiceHandler(p.handle))
	go func() { _ = p.server.Serve(listener) }()
	t.Cleanup(func() {
		p.server.Stop()
		_ = to.Close()
	})
	return p
}

// lose loses the replies to the next n calls of a name.
func (p *proxy) lose(call string, n int, silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.losses[call] = loss{n, silent}
}

// refuse has the calls of a name refused, or not if err is nil.
func (p *proxy) refuse(call string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusals[call] = err
}

// keep keeps the nth of the next calls of a name: f is called, and then the call ends with an error. It
// reaches the server when arrive is called, which returns after the reply.
func (p *proxy) keep(t testing.TB, call string, n int, f func()) (arrive func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	k := &kept{left: n, f: f}
	p.kept[call] = k
	return func() {
		t.Helper()
		if k.method == "" {
			t.Fatalf("there were too few calls of %s", call)
		}
		stream, err := p.to.NewStream(metadata.NewOutgoingContext(t.Context(), k.md), &grpc.StreamDesc{}, k.method)
		if err == nil {
			err = stream.SendMsg(&k.frame)
		}
		if err == nil {
			err = stream.CloseSend()
		}
		if err != nil {
			t.Fatal(err)
		}
		var reply frame
		if err := stream.RecvMsg(&reply); err != nil {
			t.Logf("the reply to a late call: %v", err)
		}
	}
}

// keeps takes a call that is to be kept.
func (p *proxy) keeps(name, method string, in grpc.ServerStream) (bool, error) {
	p.mu.Lock()
	k := p.kept[name]
	if k != nil {
		if k.left--; k.left > 0 {
			k = nil
		} else {
			delete(p.kept, name)
		}
	}
	p.mu.Unlock()
	if k == nil {
		return false, nil
	}
	if err := in.RecvMsg(&k.frame); err != nil {
		return true, err
	}
	k.md, _ = metadata.FromIncomingContext(in.Context())
	k.method = method
	k.f()
	return true, status.Error(codes.Unavailable, "the connection is cut")
}

// dropEvents drops the events of watches from now on, or no longer, and keeps their streams.
func (p *proxy) dropEvents(drop bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.noEvents = drop
}

// calls returns how many calls of a name there were.
func (p *proxy) calls(name string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.seen[name]
}

// loses reports whether the reply to a call is lost, and how.
func (p *proxy) loses(name string) (lost, silent bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l := p.losses[name]
	if l.left == 0 {
		return false, false
	}
	l.left--
	p.losses[name] = l
	return true, l.silent
}

// drops reports whether a message of a watch is dropped.
func (p *proxy) drops(name string, f frame) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if name != "Watch" || !p.noEvents {
		return false
	}
	for len(f) > 0 {
		field, _, n := protowire.ConsumeField(f)
		if n < 0 {
			return false
		}
		if field == eventsField {
			p.dropped++
			return true
		}
		f = f[n:]
	}
	return false
}

// eventsField is the number of a WatchResponse's field of events.
const eventsField = 11

func (p *proxy) handle(_ any, in grpc.ServerStream) error {
	method, _ := grpc.MethodFromServerStream(in)
	name := path.Base(method)
	p.mu.Lock()
	p.seen[name]++
	refusal := p.refusals[name]
	p.mu.Unlock()
	if refusal != nil {
		return refusal
	}
	if ok, err := p.keeps(name, method, in); ok {
		return err
	}
	ctx, cancel := context.WithCancel(in.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	out, err := p.to.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true, ClientStreams: true}, method)
	if err != nil {
		return err
	}
	go func() {
		for {
			var f frame
			if err := in.RecvMsg(&f); err != nil {
				if errors.Is(err, io.EOF) {
					_ = out.CloseSend()
				} else {
					cancel()
				}
				return
			}
			if out.SendMsg(&f) != nil {
				return
			}
		}
	}()
	for {
		var f frame
		switch err := out.RecvMsg(&f); {
		case errors.Is(err, io.EOF):
			return nil
		case err != nil:
			return err
		}
		if lost, silent := p.loses(name); silent {
			<-in.Context().Done()
			return in.Context().Err()
		} else if lost {
			return status.Error(codes.Unavailable, "the connection is cut")
		}
		if p.drops(name, f) {
			continue
		}
		if err := in.SendMsg(&f); err != nil {
			return err
		}
	}
}

// bytes is a protocol of which nothing is known.
type bytes struct{}

func (bytes) Commands() func(in *bufio.Reader) (raw []byte, name string, err error) {
	return func(in *bufio.Reader) ([]byte, string, error) {
		raw, err := chunk(in)
		return raw, "bytes", err
	}
}

func (bytes) Subscribes(string) bool { return false }

func (bytes) Reply(in *bufio.Reader) (faultproxy.Reply, error) {
	raw, err := chunk(in)
	return faultproxy.Reply{Text: string(raw)}, err
}

func chunk(in *bufio.Reader) ([]byte, error) {
	room := make([]byte, 4096)
	n, err := in.Read(room)
	return room[:n], err
}
