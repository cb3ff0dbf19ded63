package clientip_test

import (
	"errors"
	"math"
	"net/http"
	"net/netip"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func request(remote string, forwardedFor ...string) *http.Request {
	r := &http.Request{RemoteAddr: remote, Header: http.Header{}}
	for _, line := range forwardedFor {
		r.Header.Add("X-Forwarded-For", line)
	}
	return r
}

func proxies(prefixes ...string) clientip.Resolver {
	list := make([]netip.Prefix, len(prefixes))
	for i, p := range prefixes {
		list[i] = netip.MustParsePrefix(p)
	}
	return clientip.TrustedProxies(list...)
}

func TestAddr(t *testing.T) {
	var (
		direct  = clientip.Direct()
		private = proxies("10.0.0.0/8", "fd00::/8")
		one     = clientip.TrustedHops(1)
		two     = clientip.TrustedHops(2)
	)
	const untrusted, trusted = "203.0.113.7:1234", "10.0.0.1:1234"
	lines := func(l ...string) []string { return l }

	for _, test := range []struct {
		name      string
		resolver  clientip.Resolver
		remote    string
		forwarded []string
		want      string
	}{
		{"direct, IPv4", direct, untrusted, nil, "203.0.113.7"},
		{"direct, IPv6", direct, "[2001:db8::1]:1234", nil, "2001:db8::1"},
		{"direct, no port", direct, "203.0.113.7", nil, "203.0.113.7"},
		{"direct, IPv6, no port", direct, "2001:db8::1", nil, "2001:db8::1"},
		{"direct, mapped", direct, "[::ffff:203.0.113.7]:1234", nil, "203.0.113.7"},
		{"direct, mapped in hexadecimal", direct, "[::ffff:cb00:7107]:1234", nil, "203.0.113.7"},
		{"direct, mapped with zone", direct, "[::ffff:203.0.113.7%eth0]:1234", nil, "203.0.113.7"},
		{"direct, zone", direct, "[fe80::1%eth0]:1234", nil, "fe80::1"},
		{"direct, header ignored", direct, untrusted, lines("198.51.100.1"), "203.0.113.7"},
		{"zero value is direct", clientip.Resolver{}, trusted, lines("198.51.100.1"), "10.0.0.1"},

		{"proxies, no header", private, trusted, nil, "10.0.0.1"},
		{"proxies, one entry", private, trusted, lines("203.0.113.7"), "203.0.113.7"},
		{"proxies, chain", private, trusted, lines("203.0.113.7, 10.0.0.3, 10.0.0.2"), "203.0.113.7"},
		{"proxies, both families", private, "[fd00::1]:80", lines("203.0.113.7,10.0.0.2"), "203.0.113.7"},
		{"proxies, IPv6 client", private, trusted, lines("2001:db8::1"), "2001:db8::1"},
		{"proxies, all trusted", private, trusted, lines("10.0.0.4, 10.0.0.3"), "10.0.0.4"},
		{"proxies, lines in order", private, trusted, lines("198.51.100.1", "203.0.113.7, 10.0.0.3", "10.0.0.2"), "203.0.113.7"},
		{"proxies, all trusted, lines", private, trusted, lines("10.0.0.4", "10.0.0.3"), "10.0.0.4"},
		{"proxies, remote mapped", private, "[::ffff:10.0.0.1]:80", lines("203.0.113.7"), "203.0.113.7"},
		{"proxies, entry mapped", private, trusted, lines("203.0.113.7, ::ffff:10.0.0.2"), "203.0.113.7"},
		{"proxies, client mapped", private, trusted, lines("::ffff:203.0.113.7"), "203.0.113.7"},
		{"proxies, remote with zone", proxies("fe80::/10"), "[fe80::1%eth0]:80", lines("203.0.113.7"), "203.0.113.7"},
		{"proxies, entry with zone", private, trusted, lines("203.0.113.7, fd00::1%eth0"), "203.0.113.7"},
		{"proxies, prefix mapped", proxies("::ffff:10.0.0.0/104"), trusted, lines("203.0.113.7"), "203.0.113.7"},
		{"proxies, prefix mapped, beyond it", proxies("::ffff:10.0.0.0/104"), "11.0.0.1:80", lines("203.0.113.7"), "11.0.0.1"},
		{"proxies, prefix mapped, remote too", proxies("::ffff:10.0.0.1/128"), "[::ffff:a00:1]:80", lines("203.0.113.7"), "203.0.113.7"},
		{"proxies, prefix not masked", proxies("10.9.8.7/8"), trusted, lines("203.0.113.7"), "203.0.113.7"},
		{"proxies, ::/0 is IPv6 only", proxies("::/0"), trusted, lines("203.0.113.7"), "10.0.0.1"},

		{"spoof: remote not trusted", private, untrusted, lines("198.51.100.1"), "203.0.113.7"},
		{"spoof: remote not trusted, trusted entry", private, untrusted, lines("198.51.100.1, 10.0.0.1"), "203.0.113.7"},
		{"spoof: entry on the left", private, trusted, lines("198.51.100.1, 203.0.113.7"), "203.0.113.7"},
		{"spoof: trusted entry on the left", private, trusted, lines("198.51.100.1, 10.0.0.9, 203.0.113.7"), "203.0.113.7"},
		{"spoof: line on the left", private, trusted, lines("198.51.100.1", "203.0.113.7"), "203.0.113.7"},
		{"spoof: line that ends in a comma", private, trusted, lines("198.51.100.1,", "203.0.113.7"), "203.0.113.7"},
		{"spoof: garbage on the left", private, trusted, lines("\x00]]%, 203.0.113.7"), "203.0.113.7"},
		{"spoof: all addresses below the prefix", proxies("10.0.0.1/32"), trusted, lines("198.51.100.1, 10.0.0.2"), "10.0.0.2"},

		{"garbage ends at the remote address", private, trusted, lines("203.0.113.7, unknown"), "10.0.0.1"},
		{"garbage ends at its reporter", private, trusted, lines("203.0.113.7, unknown, 10.0.0.3, 10.0.0.2"), "10.0.0.3"},
		{"garbage: empty header", private, trusted, lines(""), "10.0.0.1"},
		{"garbage: empty entry", private, trusted, lines("203.0.113.7, , 10.0.0.2"), "10.0.0.2"},
		{"garbage: empty line", private, trusted, lines("203.0.113.7", ""), "10.0.0.1"},

		{"one hop", one, trusted, lines("203.0.113.7"), "203.0.113.7"},
		{"one hop, no header", one, trusted, nil, "10.0.0.1"},
		{"one hop, spoof", one, trusted, lines("198.51.100.1, 203.0.113.7"), "203.0.113.7"},
		{"one hop, spoof in a line", one, trusted, lines("198.51.100.1", "203.0.113.7"), "203.0.113.7"},
		{"one hop, garbage", one, trusted, lines("198.51.100.1, unknown"), "10.0.0.1"},
		{"one hop, empty", one, trusted, lines(""), "10.0.0.1"},
		{"one hop, mapped", one, trusted, lines("::ffff:203.0.113.7"), "203.0.113.7"},
		{"two hops", two, trusted, lines("203.0.113.7, 192.0.2.1"), "203.0.113.7"},
		{"two hops, two lines", two, trusted, lines("203.0.113.7", "192.0.2.1"), "203.0.113.7"},
		{"two hops, spoof", two, trusted, lines("198.51.100.1, 203.0.113.7, 192.0.2.1"), "203.0.113.7"},
		{"two hops, one missing", two, trusted, lines("198.51.100.1"), "10.0.0.1"},
		{"two hops, no header", two, trusted, nil, "10.0.0.1"},
		{"two hops, garbage", two, trusted, lines("198.51.100.1, unknown, 192.0.2.1"), "10.0.0.1"},
		{"two hops, nameless proxy", two, trusted, lines("203.0.113.7, unix:"), "203.0.113.7"},
		{"more hops than entries can be", clientip.TrustedHops(math.MaxInt), trusted, lines("198.51.100.1"), "10.0.0.1"},
	} {
		t.Run(test.name, func(t *testing.T) {
			got, err := test.resolver.Addr(request(test.remote, test.forwarded...))
			if err != nil || got != netip.MustParseAddr(test.want) {
				t.Errorf("Addr = %v, %v; want %s", got, err, test.want)
			}
		})
	}
}

func TestKey(t *testing.T) {
	direct := clientip.Direct()
	for _, test := range []struct {
		resolver     clientip.Resolver
		remote, want string
	}{
		{direct, "203.0.113.7:1234", "203.0.113.7"},
		{direct, "[::ffff:203.0.113.7]:1234", "203.0.113.7"}, // not ::/64, with all others
		{direct, "[2001:db8::1]:1234", "2001:db8::/64"},
		{direct, "[2001:db8::ffff:ffff:ffff:ffff]:1", "2001:db8::/64"},
		{direct, "[2001:db8:0:1::1]:1234", "2001:db8:0:1::/64"},
		{direct, "[fe80::1%eth0]:1234", "fe80::/64"},
		{direct, "[::1]:1234", "::/64"},
		{clientip.Resolver{}, "[2001:db8::1]:1234", "2001:db8::/64"},
		{direct.IPv6Prefix(48), "[2001:db8:1:2::1]:1234", "2001:db8:1::/48"},
		{direct.IPv6Prefix(57), "[2001:db8:0:ff::1]:1234", "2001:db8:0:80::/57"},
		{direct.IPv6Prefix(1), "[ffff::1]:1234", "8000::/1"},
		{direct.IPv6Prefix(128), "[2001:db8::1]:1234", "2001:db8::1/128"},
		{direct.IPv6Prefix(128), "[1111:2222:3333:4444:5555:6666:7777:8888]:1234", "1111:2222:3333:4444:5555:6666:7777:8888/128"},
		{direct.IPv6Prefix(1), "203.0.113.7:1234", "203.0.113.7"},
		{direct.IPv6Prefix(48).IPv6Prefix(64), "[2001:db8:1:2::1]:1234", "2001:db8:1:2::/64"},
		{proxies("10.0.0.0/8").IPv6Prefix(56), "10.0.0.1:80", "2001:db8:0:ff00::/56"},
		{clientip.TrustedHops(1).IPv6Prefix(56), "10.0.0.1:80", "2001:db8:0:ff00::/56"},
	} {
		got, err := test.resolver.Key(request(test.remote, "2001:db8:0:ff12::1"))
		if err != nil || got != test.want {
			t.Errorf("Key of %s = %q, %v; want %q", test.remote, got, err, test.want)
		}
	}
}

func TestIPv6PrefixLeavesItsReceiver(t *testing.T) {
	r := clientip.Direct()
	_ = r.IPv6Prefix(32)
	if got, _ := r.Key(request("[2001:db8::1]:1")); got != "2001:db8::/64" {
		t.Errorf("Key = %q after IPv6Prefix of a copy", got)
	}
}

func TestTrustedProxiesCopiesItsPrefixes(t *testing.T) {
	list := []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}
	r := clientip.TrustedProxies(list...)
	list[0] = netip.MustParsePrefix("203.0.113.0/24")
	if got, _ := r.Key(request("203.0.113.7:1", "198.51.100.1")); got != "203.0.113.7" {
		t.Errorf("Key = %q after the caller's list was changed", got)
	}
}

