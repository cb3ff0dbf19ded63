package connectmw_test

import (
	"context"
	"errors"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things/thingsconnect"
	"github.com/lockkeeper/lockkeeper/connectmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/rpctest"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func fixed(value string) connectmw.KeyFunc {
	return func(*connectmw.Call) (string, error) { return value, nil }
}

func failing(err error) connectmw.KeyFunc {
	return func(*connectmw.Call) (string, error) { return "", err }
}

func TestKeyFuncs(t *testing.T) {
	errServer := errors.New("any error that is the server's")
	request := &things.MakeRequest{
		Id: "42", Amount: 7, Owner: &things.Owner{Name: "o", Number: 9}, Kind: things.Kind_KIND_LARGE, Tags: []string{"a"}, Urgent: true,
	}
	as := func(v any) context.Context { return context.WithValue(t.Context(), userKey{}, v) }
	for name, c := range map[string]struct {
		key    connectmw.KeyFunc
		ctx    context.Context
		header http.Header
		want   string
		err    error
	}{
		"header":                      {key: connectmw.ByHeader("x-key"), header: http.Header{"X-Key": {"k"}}, want: "k"},
		"no header":                   {key: connectmw.ByHeader("x-key"), err: policy.ErrNoKey},
		"two values":                  {key: connectmw.ByHeader("x-key"), header: http.Header{"X-Key": {"a", "b"}}, err: policy.ErrNoKey},
		"no peer":                     {key: connectmw.ByPeer(), err: clientip.ErrNoAddress},
		"field":                       {key: connectmw.ByField("id"), want: "42"},
		"field of a message":          {key: connectmw.ByField("owner.name"), want: "o"},
		"field, integer":              {key: connectmw.ByField("amount"), want: "7"},
		"field, unsigned":             {key: connectmw.ByField("owner.number"), want: "9"},
		"field, enum":                 {key: connectmw.ByField("kind"), want: "1"},
		"field, bool":                 {key: connectmw.ByField("urgent"), want: "true"},
		"field, empty":                {key: connectmw.ByField("request_id"), err: policy.ErrNoKey},
		"no such field":               {key: connectmw.ByField("nothing"), err: policy.ErrNotProvided},
		"field, list":                 {key: connectmw.ByField("tags"), err: policy.ErrNotProvided},
		"field, bytes":                {key: connectmw.ByField("data"), err: policy.ErrNotProvided},
		"field, message":              {key: connectmw.ByField("owner"), err: policy.ErrNotProvided},
		"field of no message":         {key: connectmw.ByField("id.name"), err: policy.ErrNotProvided},
		"context string":              {key: connectmw.ByContext(userKey{}), ctx: as("alice"), want: "alice"},
		"context integer":             {key: connectmw.ByContext(userKey{}), ctx: as(uint64(7)), want: "7"},
		"context Stringer":            {key: connectmw.ByContext(userKey{}), ctx: as(time.Second), want: "1s"},
		"context unset":               {key: connectmw.ByContext(userKey{}), err: policy.ErrNotProvided},
		"context nil pointer":         {key: connectmw.ByContext(userKey{}), ctx: as((*url.URL)(nil)), err: policy.ErrNotProvided},
		"context 0":                   {key: connectmw.ByContext(userKey{}), ctx: as(0), err: policy.ErrNotProvided},
		"context uint64 0":            {key: connectmw.ByContext(userKey{}), ctx: as(uint64(0)), err: policy.ErrNotProvided},
		"context zero Stringer":       {key: connectmw.ByContext(userKey{}), ctx: as(netip.Addr{}), err: policy.ErrNotProvided},
		"context Stringer of nothing": {key: connectmw.ByContext(userKey{}), ctx: as(&url.URL{}), err: policy.ErrNotProvided},
		"first of, not provided":      {key: connectmw.FirstOf(connectmw.ByContext(userKey{}), fixed("a")), want: "1:a"},
		"first of, none provided":     {key: connectmw.FirstOf(connectmw.ByContext(userKey{}), failing(policy.ErrNotProvided)), err: policy.ErrNotProvided},
		"first of, none sent":         {key: connectmw.FirstOf(connectmw.ByContext(userKey{}), failing(policy.ErrNoKey), failing(policy.ErrNotProvided)), err: policy.ErrNoKey},
		"first of, unusable":          {key: connectmw.FirstOf(connectmw.ByContext(userKey{}), fixed("a")), ctx: as([]string{"a"}), err: policy.ErrNotProvided},
		"context of a type":           {key: connectmw.ByContext(userKey{}), ctx: as([]string{"a"}), err: errServer},
		"global":                      {key: connectmw.Global(), want: "global"},
		"join":                        {key: connectmw.Join(fixed("a"), fixed("b:")), want: "1:a2:b:"},
		"first of":                    {key: connectmw.FirstOf(fixed(""), fixed("a")), want: "1:a"},
		"first of, none":              {key: connectmw.FirstOf(fixed(""), fixed("")), err: policy.ErrNoKey},
	} {
		t.Run(name, func(t *testing.T) {
			if c.ctx == nil {
				c.ctx = t.Context()
			}
			req := connect.NewRequest(request)
			maps.Copy(req.Header(), c.header)
			got, err := c.key(connectmw.NewCall(c.ctx, req))
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
	if _, err := connectmw.ByField("id")(connectmw.NewCall(t.Context(), connect.NewRequest(new(string)))); err == nil {
		t.Error("a request that is no message has a field")
	}
	unset := connectmw.NewCall(t.Context(), connect.NewRequest(&things.MakeRequest{}))
	if got, err := connectmw.ByField("owner.number")(unset); !errors.Is(err, policy.ErrNoKey) {
		t.Errorf("a number in a message that is not set: %q, %v", got, err)
	}
	if got, err := connectmw.ByField("amount")(unset); got != "0" || err != nil {
		t.Errorf("a number that is 0: %q, %v", got, err)
	}
}

// A stream to which the client sends one message is keyed by it, and the handler receives it too.
func TestStreamIsKeyedByItsOnlyRequest(t *testing.T) {
	var s service
	client := serve(t, &s, ratelimit.New(rpctest.NewLimiter(t, rpctest.NewStore(t), tokenbucket.PerMinute(1)), connectmw.ByField("id")))
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
	call := connectmw.NewCall(t.Context(), connect.NewRequest(&things.MakeRequest{}))
	if !(connectmw.ScopeFunc{}).IsZero() || connectmw.Unscoped().IsZero() || connectmw.ScopeBy(connectmw.Global()).IsZero() {
		t.Error("IsZero is wrong")
	}
	if none, err := connectmw.Unscoped().Of(call); err != nil || none != "" {
		t.Errorf("no scope is %q, %v; want the empty one, which guards do not bound", none, err)
	}
	if _, err := connectmw.ScopeBy(fixed("")).Of(call); !errors.Is(err, policy.ErrNoKey) {
		t.Errorf("an empty subject: %v", err)
	}
}

// All clients of a Unix socket are one, whatever they send, unless its other end is a trusted
// proxy.
func TestByPeerOverAUnixSocket(t *testing.T) {
	t.Chdir(t.TempDir())
	for _, c := range []struct {
		key  connectmw.KeyFunc
		want string
	}{
		{connectmw.ByPeer(), "unix"},
		{connectmw.ByClientIP(clientip.TrustedProxies(netip.MustParsePrefix("0.0.0.0/0"))), "unix"},
		{connectmw.ByClientIP(clientip.TrustedUnixSocket()), "203.0.113.7"},
	} {
		for _, name := range []string{"", "203.0.113.99:1"} {
			found := make(chan keyFound, 1)
			var s service
			mux := http.NewServeMux()
			mux.Handle(thingsconnect.NewThingsHandler(&s, connect.WithInterceptors(spying(c.key, found))))
			server := http.Server{Handler: mux}
			listener := must(net.Listen("unix", "server.sock"))
			served := make(chan error, 1)
			go func() { served <- server.Serve(listener) }()
			_ = os.Remove(name)
			dialer := net.Dialer{}
			if name != "" {
				dialer.LocalAddr = &net.UnixAddr{Name: name, Net: "unix"}
			}
			transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
				return dialer.DialContext(ctx, "unix", "server.sock")
			}}
			client := client{t, thingsconnect.NewThingsClient(&http.Client{Transport: transport}, "http://server")}
			if _, err := client.Make(with(t, "x-forwarded-for", "198.51.100.1, 203.0.113.7"), &things.MakeRequest{}); err != nil {
				t.Error(err)
			}
			transport.CloseIdleConnections()
			ok(t, server.Close())
			if err := <-served; !errors.Is(err, http.ErrServerClosed) {
				t.Error(err)
			}
			key, err := (<-found).get()
			if key != c.want || err != nil {
				t.Errorf("a client called %q: %q, %v; want %q", name, key, err, c.want)
			}
		}
	}
}

// keyFound is the result of a key function.
type keyFound struct {
	key string
	err error
}

func (k keyFound) get() (string, error) { return k.key, k.err }

// spying is an interceptor that calls a key function.
func spying(key connectmw.KeyFunc, found chan<- keyFound) connect.Interceptor {
	return connect.UnaryInterceptorFunc(func(next connect.UnaryFunc) connect.UnaryFunc {
		return func(ctx context.Context, req connect.AnyRequest) (connect.AnyResponse, error) {
			k, err := key(connectmw.NewCall(ctx, req))
			found <- keyFound{k, err}
			return next(ctx, req)
		}
	})
}

func TestKeysOfAServersCall(t *testing.T) {
	proxies := clientip.TrustedProxies(netip.MustParsePrefix("127.0.0.0/8"))
	for name, c := range map[string]struct {
		key  connectmw.KeyFunc
		want string
	}{
		"procedure":            {connectmw.ByProcedure(), thingsconnect.ThingsMakeProcedure},
		"peer":                 {connectmw.ByPeer(), "127.0.0.1"},
		"behind a proxy":       {connectmw.ByClientIP(proxies), "203.0.113.7"},
		"not behind the proxy": {connectmw.ByClientIP(clientip.TrustedProxies(netip.MustParsePrefix("10.0.0.0/8"))), "127.0.0.1"},
	} {
		found := make(chan keyFound, 1)
		client := serve(t, &service{}, spying(c.key, found))
		_, err := client.Make(with(t, "X-Forwarded-For", "198.51.100.1, 203.0.113.7"), &things.MakeRequest{})
		ok(t, err)
		if key, err := (<-found).get(); key != c.want || err != nil {
			t.Errorf("%s: %q, %v, want %q", name, key, err, c.want)
		}
	}
}
