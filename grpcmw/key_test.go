package grpcmw_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"net/url"
	"os"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/things"
	"github.com/lockkeeper/lockkeeper/grpcmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/internal/testing/rpctest"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func fixed(value string) grpcmw.KeyFunc {
	return func(*grpcmw.Call) (string, error) { return value, nil }
}

func failing(err error) grpcmw.KeyFunc {
	return func(*grpcmw.Call) (string, error) { return "", err }
}

func TestKeyFuncs(t *testing.T) {
	errServer := errors.New("any error that is the server's")
	request := &things.MakeRequest{
		Id: "42", Amount: 7, Owner: &things.Owner{Name: "o", Number: 9}, Kind: things.Kind_KIND_LARGE, Tags: []string{"a"}, Urgent: true,
	}
	from := func(ctx context.Context, addr string) context.Context {
		return peer.NewContext(ctx, &peer.Peer{Addr: net.TCPAddrFromAddrPort(netip.MustParseAddrPort(addr))})
	}
	sent := func(pairs ...string) context.Context {
		return metadata.NewIncomingContext(t.Context(), metadata.Pairs(pairs...))
	}
	as := func(v any) context.Context { return context.WithValue(t.Context(), userKey{}, v) }
	proxies := clientip.TrustedProxies(netip.MustParsePrefix("10.0.0.0/8"))
	for name, c := range map[string]struct {
		key  grpcmw.KeyFunc
		ctx  context.Context
		want string
		err  error
	}{
		"metadata":                    {key: grpcmw.ByMetadata("X-Key"), ctx: sent("x-key", "k"), want: "k"},
		"no metadata":                 {key: grpcmw.ByMetadata("x-key"), err: policy.ErrNoKey},
		"two values":                  {key: grpcmw.ByMetadata("x-key"), ctx: sent("x-key", "a", "x-key", "b"), err: policy.ErrNoKey},
		"peer":                        {key: grpcmw.ByPeer(), ctx: from(t.Context(), "203.0.113.7:1234"), want: "203.0.113.7"},
		"peer, IPv6":                  {key: grpcmw.ByPeer(), ctx: from(t.Context(), "[2001:db8:1:2:3::4]:1234"), want: "2001:db8:1:2::/64"},
		"no peer":                     {key: grpcmw.ByPeer(), err: clientip.ErrNoAddress},
		"peer ignores metadata":       {key: grpcmw.ByPeer(), ctx: from(sent("x-forwarded-for", "198.51.100.1"), "10.0.0.1:1"), want: "10.0.0.1"},
		"behind a proxy":              {key: grpcmw.ByClientIP(proxies), ctx: from(sent("x-forwarded-for", "198.51.100.1, 203.0.113.7"), "10.0.0.1:1"), want: "203.0.113.7"},
		"not behind the proxy":        {key: grpcmw.ByClientIP(proxies), ctx: from(sent("x-forwarded-for", "198.51.100.1"), "203.0.113.9:1"), want: "203.0.113.9"},
		"method":                      {key: grpcmw.ByMethod(), want: things.Things_Make_FullMethodName},
		"field":                       {key: grpcmw.ByField("id"), want: "42"},
		"field of a message":          {key: grpcmw.ByField("owner.name"), want: "o"},
		"field, integer":              {key: grpcmw.ByField("amount"), want: "7"},
		"field, unsigned":             {key: grpcmw.ByField("owner.number"), want: "9"},
		"field, enum":                 {key: grpcmw.ByField("kind"), want: "1"},
		"field, bool":                 {key: grpcmw.ByField("urgent"), want: "true"},
		"field, empty":                {key: grpcmw.ByField("request_id"), err: policy.ErrNoKey},
		"no such field":               {key: grpcmw.ByField("nothing"), err: policy.ErrNotProvided},
		"field, list":                 {key: grpcmw.ByField("tags"), err: policy.ErrNotProvided},
		"field, bytes":                {key: grpcmw.ByField("data"), err: policy.ErrNotProvided},
		"field, message":              {key: grpcmw.ByField("owner"), err: policy.ErrNotProvided},
		"field of no message":         {key: grpcmw.ByField("id.name"), err: policy.ErrNotProvided},
		"context string":              {key: grpcmw.ByContext(userKey{}), ctx: as("alice"), want: "alice"},
		"context integer":             {key: grpcmw.ByContext(userKey{}), ctx: as(uint64(7)), want: "7"},
		"context Stringer":            {key: grpcmw.ByContext(userKey{}), ctx: as(time.Second), want: "1s"},
		"context unset":               {key: grpcmw.ByContext(userKey{}), err: policy.ErrNotProvided},
		"context nil pointer":         {key: grpcmw.ByContext(userKey{}), ctx: as((*url.URL)(nil)), err: policy.ErrNotProvided},
		"context 0":                   {key: grpcmw.ByContext(userKey{}), ctx: as(0), err: policy.ErrNotProvided},
		"context uint64 0":            {key: grpcmw.ByContext(userKey{}), ctx: as(uint64(0)), err: policy.ErrNotProvided},
		"context zero Stringer":       {key: grpcmw.ByContext(userKey{}), ctx: as(netip.Addr{}), err: policy.ErrNotProvided},
		"context Stringer of nothing": {key: grpcmw.ByContext(userKey{}), ctx: as(&url.URL{}), err: policy.ErrNotProvided},
		"first of, not provided":      {key: grpcmw.FirstOf(grpcmw.ByContext(userKey{}), fixed("a")), want: "1:a"},
		"first of, none provided":     {key: grpcmw.FirstOf(grpcmw.ByContext(userKey{}), failing(policy.ErrNotProvided)), err: policy.ErrNotProvided},
		"first of, none sent":         {key: grpcmw.FirstOf(grpcmw.ByContext(userKey{}), failing(policy.ErrNoKey), failing(policy.ErrNotProvided)), err: policy.ErrNoKey},
		"first of, unusable":          {key: grpcmw.FirstOf(grpcmw.ByContext(userKey{}), fixed("a")), ctx: as([]string{"a"}), err: policy.ErrNotProvided},
		"context of a type":           {key: grpcmw.ByContext(userKey{}), ctx: as([]string{"a"}), err: errServer},
		"global":                      {key: grpcmw.Global(), want: "global"},
		"join":                        {key: grpcmw.Join(fixed("a"), fixed("b:")), want: "1:a2:b:"},
		"first of":                    {key: grpcmw.FirstOf(fixed(""), fixed("a")), want: "1:a"},
		"first of, none":              {key: grpcmw.FirstOf(fixed(""), fixed("")), err: policy.ErrNoKey},
	} {
		t.Run(name, func(t *testing.T) {
			if c.ctx == nil {
				c.ctx = t.Context()
			}
			got, err := c.key(grpcmw.NewCall(c.ctx, things.Things_Make_FullMethodName, request))
			switch {
			case c.err == errServer:
				if err == nil || errors.Is(err, policy.ErrNoKey) {
					t.Errorf("%q, %v; want an error of the server's", got, err)
				}
			case got != c.want || !errors.Is(err, c.err):
				t.Errorf("%q, %v; want %q, %v", got, err, c.want, c.err)
			}
		})
	}
	if _, err := grpcmw.ByField("id")(grpcmw.NewCall(t.Context(), "/a.B/C", "text")); err == nil {
		t.Error("a request that is no message has a field")
	}
	unset := grpcmw.NewCall(t.Context(), "/a.B/C", &things.MakeRequest{})
	if got, err := grpcmw.ByField("owner.number")(unset); !errors.Is(err, policy.ErrNoKey) {
		t.Errorf("a number in a message that is not set: %q, %v", got, err)
	}
	if got, err := grpcmw.ByField("amount")(unset); got != "0" || err != nil {
		t.Errorf("a number that is 0: %q, %v", got, err)
	}
}

