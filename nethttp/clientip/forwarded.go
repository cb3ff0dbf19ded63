package clientip

import (
	"iter"
	"net/netip"
	"slices"
	"strconv"
	"strings"
)

// forwardedFor is the canonical name of the header.
const forwardedFor = "X-Forwarded-For"

// maxEntry is the longest address with brackets, a zone and a port. It bounds the work for an
// entry: parsing a zone makes a copy of it.
const maxEntry = 128

// proxySet is the set of trusted proxies.
type proxySet struct {
	networks
	unixSocket bool // peers on a Unix socket are proxies, too
}

// newProxySet panics as newNetworks does.
func newProxySet(name string, proxies []netip.Prefix) *proxySet {
	return &proxySet{networks: newNetworks(name, proxies)}
}

// contains reports whether addr, which is unmapped and has no zone, is a trusted proxy's. For a
// Unix socket addr is not valid.
func (s *proxySet) contains(addr netip.Addr) bool {
	if !addr.IsValid() {
		return s.unixSocket
	}
	return s.networks.contains(addr)
}

// client walks from remote to the left until an address is not a proxy's.
func (s *proxySet) client(remote netip.Addr, lines []string) netip.Addr {
	addr := remote
	for entry := range fromRight(lines) {
		if !s.contains(addr) {
			break
		}
		next, ok := parseAddr(entry)
		if !ok {
			break
		}
		addr = next
	}
	return addr
}

// clientBeyond returns the n-th entry from the right, or remote if that is not an address.
func clientBeyond(n int, remote netip.Addr, lines []string) netip.Addr {
	for entry := range fromRight(lines) {
		if n--; n > 0 {
			continue
		}
		if addr, ok := parseAddr(entry); ok {
			return addr
		}
		break
	}
	return remote
}

// fromRight yields the entries of all lines, last first. It splits the list only as far as it is
// read, since a client can fill its left part.
//
// Empty entries are entries: without them, a hop could go uncounted.
func fromRight(lines []string) iter.Seq[string] {
	return func(yield func(string) bool) {
		for _, line := range slices.Backward(lines) {
			for more := true; more; {
				comma := strings.LastIndexByte(line, ',')
				if !yield(line[comma+1:]) {
					return
				}
				if more = comma >= 0; more {
					line = line[:comma]
				}
			}
		}
	}
}

// cutIPv4 returns the IPv4 address of an address with a port, the usual case, unchanged: an IPv4
// address has one spelling only. It returns false for other texts, which are for parseAddr.
func cutIPv4(s string) (string, bool) {
	number, digits, dots := 0, 0, 0
	for i := range len(s) {
		switch c := s[i]; {
		case '0' <= c && c <= '9':
			if digits > 0 && number == 0 { // a leading zero, which some read as octal
				return "", false
			}
			number = 10*number + int(c-'0')
			if digits++; number > 255 {
				return "", false
			}
		case c == '.' && digits > 0 && dots < 3:
			number, digits = 0, 0
			dots++
		case c == ':' && digits > 0 && dots == 3:
			return s[:i], isPort(s[i+1:])
		default:
			return "", false
		}
	}
	return "", false
}

func isPort(s string) bool {
	_, err := strconv.ParseUint(s, 10, 16)
	return err == nil
}

// parseAddr reads an address with or without a port, in brackets or not.
func parseAddr(s string) (netip.Addr, bool) {
	s = strings.Trim(s, " \t")
	if s == "" || len(s) > maxEntry {
		return netip.Addr{}, false
	}
	var addr netip.Addr
	var err error
	switch {
	case s[0] == '[' && s[len(s)-1] == ']':
		addr, err = netip.ParseAddr(s[1 : len(s)-1])
		if addr.Is4() {
			return netip.Addr{}, false // as ParseAddrPort does
		}
	case s[0] == '[' || strings.Count(s, ":") == 1: // every IPv6 address has two colons or more
		var addrPort netip.AddrPort
		addrPort, err = netip.ParseAddrPort(s)
		addr = addrPort.Addr()
	default:
		addr, err = netip.ParseAddr(s)
	}
	return addr.Unmap().WithZone(""), err == nil
}
