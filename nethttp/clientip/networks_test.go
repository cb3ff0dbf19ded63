package clientip

import (
	"math/rand/v2"
	"net/http"
	"net/netip"
	"strings"
	"testing"
)

func networksOf(t *testing.T, texts ...string) []netip.Prefix {
	t.Helper()
	prefixes, err := ParseNetworks(texts...)
	if err != nil {
		t.Fatal(err)
	}
	return prefixes
}

func TestIn(t *testing.T) {
	in := Direct().In(networksOf(t, "10.0.0.0/8", " 203.0.113.7\t", "2001:db8::/32", "::ffff:192.0.2.0/120", "::ffff:198.51.100.1", "fe80::1")...)
	for remote, want := range map[string]bool{
		"10.0.0.0:1": true, "10.255.255.255:1": true, "11.0.0.0:1": false, "9.255.255.255:1": false,
		"203.0.113.7:1": true, "203.0.113.6:1": false, "203.0.113.8:1": false, "[::ffff:203.0.113.7]:1": true,
		"[2001:db8::1]:1": true, "[2001:db8:ffff::]:1": true, "[2001:db9::]:1": false,
		"192.0.2.255:1": true, "192.0.3.0:1": false, "[::ffff:10.0.0.1]:1": true, "198.51.100.1:1": true,
		"[fe80::1%eth1]:1": true, "@": false, "": false, "10.0.0.1": true,
	} {
		r := &http.Request{RemoteAddr: remote, Header: http.Header{"X-Forwarded-For": {"203.0.113.7"}}}
		if got := in(r); got != want {
			t.Errorf("%s: %v", remote, got)
		}
	}
	proxied := &http.Request{RemoteAddr: "192.0.2.1:1", Header: http.Header{"X-Forwarded-For": {"10.0.0.1, 203.0.113.7"}}}
	if !TrustedHops(1).In(networksOf(t, "203.0.113.7")...)(proxied) || TrustedHops(1).In(networksOf(t, "10.0.0.0/8")...)(proxied) {
		t.Error("the address is not the resolver's")
	}
	if Direct().In()(&http.Request{RemoteAddr: "10.0.0.1:1"}) {
		t.Error("a client is in no network")
	}
}

func TestNetworksThatMakeNoSense(t *testing.T) {
	for _, text := range []string{
		"", "10.0.0.0/33", "10.0.0.0/", "localhost", "10.0.0", "10.0.0.1:80", "fe80::1%eth0/64", "10.0.0.0/8,11.0.0.0/8",
		"10.1.2.3/8", "2001:db8::1/32", "::ffff:192.0.2.1/120", "0.0.0.1/0", "fe80::1%eth0",
	} {
		if _, err := ParseNetworks("10.0.0.0/8", text); err == nil || !strings.HasPrefix(err.Error(), "clientip: ParseNetworks: \""+text+"\": ") {
			t.Errorf("%q: %v", text, err)
		}
	}
	for want, prefix := range map[string]netip.Prefix{
		"clientip: In: prefix 0 is invalid":                                      {},
		"clientip: In: IPv4-mapped prefix ::ffff:0.0.0.0/90 is shorter than /96": netip.MustParsePrefix("::ffff:0:0/90"),
	} {
		func() {
			defer func() {
				if got := recover(); got != want {
					t.Errorf("panicked with %v, want %s", got, want)
				}
			}()
			Direct().In(prefix)
		}()
	}
}

// Networks within others, next to others and on both sides of the families' boundary are found as
// one after the other finds them.
func TestNetworksAreThoseOfTheList(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	address := func() netip.Addr {
		if random.IntN(2) == 0 {
			return netip.AddrFrom4([4]byte{byte(random.IntN(2)) * 255, byte(random.IntN(3)), 0, byte(random.IntN(4))})
		}
		return netip.AddrFrom16([16]byte{0: byte(random.IntN(3)), 1: byte(random.IntN(2)) * 255, 15: byte(random.IntN(4))})
	}
	for range 2000 {
		var list []netip.Prefix
		for range random.IntN(8) {
			a := address()
			list = append(list, netip.PrefixFrom(a, random.IntN(a.BitLen()+1)))
		}
		all := newNetworks("In", list)
		for range 20 {
			a, want := address(), false
			for _, p := range list {
				want = want || p.Contains(a)
			}
			if got := all.contains(a); got != want {
				t.Fatalf("%v in %v: %v", a, list, got)
			}
		}
	}
}
