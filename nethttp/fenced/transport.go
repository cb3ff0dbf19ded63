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
// A request that has the header field fence.Header is sent as it is, also if the field is there
// without a value, which sends none; and so is a request without a lease. Of several leases it is
// the innermost: where that is not the lock of the resource, set the field. A client for what no
// lock protects does without the transport.
//
// A lease that is over ends its context, and so the request. If the request was sent all the same,
// its fence is what stops it.
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
			r = r.Clone(r.Context()) // it is the caller's, who may be using it
			if r.Header == nil {
				r.Header = make(http.Header)
			}
			r.Header.Set(fence.Header, lease.Fence().String())
		}
	}
	return t.base.RoundTrip(r)
}

// CloseIdleConnections is what http.Client's does.
func (t transport) CloseIdleConnections() { roundtrip.CloseIdle(t.base) }