// A stream to which the client sends one message is keyed by it, and the handler receives it too.
func TestStreamIsKeyedByItsOnlyRequest(t *testing.T) {
	var s service
	client := serve(t, &s, ratelimit.New(rpctest.NewLimiter(t, rpctest.NewStore(t), tokenbucket.PerMinute(1)), grpcmw.ByField("id")))
	for _, c := range []struct {
		id      string
		refused bool
	}{{"1", false}, {"2", false}, {"1", true}} {
		stream := must(client.Watch(t.Context(), &things.MakeRequest{Id: c.id}))
		thing, err := stream.Recv()
		if c.refused {
			denies(t, err, policy.QuotaExceeded)
		} else if thing.GetId() != c.id {
			t.Errorf("%v, %v", thing, err)
		}
	}
	stream := must(client.Talk(t.Context()))
	_, err := stream.Recv()
	denies(t, err, policy.InternalError) // there is no telling what the client will send
	s.ran(t, 2)
}

func TestScopes(t *testing.T) {
	call := grpcmw.NewCall(t.Context(), "/a.B/C", nil)
	if !(grpcmw.ScopeFunc{}).IsZero() || grpcmw.Unscoped().IsZero() || grpcmw.ScopeBy(grpcmw.Global()).IsZero() {
		t.Error("IsZero is wrong")
	}
	if none, err := grpcmw.Unscoped().Of(call); err != nil || none != "" {
		t.Errorf("no scope is %q, %v; want the empty one, which guards do not bound", none, err)
	}
	if _, err := grpcmw.ScopeBy(fixed("")).Of(call); !errors.Is(err, policy.ErrNoKey) {
		t.Errorf("an empty subject: %v", err)
	}
}

