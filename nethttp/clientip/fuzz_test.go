package clientip_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func FuzzKey(f *testing.F) {
	for _, seed := range [][3]string{
		{"203.0.113.7:1234", "198.51.100.1", "10.0.0.2"},
		{"10.0.0.1:1234", "198.51.100.1, 203.0.113.7", "10.0.0.2"},
		{"[::ffff:10.0.0.1]:80", "[2001:db8::1]:443,::ffff:10.1.1.1", " 10.0.0.9:1 "},
		{"[fe80::1%eth0]:80", "unknown, fe80::2%eth1", ""},
		{"10.0.0.1:80", "10.0.0.3,10.0.0.2,,", ","},
		{"@", "198.51.100.1", "10.0.0.1"},
		{"", "", ""},
		{"10.0.0.1", "[", "[]:"},
	} {
		f.Add(seed[0], seed[1], seed[2])
	}
	trusted := netip.MustParsePrefix("10.0.0.0/8")
	direct, private := clientip.Direct(), clientip.TrustedProxies(trusted)

	f.Fuzz(func(t *testing.T, remote, line1, line2 string) {
		bare, full := request(remote), request(remote, line1, line2)
		full.Header.Set("X-Real-IP", line1)
		full.Header.Set("Forwarded", "for="+line2)

		want, wantErr := direct.Key(bare)
		if got, err := direct.Key(full); got != want || err != wantErr {
			t.Fatalf("Direct: %q, %v with headers; %q, %v without", got, err, want, wantErr)
		}
		addr, err := direct.Addr(bare)
		if err != wantErr || err != nil && !errors.Is(err, clientip.ErrNoAddress) {
			t.Fatalf("Direct: Addr: %v, Key: %v", err, wantErr)
		}
		entries := strings.Split(line1+","+line2, ",")
		for _, r := range []struct {
			name     string
			resolver clientip.Resolver
			want     func() netip.Addr
		}{
			{"TrustedProxies", private, func() netip.Addr { return walk(trusted, addr, entries) }},
			{"TrustedHops(1)", clientip.TrustedHops(1), func() netip.Addr { return hop(1, addr, entries) }},
			{"TrustedHops(3)", clientip.TrustedHops(3), func() netip.Addr { return hop(3, addr, entries) }},
		} {
			got, err := r.resolver.Addr(full)
			if err != wantErr {
				t.Fatalf("%s: Addr: %v; Direct: %v", r.name, err, wantErr)
			}
			key, err := r.resolver.Key(full)
			if err != wantErr {
				t.Fatalf("%s: Key: %v; Direct: %v", r.name, err, wantErr)
			}
			if err != nil {
				continue
			}
			if got != r.want() {
				t.Fatalf("%s: Addr = %v, want %v", r.name, got, r.want())
			}
			checkNormal(t, got, key)
		}
		if wantErr != nil {
			return
		}
		if got, _ := private.Key(full); !trusted.Contains(addr) && got != want {
			t.Fatalf("TrustedProxies: %q of an untrusted remote address, Direct: %q", got, want)
		}

		// Whatever a client sends, what the proxy appends is the answer.
		const client = "203.0.113.7"
		spoofed := request("10.0.0.1:80", line1, line2+", "+client)
		for _, r := range []clientip.Resolver{private, clientip.TrustedHops(1)} {
			if got, err := r.Key(spoofed); err != nil || got != client {
				t.Fatalf("Key = %q, %v behind a proxy; want %s", got, err, client)
			}
		}
	})
}

// checkNormal fails the test if addr is not in its normal form, or key is not the key of addr.
func checkNormal(t *testing.T, addr netip.Addr, key string) {
	t.Helper()
	if !addr.IsValid() || addr.Is4In6() || addr.Zone() != "" {
		t.Fatalf("Addr = %v, not in normal form", addr)
	}
	want := addr.String()
	if addr.Is6() {
		want = netip.PrefixFrom(addr, 64).Masked().String()
	}
	if key != want {
		t.Fatalf("Key = %q of %v, want %q", key, addr, want)
	}
}

// walk and hop are simple versions of TrustedProxies and TrustedHops.
func walk(trusted netip.Prefix, addr netip.Addr, entries []string) netip.Addr {
	if !trusted.Contains(addr) || len(entries) == 0 {
		return addr
	}
	last := len(entries) - 1
	next, err := parsed(entries[last])
	if err != nil {
		return addr
	}
	return walk(trusted, next, entries[:last])
}

func hop(n int, remote netip.Addr, entries []string) netip.Addr {
	if len(entries) < n {
		return remote
	}
	addr, err := parsed(entries[len(entries)-n])
	if err != nil {
		return remote
	}
	return addr
}

// parsed reads an entry as Direct reads a RemoteAddr, which other tests check.
func parsed(entry string) (netip.Addr, error) { return clientip.Direct().Addr(request(entry)) }
