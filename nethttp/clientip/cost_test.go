package clientip_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// costs are requests with how many allocations each may cost: the key, and nothing else.
func costs() []cost {
	spoofed := strings.Repeat("198.51.100.1, ", 10_000)
	return []cost{
		{"Direct", clientip.Direct(), request("203.0.113.7:1234"), 1},
		{"Direct/IPv6", clientip.Direct(), request("[2001:db8:1:2:3:4:5:6]:1234"), 1},
		{"Direct/spoofed", clientip.Direct(), request("203.0.113.7:1234", spoofed), 1},
		{"TrustedProxies", proxies("10.0.0.0/8"), request("10.0.0.1:1234", "203.0.113.7, 10.0.0.3, 10.0.0.2"), 1},
		{"TrustedProxies/spoofed", proxies("10.0.0.0/8"), request("10.0.0.1:1234", spoofed+"203.0.113.7, 10.0.0.2"), 1},
		{"TrustedProxies/allTrusted", proxies("10.0.0.0/8"), request("10.0.0.1:1234", strings.Repeat("10.0.0.2,", 9_999)+"10.0.0.2"), 1},
		{"TrustedHops", clientip.TrustedHops(2), request("10.0.0.1:1234", "203.0.113.7, 10.0.0.2"), 1},
		{"TrustedHops/spoofed", clientip.TrustedHops(2), request("10.0.0.1:1234", spoofed+"203.0.113.7, 10.0.0.2"), 1},
	}
}

type cost struct {
	name     string
	resolver clientip.Resolver
	req      *http.Request
	allocs   float64
}

func TestAllocations(t *testing.T) {
	for _, c := range costs() {
		got := testing.AllocsPerRun(100, func() {
			if _, err := c.resolver.Key(c.req); err != nil {
				t.Fatal(err)
			}
		})
		if got > c.allocs {
			t.Errorf("%s: Key allocates %v times, want %v", c.name, got, c.allocs)
		}
	}
}

func BenchmarkKey(b *testing.B) {
	for _, c := range costs() {
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if _, err := c.resolver.Key(c.req); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
