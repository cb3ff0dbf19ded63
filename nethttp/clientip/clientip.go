// Package clientip finds the address of a request's client, without trusting the client.
//
// A server sees the address of its peer. Behind a proxy that is the proxy, and the client's address
// is in the header X-Forwarded-For, to which every proxy appends the address of its own peer. Any
// client can send that header, so only its right end, which trusted proxies wrote, is evidence.
// Choose exactly one:
//
//	clientip.Direct()                                             // no proxy in front
//	clientip.TrustedProxies(netip.MustParsePrefix("10.0.0.0/8"))  // proxies of known addresses
//	clientip.TrustedHops(2)                                       // a known number of proxies
//	clientip.TrustedUnixSocket()                                  // a proxy that connects by a Unix socket
//
// X-Forwarded-For is the only header that is read. Forwarded, X-Real-IP and similar headers are
// not: a proxy passes on headers that it does not set itself, so with more than one header to
// choose from, the client would choose.
package clientip

import (
	"cmp"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"sync/atomic"
)

// ErrNoAddress is returned for a request whose client has no IP address: its RemoteAddr is none, as
// when it came in by a Unix socket, and no trusted proxy has reported one.
var ErrNoAddress = errors.New("clientip: remote address is not an IP address")

// unixSocket is the key of all clients of a Unix socket whose addresses are not known. The path
// that such a client has bound would be its own choice.
const unixSocket = "unix"

// defaultIPv6Bits is the size of a single network (RFC 4291, section 2.5.4): any device in it can
// use any address of it.
const defaultIPv6Bits = 64

// Resolver finds the address of the client of a request. Build one with [Direct], [TrustedProxies],
// [TrustedHops] or [TrustedUnixSocket]; the zero value is Direct, which trusts no header.
//
// Most callers want [Resolver.Key], the key of a limit. [Resolver.Addr] is for logs and for lists
// of addresses. A Resolver is an immutable value, and all methods may be called concurrently.
//
// Addresses are normal forms, in requests as in trusted prefixes: an IPv4 address in IPv6 form
// (::ffff:203.0.113.7) is the IPv4 address, and zones (fe80::1%eth0) are cut off. An entry of
// X-Forwarded-For may carry a port (203.0.113.7:5678, [2001:db8::1]:443) and spaces around it.
// Several lines of the header are one list, in their order.
type Resolver struct {
	proxies  *proxySet // nil unless built by TrustedProxies
	hops     int       // 0 unless built by TrustedHops
	ipv6Bits int       // 0 for defaultIPv6Bits
}

// Direct returns a Resolver that takes RemoteAddr for the client's address, and trusts no header.
// It is right for a server that clients connect to, and safe for any: behind a proxy, or a Unix
// socket, all clients are one. The first request with X-Forwarded-For or Forwarded is logged by
// [slog.Default]: it is a sign of a proxy, or of a client that sends such fields itself.
//
// Middleware that sets RemoteAddr from a header undoes this, and must not run before.
func Direct() Resolver { return Resolver{} }

// TrustedProxies returns a Resolver that reads X-Forwarded-For from the right as long as a trusted
// proxy wrote the entry: one with an address in the prefixes. It starts with RemoteAddr. The next
// entry to the left of a trusted address is that proxy's peer. The client is the first address that
// is not trusted, or the leftmost if all of them are. Hence:
//
//   - If RemoteAddr is not trusted, it is the client, whatever the header says.
//   - Entries that the client sent are not reached: the client's own address is to the right of
//     them.
//   - An entry that is not an address ends the walk, and the trusted proxy that reported it is the
//     client. Nothing to the left of it is read.
//
// Each of these proxies has to append to X-Forwarded-For or to replace it. A proxy that passes it
// on unchanged lets clients choose their address, and so does the prefix 0.0.0.0/0 or ::/0.
//
// It panics if there are no prefixes, or if one is invalid or is an IPv4-mapped one shorter than
// ::ffff:0:0/96.
func TrustedProxies(proxies ...netip.Prefix) Resolver {
	if len(proxies) == 0 {
		panic("clientip: TrustedProxies: no prefixes")
	}
	return Resolver{proxies: newProxySet("TrustedProxies", proxies)}
}

// TrustedUnixSocket is [TrustedProxies] for a server that a proxy connects to by a Unix socket:
// every peer on the socket is a trusted proxy, as is a peer with an address in one of the prefixes,
// if there are any. The permissions of the socket must keep other processes out. A request that
// comes by TCP is treated as by TrustedProxies, or, without prefixes, by [Direct].
//
// Without an address in X-Forwarded-For the client is not known: see [Resolver.Key].
//
// It panics on a prefix on which TrustedProxies panics.
func TrustedUnixSocket(proxies ...netip.Prefix) Resolver {
	set := newProxySet("TrustedUnixSocket", proxies)
	set.unixSocket = true
	return Resolver{proxies: set}
}