func TestNoAddress(t *testing.T) {
	for _, remote := range []string{"", "@", "/run/app.sock", "localhost:80", "pipe", "203.0.113.7:x"} {
		for name, resolver := range map[string]clientip.Resolver{
			"Direct":         clientip.Direct(),
			"TrustedProxies": proxies("0.0.0.0/0", "::/0"),
			"TrustedHops":    clientip.TrustedHops(1),
		} {
			req := request(remote, "198.51.100.1")
			if addr, err := resolver.Addr(req); !errors.Is(err, clientip.ErrNoAddress) || addr.IsValid() {
				t.Errorf("%s: Addr of %q = %v, %v; want ErrNoAddress", name, remote, addr, err)
			}
			if key, err := resolver.Key(req); !errors.Is(err, clientip.ErrNoAddress) || key != "" {
				t.Errorf("%s: Key of %q = %q, %v; want ErrNoAddress", name, remote, key, err)
			}
		}
	}
}

func TestOtherHeadersAreNotRead(t *testing.T) {
	for name, resolver := range map[string]clientip.Resolver{
		"Direct":         clientip.Direct(),
		"TrustedProxies": proxies("10.0.0.0/8"),
		"TrustedHops":    clientip.TrustedHops(1),
	} {
		req := request("10.0.0.1:80")
		req.Header.Set("Forwarded", "for=198.51.100.1")
		for _, h := range []string{"X-Real-IP", "X-Client-IP", "True-Client-IP", "CF-Connecting-IP", "X-Forwarded"} {
			req.Header.Set(h, "198.51.100.1")
		}
		if got, err := resolver.Key(req); err != nil || got != "10.0.0.1" {
			t.Errorf("%s: Key = %q, %v; want the remote address", name, got, err)
		}
	}
}

