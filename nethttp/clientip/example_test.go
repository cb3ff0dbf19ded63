package clientip_test

import (
	"fmt"
	"net/http/httptest"
	"net/netip"

	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// Clients connect to this server directly, so the header is forged.
func ExampleDirect_noProxyInFront() {
	client := clientip.Direct()

	req := httptest.NewRequest("GET", "/", nil)
	req.RemoteAddr = "203.0.113.7:49152"
	req.Header.Set("X-Forwarded-For", "198.51.100.1")

	fmt.Println(client.Key(req))
	// Output: 203.0.113.7 <nil>
}

// A load balancer in 10.0.0.0/8 appends the address that has connected to it. The client has forged
// another address, which is to the left of its own.
func ExampleTrustedProxies_behindALoadBalancer() {
	client := clientip.TrustedProxies(
		netip.MustParsePrefix("10.0.0.0/8"),
		netip.MustParsePrefix("fd00::/8"),
	)

	req := httptest.NewRequest("GET", "/", nil)
	req.RemoteAddr = "10.0.0.1:49152"
	req.Header.Set("X-Forwarded-For", "198.51.100.1, 203.0.113.7")
	fmt.Println(client.Key(req))

	// Past the load balancer, the header counts for nothing.
	req.RemoteAddr = "203.0.113.99:49152"
	fmt.Println(client.Key(req))
	// Output:
	// 203.0.113.7 <nil>
	// 203.0.113.99 <nil>
}

// Behind a content delivery network, whose addresses change, and an ingress: the ingress appends
// the network's address, and the network the client's.
func ExampleTrustedHops_behindACDNAndAnIngress() {
	client := clientip.TrustedHops(2)

	req := httptest.NewRequest("GET", "/", nil)
	req.RemoteAddr = "10.0.0.1:49152"
	req.Header.Set("X-Forwarded-For", "198.51.100.1, 203.0.113.7, 192.0.2.44")

	fmt.Println(client.Key(req))
	// Output: 203.0.113.7 <nil>
}

// A customer with a /56 has 256 networks, and is one client.
func ExampleResolver_IPv6Prefix_oneKeyPerCustomer() {
	client := clientip.Direct().IPv6Prefix(56)

	req := httptest.NewRequest("GET", "/", nil)
	for _, remote := range []string{"[2001:db8:0:aa01::1]:49152", "[2001:db8:0:aa02::2]:49152"} {
		req.RemoteAddr = remote
		fmt.Println(client.Key(req))
	}
	fmt.Println(client.Addr(req))
	// Output:
	// 2001:db8:0:aa00::/56 <nil>
	// 2001:db8:0:aa00::/56 <nil>
	// 2001:db8:0:aa02::2 <nil>
}
