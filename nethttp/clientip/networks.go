package clientip

import (
	"fmt"
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// ParseNetworks reads a list of networks, as in a settings file: prefixes (10.0.0.0/8,
// 2001:db8::/32), and single addresses (203.0.113.7). Spaces around them do not count. It returns
// an error that names the first invalid text: an empty one, a prefix whose address has more bits
// than the prefix (10.1.2.3/8), an address with a zone (fe80::1%eth0), or any other text.
func ParseNetworks(texts ...string) ([]netip.Prefix, error) {
	prefixes := make([]netip.Prefix, len(texts))
	for i, text := range texts {
		p, err := parseNetwork(strings.TrimSpace(text))
		if err != nil {
			return nil, fmt.Errorf("clientip: ParseNetworks: %w", err)
		}
		prefixes[i] = p
	}
	return prefixes, nil
}

func parseNetwork(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		addr, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			return netip.Prefix{}, fmt.Errorf("%q: %w", text, err)
		case addr.Zone() != "": // clients are compared without theirs
			return netip.Prefix{}, fmt.Errorf("%q: an address with a zone", text)
		}
		return netip.PrefixFrom(addr, addr.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%q: %w", text, err)
	case p != p.Masked(): // one of the two numbers is a mistake
		return netip.Prefix{}, fmt.Errorf("%q: the network is %v", text, p.Masked())
	}
	return p, nil
}

// In returns a function that reports whether a request's client, as r finds it, has an address in
// one of the networks, for lists of addresses that pass or are refused. A request without an
// address is in none, and so is every request if there are no networks. A list may have any number
// of networks: a look-up is a binary search.
//
// A client with IPv6 usually has a whole /64 and can change its address within that. To refuse a
// client, list its /64, and not one address.
//
// It panics on a network on which [TrustedProxies] panics.
func (r Resolver) In(prefixes ...netip.Prefix) func(*http.Request) bool {
	list := newNetworks("In", prefixes)
	return func(req *http.Request) bool {
		addr, err := r.Addr(req)
		return err == nil && list.contains(addr)
	}
}

// networks are disjoint, and sorted by address.
type networks []netip.Prefix

// newNetworks panics, as the function called name, if a prefix is invalid or an IPv4-mapped one
// shorter than /96.
func newNetworks(name string, prefixes []netip.Prefix) networks {
	all := make(networks, 0, len(prefixes))
	for i, p := range prefixes {
		if !p.IsValid() {
			panic(fmt.Sprintf("clientip: %s: prefix %d is invalid", name, i))
		}
		if p.Addr().Is4In6() {
			// Addresses are compared unmapped, so that such a prefix would never match.
			if p.Bits() < 96 {
				panic(fmt.Sprintf("clientip: %s: IPv4-mapped prefix %v is shorter than /96", name, p))
			}
			p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
		}
		all = append(all, p.Masked())
	}
	// Two networks are disjoint, or one is within the other and is sorted behind it.
	slices.SortFunc(all, netip.Prefix.Compare)
	disjoint := all[:0]
	for _, p := range all {
		if n := len(disjoint); n == 0 || !disjoint[n-1].Contains(p.Addr()) {
			disjoint = append(disjoint, p)
		}
	}
	return disjoint
}

// contains reports whether addr, which is unmapped and has no zone, is in one of the networks.
func (n networks) contains(addr netip.Addr) bool {
	i, found := slices.BinarySearchFunc(n, addr, func(p netip.Prefix, addr netip.Addr) int { return p.Addr().Compare(addr) })
	return found || i > 0 && n[i-1].Contains(addr)
}
