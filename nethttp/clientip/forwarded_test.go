package clientip_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func TestEntries(t *testing.T) {
	const proxy = "10.0.0.1"
	for _, test := range []struct{ entry, want string }{
		{"203.0.113.7", "203.0.113.7"},
		{" \t203.0.113.7\t ", "203.0.113.7"},
		{"203.0.113.7:5678", "203.0.113.7"},
		{" 203.0.113.7:5678 ", "203.0.113.7"},
		{"2001:db8::1", "2001:db8::1"},
		{"2001:DB8:0:0::1", "2001:db8::1"},
		{"2001:db8::1:443", "2001:db8::1:443"}, // without brackets there is no port
		{"[2001:db8::1]", "2001:db8::1"},
		{"[2001:db8::1]:443", "2001:db8::1"},
		{"fe80::1%eth0", "fe80::1"},
		{"[fe80::1%eth0]", "fe80::1"},
		{"[fe80::1%eth0]:443", "fe80::1"},
		{"::ffff:203.0.113.7", "203.0.113.7"},
		{"::FFFF:cb00:7107", "203.0.113.7"},
		{"[::ffff:203.0.113.7]", "203.0.113.7"},
		{"[::ffff:203.0.113.7%eth0]:443", "203.0.113.7"},
		{"2001:db8::203.0.113.7", "2001:db8::cb00:7107"},

		{"", proxy},
		{" ", proxy},
		{"unknown", proxy},
		{"_hidden", proxy},
		{"unix:", proxy},
		{"localhost", proxy},
		{"localhost:80", proxy},
		{"203.0.113", proxy},
		{"203.0.113.256", proxy},
		{"203.0.113.007", proxy}, // decimal to some, octal to others
		{"3405803783", proxy},
		{"0xcb.0.113.7", proxy},
		{"203.0.113.7:", proxy},
		{"203.0.113.7:http", proxy},
		{"203.0.113.7:65536", proxy},
		{"203.0.113.7%eth0", proxy},
		{"203.0.113.7/32", proxy},
		{"203.0.113.7 198.51.100.1", proxy},
		{"\u00a0203.0.113.7", proxy},
		{`"203.0.113.7"`, proxy},
		{"for=203.0.113.7", proxy},
		{"[203.0.113.7]", proxy},
		{"[203.0.113.7]:443", proxy},
		{"[", proxy},
		{"]", proxy},
		{"[]", proxy},
		{"[]:443", proxy},
		{"[2001:db8::1", proxy},
		{"2001:db8::1]", proxy},
		{"[2001:db8::1]443", proxy},
		{"[2001:db8::1]:", proxy},
		{"[[2001:db8::1]]", proxy},
		{":", proxy},
		{":443", proxy},
		{"fe80::1%", proxy},
		{"fe80::1%" + strings.Repeat("z", 1000), proxy},
	} {
		want := netip.MustParseAddr(test.want)
		for name, resolver := range map[string]clientip.Resolver{
			"TrustedProxies": proxies(proxy + "/32"),
			"TrustedHops":    clientip.TrustedHops(1),
		} {
			// What stands to the left of it must never matter.
			for _, left := range []string{"", "198.51.100.1,", "unknown,", ","} {
				got, err := resolver.Addr(request(proxy+":80", left+test.entry))
				if err != nil || got != want {
					t.Errorf("%s: Addr of %q = %v, %v; want %v", name, left+test.entry, got, err, want)
				}
			}
		}
	}
}
