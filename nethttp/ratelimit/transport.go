package ratelimit

import (
	"context"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
	"github.com/lockkeeper/lockkeeper/internal/middleware/keys"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/internal/roundtrip"
)

// ErrNotSent is matched by the error of a request that [Transport] has not sent.
var ErrNotSent = roundtrip.ErrNotSent

// Transport returns a RoundTripper that sends requests by base, http.DefaultTransport if that is
// nil, within the limits of their keys and the limits that servers report:
//
//	limiter, err := tokenbucket.New(store, "psp", tokenbucket.PerSecond(10))
//	…
//	client := &http.Client{Transport: ratelimit.Transport(nil, limiter, ratelimit.ByHost())}
//
// A request waits for a token of its key, as by tokenbucket.Limiter's Wait. Transport then passes
// it to base, once. All processes that share the limiter's store share the tokens. A redirect that
// the client follows is another request, with the key of its own host.
//
// Transport reads the server's limits in every answer, whatever its status: Retry-After, or else
// RateLimit, X-RateLimit and the fields of model providers, see [Standard]; [Decoders] reads other
// fields. An answer that asks for a pause, or has nothing left, holds the key: until the hold ends,
// no process sends a request of this key, and such requests wait; other keys are not affected. So
// requests of tenants with limits of their own need keys of their own: by the tenant, not by the
// host alone. Requests that were sent before the answer came are not called back.
//
// A 429 without a time that can be read holds the key for 1 s. Another one, soon after the end of
// such a hold (within its length), holds it for twice as long, up to 1 min. Without decoders no key
// is held.
//
// A key is held for 15 min at most, whatever the server asks (policy.MaxHold). It is held before
// the answer is returned, by one call of the store: 1 s at most, even beyond the request's
// deadline. An answer to one process holds the key for all of them, so the longest of their pauses
// counts, also if the server varies them at random. tokenbucket.Limiter's Reset ends a hold of the
// store, but not a hold of this Transport alone.
//
// The answer is returned as it came, also with status 429: the transport repeats nothing.
// idempotency.Transport repeats requests. It belongs round this one, so that each try takes a token
// and waits until its key is no longer held:
//
//	idempotency.Transport(ratelimit.Transport(nil, limiter, by))
//
// The other way round, all tries of a request take one token together, and are sent while the key
// is held.
//
// A request that is not sent has its body closed, and an error that matches [ErrNotSent]. It also
// matches
//
//   - context.DeadlineExceeded if the token would come after the deadline of the request's context,
//     or the key is held until then: at once, without a wait. The Timeout of an http.Client is such
//     a deadline;
//   - the context's cause if that ends first;
//   - store.ErrUnavailable if the store is unavailable, unless policy.FailOpen;
//   - the error of key; policy.ErrNoKey if it returns no key; tokenbucket.ErrInvalidKey for one of
//     more than 1,024 bytes. Such a request is sent unless the limits of all keys are enforced
//     (tokenbucket.Limiter's SetEnforcement).
//
// If the store cannot hold a key, or the key has no limits (tokenbucket.Unlimited) or none that are
// enforced, this Transport alone holds it, for up to 4,096 keys at a time. A request that waits for
// such a hold is not sent if its context ends or has an earlier deadline; a token may have been
// charged then. The failure is logged, at most once a minute (policy.Logger). Requests that
// policy.FailOpen lets pass wait in the same way for the holds that this Transport has received
// itself, also before the outage.
//
// Options are policy.MaxHold, policy.FailOpen, policy.Logger, policy.MeterProvider and [Decoders].
// Transport panics if limiter or key is nil.
func Transport(
	base http.RoundTripper, limiter *tokenbucket.Limiter, key nethttp.KeyFunc, opts ...policy.TransportOption,
) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	if limiter == nil {
		panic("ratelimit: Transport: nil limiter")
	}
	if key == nil {
		panic("ratelimit: Transport: nil key")
	}
	settings := setting.Of(opts)
	t := &transport{base: base, key: key, limit: middleware.NewOutgoing(limiter, settings), decoders: []Decoder{Standard}}
	if decoders, ok := settings.Decoders.([]Decoder); ok {
		t.decoders = decoders
	}
	return t
}

// ByHost keys requests by the host that they are sent to: its name in lower case, and its port
// unless that is the scheme's default. It is for clients: a server's requests have no such host.
func ByHost() nethttp.KeyFunc {
	missing := keys.NotProvided("ratelimit: ByHost: the request's URL has no host")
	return func(r *http.Request) (string, error) {
		if r.URL == nil || r.URL.Host == "" {
			return "", missing
		}
		host, port := strings.ToLower(strings.TrimSuffix(r.URL.Hostname(), ".")), r.URL.Port()
		if port == "" || r.URL.Scheme == "http" && port == "80" || r.URL.Scheme == "https" && port == "443" {
			return host, nil
		}
		return net.JoinHostPort(host, port), nil
	}
}

type transport struct {
	base     http.RoundTripper
	key      nethttp.KeyFunc
	limit    *middleware.Outgoing
	decoders []Decoder
}

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key, err := t.key(r)
	if err := t.wait(r.Context(), key, err); err != nil {
		roundtrip.CloseBody(r)
		return nil, err
	}
	resp, err := t.base.RoundTrip(r)
	if err != nil || resp == nil {
		return resp, err
	}
	switch d := t.asked(resp); {
	case d > 0:
		t.limit.Hold(r.Context(), key, d)
	case resp.StatusCode == http.StatusTooManyRequests && len(t.decoders) > 0:
		t.limit.HoldUnasked(r.Context(), key)
	}
	return resp, nil
}

// CloseIdleConnections closes the idle connections of base. http.Client's method of this name calls
// it.
func (t *transport) CloseIdleConnections() { roundtrip.CloseIdle(t.base) }

// wait returns an error if the request must not be sent.
func (t *transport) wait(ctx context.Context, key string, err error) error {
	if err != nil || key == "" {
		if !t.limit.NeedsKey() {
			return nil
		}
		return &roundtrip.NotSent{Err: t.limit.NoKey(ctx, err).Err, Final: true}
	}
	if err = t.limit.Wait(ctx, key); err == nil {
		return nil
	}
	final := !store.Down(err)
	if ctx.Err() != nil {
		err = context.Cause(ctx)
	}
	return &roundtrip.NotSent{Err: err, Final: final}
}

// asked returns the pause that an answer asks for. If a decoder panics, the answer is lost, but not
// its connection.
func (t *transport) asked(resp *http.Response) (longest time.Duration) {
	read := false
	defer func() {
		if !read && resp.Body != nil {
			_ = resp.Body.Close()
		}
	}()
	for _, decode := range t.decoders {
		longest = max(longest, decode(resp))
	}
	read = true
	return longest
}