// All clients of a Unix socket are one, whatever they send, unless its other end is a trusted
// proxy.
func TestByPeerOverAUnixSocket(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, c := range []struct {
		key  grpcmw.KeyFunc
		want string
	}{
		{grpcmw.ByPeer(), "unix"},
		{grpcmw.ByClientIP(clientip.TrustedProxies(netip.MustParsePrefix("0.0.0.0/0"))), "unix"},
		{grpcmw.ByClientIP(clientip.TrustedUnixSocket()), "203.0.113.7"},
	} {
		for _, name := range []string{"", "203.0.113.99:1"} {
			var key string
			var err error
			server := grpc.NewServer(grpc.UnaryInterceptor(
				func(ctx context.Context, req any, info *grpc.UnaryServerInfo, handler grpc.UnaryHandler) (any, error) {
					key, err = c.key(grpcmw.NewCall(ctx, info.FullMethod, req))
					return handler(ctx, req)
				}))
			var s service
			things.RegisterThingsServer(server, &s)
			listener := must(net.Listen("unix", "server.sock"))
			served := make(chan error, 1)
			go func() { served <- server.Serve(listener) }()
			_ = os.Remove(name)
			dialer := net.Dialer{}
			if name != "" {
				dialer.LocalAddr = &net.UnixAddr{Name: name, Net: "unix"}
			}
			conn := must(grpc.NewClient("passthrough:server.sock", grpc.WithTransportCredentials(insecure.NewCredentials()),
				grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
					return dialer.DialContext(ctx, "unix", "server.sock")
				})))
			ctx := metadata.AppendToOutgoingContext(t.Context(), "x-forwarded-for", "198.51.100.1, 203.0.113.7")
			if _, callErr := things.NewThingsClient(conn).Make(ctx, &things.MakeRequest{}); callErr != nil {
				t.Error(callErr)
			}
			_ = conn.Close()
			server.Stop()
			if serveErr := <-served; serveErr != nil {
				t.Error(serveErr)
			}
			if key != c.want || err != nil {
				t.Errorf("a client called %q: %q, %v; want %q", name, key, err, c.want)
			}
		}
	}
}
