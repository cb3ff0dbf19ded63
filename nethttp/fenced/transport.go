package fenced

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/nethttp/internal/roundtrip"
)

// Transport returns a RoundTripper that sends requests by base, http.DefaultTransport if that is
// nil, with the fence of the lease that their context derives from:
//
//	client := &http.Client{Transport: fenced.Transport(nil)}
//	…
//	lease, err := carts.Lock(ctx, "42")
//	…
//	req, err := http.NewRequestWithContext(lease.Context(), http.MethodPut, url, body)
//
// A request with the header field fence.Header is sent as it is; the field without a value sends
// none. A request without a lease is sent as it is, too. Of several leases Transport uses the
// innermost: if that is not the lock of the resource, set the field. A client for resources without
// a lock needs no transport.
//
// A lease that has ended ends its context, and so the request. If the request was sent all the
// same, its fence stops it.
func Transport(base http.RoundTripper) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	return transport{base}
}

type transport struct{ base http.RoundTripper }

func (t transport) RoundTrip(r *http.Request) (*http.Response, error) {
	if lease, ok := lock.FromContext(r.Context()); ok {
		if _, set := r.Header[fence.Header]; !set {
			r = r.Clone(r.Context()) // it belongs to the caller, who may be using it
			if r.Header == nil {
				r.Header = make(http.Header)
			}
			r.Header.Set(fence.Header, lease.Fence().String())
		}
	}
	return t.base.RoundTrip(r)
}

// CloseIdleConnections closes the idle connections of base. http.Client's method of this name calls
// it.
func (t transport) CloseIdleConnections() { roundtrip.CloseIdle(t.base) }