// TrustedHops is for n proxies in front of the server whose addresses are not known. The client is
// the n-th entry of X-Forwarded-For from the right: the peer of the outermost of the n. The entries
// to the right of it are not examined.
//
// If the header has fewer entries, the request has not come through all proxies. If that entry is
// not an address, the peer is not known. In both cases RemoteAddr is the client. The nearest proxy
// may connect by a Unix socket.
//
// Each proxy has to append to X-Forwarded-For, except that the outermost may replace it. There must
// be no way around any of them: a client that comes through fewer than n chooses its own address,
// since counting cannot detect it. If the proxies' addresses are known, use [TrustedProxies].
//
// It panics if n is less than 1.
func TrustedHops(n int) Resolver {
	if n < 1 {
		panic("clientip: TrustedHops: n is less than 1")
	}
	return Resolver{hops: n}
}

// IPv6Prefix returns r with the number of leading bits of an IPv6 address that distinguish clients
// in [Resolver.Key]. The default is 64, since a client with one address has all 2^64 of its
// network. Many customers have a /56 or a /48, with 256 or 65,536 times as many keys. 128 is for
// networks where IPv4 clients arrive translated into one IPv6 prefix, and would share one key.
//
// It panics if bits is not in 1..128.
func (r Resolver) IPv6Prefix(bits int) Resolver {
	if bits < 1 || bits > 128 {
		panic("clientip: IPv6Prefix: bits is not in 1..128")
	}
	r.ipv6Bits = bits
	return r
}

// Addr returns the client's address in full, with IPv4 unmapped and without a zone.
//
// It returns [ErrNoAddress] if the request's RemoteAddr is not an IP address, whatever the headers
// say, since their sender is not known. A request by a Unix socket has an address only by
// [TrustedUnixSocket] or [TrustedHops]. There are no other errors.
func (r Resolver) Addr(req *http.Request) (netip.Addr, error) {
	return r.addr(req, byUnixSocket(req))
}

func (r Resolver) addr(req *http.Request, unix bool) (netip.Addr, error) {
	var remote netip.Addr // not valid for a Unix socket
	if !unix {
		var ok bool
		if remote, ok = parseAddr(req.RemoteAddr); !ok {
			return netip.Addr{}, ErrNoAddress
		}
	}
	addr := remote
	switch forwarded := req.Header[forwardedFor]; {
	case r.proxies != nil:
		addr = r.proxies.client(remote, forwarded)
	case r.hops > 0:
		addr = clientBeyond(r.hops, remote, forwarded)
	}
	if !addr.IsValid() {
		return netip.Addr{}, ErrNoAddress
	}
	return addr, nil
}

// byUnixSocket reports whether a request came by a Unix socket. Only the server's own address shows
// that: RemoteAddr is empty, "@", or the path that the client has bound, which may look like an IP
// address.
func byUnixSocket(req *http.Request) bool {
	local, ok := req.Context().Value(http.LocalAddrContextKey).(net.Addr)
	return ok && local.Network() == "unix"
}

// warned is set when a resolver that trusts no proxy has logged a request of one.
var warned atomic.Bool

// warnOfProxy logs the first request that a proxy seems to have passed on. A client can send these
// fields, too.
func warnOfProxy(req *http.Request) {
	if len(req.Header[forwardedFor])+len(req.Header["Forwarded"]) > 0 && !warned.Swap(true) {
		slog.WarnContext(req.Context(), "lockkeeper: requests have X-Forwarded-For or Forwarded, and clientip.Direct takes all clients of a proxy for one: "+
			"if there is a proxy in front, use clientip.TrustedProxies or clientip.TrustedHops", "peer", req.RemoteAddr)
	}
}

// Key returns the key of the client for limits: its IPv4 address ("203.0.113.7"), or the network of
// its IPv6 address ("2001:db8::/64", or as set by [Resolver.IPv6Prefix]). All requests by a Unix
// socket whose client's address is not known have the key "unix".
//
// It returns [ErrNoAddress] if [Resolver.Addr] does for a request that did not come by a Unix
// socket.
func (r Resolver) Key(req *http.Request) (string, error) {
	unix := byUnixSocket(req)
	if r.proxies == nil && r.hops == 0 {
		warnOfProxy(req)
	}
	if !unix && r.proxies == nil && r.hops == 0 {
		if key, ok := cutIPv4(req.RemoteAddr); ok {
			return key, nil
		}
	}
	addr, err := r.addr(req, unix)
	switch {
	case err != nil && unix:
		return unixSocket, nil
	case err != nil:
		return "", err
	}
	if addr.Is4() {
		return addr.String(), nil
	}
	network := netip.PrefixFrom(addr, cmp.Or(r.ipv6Bits, defaultIPv6Bits)).Masked()
	var buf [len("ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff/128")]byte
	return string(network.AppendTo(buf[:0])), nil
}