func TestNilHeader(t *testing.T) {
	req := &http.Request{RemoteAddr: "10.0.0.1:80"}
	if got, err := proxies("10.0.0.0/8").Key(req); err != nil || got != "10.0.0.1" {
		t.Errorf("Key = %q, %v", got, err)
	}
}

func TestMisuse(t *testing.T) {
	for prefix, misuse := range map[string][]func(){
		"clientip: TrustedProxies: ": {
			func() { clientip.TrustedProxies() },
			func() { clientip.TrustedProxies(netip.Prefix{}) },
			func() { clientip.TrustedProxies(netip.MustParsePrefix("10.0.0.0/8"), netip.Prefix{}) },
			func() { clientip.TrustedProxies(netip.PrefixFrom(netip.MustParseAddr("10.0.0.0"), 33)) },
			func() { proxies("::ffff:10.0.0.0/95") },
		},
		"clientip: TrustedUnixSocket: ": {
			func() { clientip.TrustedUnixSocket(netip.Prefix{}) },
			func() { clientip.TrustedUnixSocket(netip.PrefixFrom(netip.MustParseAddr("::ffff:10.0.0.0"), 95)) },
		},
		"clientip: TrustedHops: ": {
			func() { clientip.TrustedHops(0) },
			func() { clientip.TrustedHops(-1) },
		},
		"clientip: IPv6Prefix: ": {
			func() { clientip.Direct().IPv6Prefix(0) },
			func() { clientip.Direct().IPv6Prefix(-64) },
			func() { clientip.Direct().IPv6Prefix(129) },
		},
	} {
		for i, f := range misuse {
			func() {
				defer func() {
					if msg, _ := recover().(string); !strings.HasPrefix(msg, prefix) {
						t.Errorf("misuse %d panics with %q; want %q...", i, msg, prefix)
					}
				}()
				f()
			}()
		}
	}
}

// Without a proxy most keys are substrings of RemoteAddr, and equal to those of other spellings.
func TestSpellingsOfAnAddress(t *testing.T) {
	for _, remote := range []string{
		"203.0.113.7:1234", "203.0.113.7:0", "203.0.113.7:65536", "203.0.113.7:", "203.0.113.7:x", "203.0.113.7", " 203.0.113.7:1 ",
		"203.0.113.07:1", "203.0.113:1", "203.0.113.256:1", "203.0.113.7.1:1", ":1", "", "localhost:1", "2001:db8", "::1:1",
		"[203.0.113.7]:1", "[::ffff:203.0.113.7]:1", "::ffff:203.0.113.7", "203.0.113.7:1:1", "203.0.113.7%x:1",
	} {
		addr, addrErr := clientip.Direct().Addr(request(remote))
		key, err := clientip.Direct().Key(request(remote))
		if !errors.Is(err, addrErr) || err == nil && addr.Is4() && key != addr.String() {
			t.Errorf("%q: the key is %q, %v, and the address %v, %v", remote, key, err, addr, addrErr)
		}
	}
}
