package clientip_test

import (
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// overUnixSocket returns the address that a resolver finds in a request over a Unix socket, from a
// client that has bound its end to a name.
func overUnixSocket(t *testing.T, r clientip.Resolver, name string, forwarded ...string) (key string, addr netip.Addr, err error) {
	t.Helper()
	ln, err := net.Listen("unix", "server.sock")
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{ReadHeaderTimeout: time.Minute, Handler: http.HandlerFunc(func(_ http.ResponseWriter, req *http.Request) {
		key, err = r.Key(req)
		var addrErr error
		addr, addrErr = r.Addr(req)
		if addrErr != nil && !errors.Is(addrErr, clientip.ErrNoAddress) {
			t.Errorf("Addr: %v", addrErr)
		}
	})}
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()
	dialer := net.Dialer{}
	if name != "" {
		dialer.LocalAddr = &net.UnixAddr{Name: name, Net: "unix"}
	}
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return dialer.DialContext(ctx, "unix", "server.sock")
	}}
	req, reqErr := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://server/", nil)
	if reqErr != nil {
		t.Fatal(reqErr)
	}
	for _, line := range forwarded {
		req.Header.Add("X-Forwarded-For", line)
	}
	resp, doErr := (&http.Client{Transport: transport}).Do(req)
	if doErr != nil {
		t.Fatal(doErr)
	}
	_, _ = io.Copy(io.Discard, resp.Body)
	_ = resp.Body.Close()
	transport.CloseIdleConnections()
	if err := server.Shutdown(t.Context()); err != nil {
		t.Error(err)
	}
	if err := <-served; !errors.Is(err, http.ErrServerClosed) {
		t.Error(err)
	}
	return key, addr, err
}

func TestUnixSocket(t *testing.T) {
	anywhere := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
	for name, c := range map[string]struct {
		resolver  clientip.Resolver
		forwarded []string
		want      string
	}{
		"Direct":                                {clientip.Direct(), nil, "unix"},
		"Direct trusts no field":                {clientip.Direct(), []string{"203.0.113.7"}, "unix"},
		"TrustedProxies":                        {clientip.TrustedProxies(anywhere...), nil, "unix"},
		"TrustedProxies are none by a socket":   {clientip.TrustedProxies(anywhere...), []string{"203.0.113.7"}, "unix"},
		"TrustedUnixSocket":                     {clientip.TrustedUnixSocket(), []string{"203.0.113.7"}, "203.0.113.7"},
		"TrustedUnixSocket, spoofed":            {clientip.TrustedUnixSocket(), []string{"198.51.100.1", "10.0.0.9, 203.0.113.7"}, "203.0.113.7"},
		"TrustedUnixSocket, IPv6":               {clientip.TrustedUnixSocket(), []string{"2001:db8::1"}, "2001:db8::/64"},
		"TrustedUnixSocket, a proxy behind it":  {clientip.TrustedUnixSocket(netip.MustParsePrefix("10.0.0.0/8")), []string{"198.51.100.1, 203.0.113.7, 10.0.0.2"}, "203.0.113.7"},
		"TrustedUnixSocket, no header":          {clientip.TrustedUnixSocket(), nil, "unix"},
		"TrustedUnixSocket, no address":         {clientip.TrustedUnixSocket(), []string{"203.0.113.7, unix:"}, "unix"},
		"TrustedUnixSocket, an empty entry":     {clientip.TrustedUnixSocket(), []string{"203.0.113.7,"}, "unix"},
		"TrustedHops":                           {clientip.TrustedHops(1), []string{"198.51.100.1, 203.0.113.7"}, "203.0.113.7"},
		"TrustedHops, too few":                  {clientip.TrustedHops(2), []string{"203.0.113.7"}, "unix"},
		"TrustedHops, no address":               {clientip.TrustedHops(1), []string{"203.0.113.7, unknown"}, "unix"},
		"TrustedUnixSocket, a network of yours": {clientip.TrustedUnixSocket().IPv6Prefix(56), []string{"2001:db8:0:aa01::1"}, "2001:db8:0:aa00::/56"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Chdir(t.TempDir())
			// The last two are files, whose names a client may choose.
			for _, bound := range []string{"", "@abstract", "203.0.113.99:1234", "10.0.0.1"} {
				key, addr, err := overUnixSocket(t, c.resolver, bound, c.forwarded...)
				if key != c.want || err != nil || addr.IsValid() != (c.want != "unix") {
					t.Errorf("a client called %q: %q, %v, Addr %v; want %q", bound, key, err, addr, c.want)
				}
			}
		})
	}
}

// A trusted Unix socket changes nothing for TCP.
func TestTrustedUnixSocketByTCP(t *testing.T) {
	for _, c := range []struct {
		resolver clientip.Resolver
		remote   string
		want     string
	}{
		{clientip.TrustedUnixSocket(), "192.0.2.1:1", "192.0.2.1"},
		{clientip.TrustedUnixSocket(netip.MustParsePrefix("10.0.0.0/8")), "192.0.2.1:1", "192.0.2.1"},
		{clientip.TrustedUnixSocket(netip.MustParsePrefix("10.0.0.0/8")), "10.0.0.1:1", "203.0.113.7"},
	} {
		if key, err := c.resolver.Key(request(c.remote, "203.0.113.7")); key != c.want || err != nil {
			t.Errorf("from %s: %q, %v; want %q", c.remote, key, err, c.want)
		}
	}
	// Nor does a RemoteAddr that resembles that of a Unix socket.
	for _, remote := range []string{"", "@", "@203.0.113.7", "/run/client.sock"} {
		if key, err := clientip.TrustedUnixSocket().Key(request(remote, "203.0.113.7")); !errors.Is(err, clientip.ErrNoAddress) {
			t.Errorf("from %q: %q, %v", remote, key, err)
		}
	}
}
