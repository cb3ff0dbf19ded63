package idempotency

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
	"github.com/lockkeeper/lockkeeper/nethttp/internal/roundtrip"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// TransportOption is an option of [Transport].
type TransportOption func(*transport)

// WithMaxTries sets how often a request is sent at most, the first time included: 4 if not set. It
// panics if n is less than 1.
func WithMaxTries(n int) TransportOption {
	if n < 1 {
		panic(fmt.Sprintf("idempotency: WithMaxTries: %d is less than 1", n))
	}
	return func(t *transport) { t.maxTries = n }
}

// WithMaxDelay sets the longest delay before a further try: 30 s if not set. If a server asks for
// more, its refusal is returned at once. It panics if d is negative, or less than a millisecond but
// not zero.
func WithMaxDelay(d time.Duration) TransportOption {
	if d != 0 && d < time.Millisecond {
		panic(fmt.Sprintf("idempotency: WithMaxDelay: %v is neither 0 nor at least 1ms", d))
	}
	return func(t *transport) { t.maxDelay = d }
}

// WithMaxBody sets the largest body, in bytes, that is kept in memory for further tries: 1 MiB if
// not set. It is for requests without a GetBody, which http.NewRequest sets for the readers of
// packages bytes and strings. A request with a larger body is sent once. It panics if n is
// negative.
func WithMaxBody(n int64) TransportOption {
	if n < 0 {
		panic(fmt.Sprintf("idempotency: WithMaxBody: %d is negative", n))
	}
	return func(t *transport) { t.maxBody = min(n, math.MaxInt64-1) }
}

// WithDecoders sets the readers of the pause that a refusal asks for: the longest one counts. If
// not set, the pause is Retry-After, whatever the status, and without one ratelimit.Standard's. A
// decoder that returns zero or less has found none. It panics if one is nil.
func WithDecoders(decoders ...ratelimit.Decoder) TransportOption {
	for _, d := range decoders {
		if d == nil {
			panic("idempotency: WithDecoders: nil decoder")
		}
	}
	return func(t *transport) { t.decoders = slices.Clone(decoders) }
}

// Transport returns a RoundTripper for clients of services that run requests with the same
// Idempotency-Key once. It sends requests by base, http.DefaultTransport if that is nil. It adds
// the key to requests that need one, and repeats them after refusals and errors:
//
//	client := &http.Client{Transport: idempotency.Transport(nil)}
//
// A POST or PATCH gets a new key, unless it has one: in its header, by [WithKey], or from the
// request that was redirected to it. A redirect to another host that is not within the domain of
// the first gets a new key, too: the other service must not learn the first key. All tries of a
// request have the same key, also the tries that net/http makes by itself, so a server behind [New]
// runs it once. A server that ignores the Idempotency-Key runs it for each try: do not use the
// transport for such a service.
//
// A request is sent again after
//
//   - an error of base: the connection was refused, or broke before the response came;
//   - 425, 429 and 503;
//   - 409, if the response is the problem in-flight or locked.
//
// Any other response is returned: a replay ([Replayed]), whatever its status, 409 outcome-unknown
// and response-not-retained, and 422. The transport does not repeat a request whose response breaks
// off while the caller reads the body. A caller that sends the request again with the same key, see
// WithKey, gets the same response.
//
// The transport waits for the response's Retry-After, in seconds or as a date (compared with the
// response's own Date), or for the pause that decoders find ([WithDecoders]). A random addition
// keeps clients from coming back at the same moment: up to half of that delay, or 50 ms if that is
// more, before the second try, and up to twice as much before each further one, within
// [WithMaxDelay] and the deadline of the request's context. After errors, and responses without a
// Retry-After that can be read, it waits 200 ms, and half as long again before each further try,
// varied by up to half at random.
//
// The last response, or error, is returned when the tries are used up ([WithMaxTries]), and at once
// when the delay is longer than WithMaxDelay, or would end after the context's deadline. If the
// context ends, nothing more is sent, and the error is the context's cause.
//
// A request is sent only once
//
//   - if it has the field Idempotency-Key without a value, which switches the key off;
//   - if it has no key, and its method is not GET, HEAD, OPTIONS, TRACE, PUT or DELETE, which are
//     idempotent by themselves;
//   - if its body is larger than [WithMaxBody]; or
//   - if it failed because of the server's certificate.
//
// A request that ratelimit.Transport, as base, has not sent is tried again only after an outage of
// its store. If a body fails while it is read into memory, nothing is sent, and the error is
// returned.
//
// [Tries] returns how often a request was sent. The response's Request is the sent one, with its
// key. The caller's request is not changed.
func Transport(base http.RoundTripper, opts ...TransportOption) http.RoundTripper {
	if base == nil {
		base = http.DefaultTransport
	}
	t := &transport{base: base, maxTries: 4, maxDelay: 30 * time.Second, maxBody: 1 << 20}
	for _, o := range opts {
		o(t)
	}
	return t
}

type transport struct {
	base     http.RoundTripper
	maxTries int
	maxDelay time.Duration
	maxBody  int64
	decoders []ratelimit.Decoder // nil for the standard ones
}

// leastDelay is the average delay before the second try, if the server has not asked for one.
const leastDelay = 200 * time.Millisecond

func (t *transport) RoundTrip(r *http.Request) (*http.Response, error) {
	key, err := keyOf(r)
	if err != nil {
		roundtrip.CloseBody(r)
		return nil, err
	}
	ctx := r.Context()
	body, getBody := r.Body, r.GetBody
	most := 1
	if repeatable(r, key) {
		most = t.maxTries
	}
	if most > 1 && body != nil && body != http.NoBody && getBody == nil {
		if body, getBody, err = t.keep(r); err != nil {
			return nil, err
		}
		if getBody == nil {
			most = 1
		}
	}
	own := backoff.Growing{Min: leastDelay, Max: t.maxDelay}
	for tries := 1; ; tries++ {
		sent := r.WithContext(context.WithValue(ctx, triesKey{}, tries))
		sent.Header = headerWith(r.Header, key)
		sent.Body, sent.GetBody = body, getBody
		resp, err := t.base.RoundTrip(sent)
		if err != nil && ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
		if err == nil {
			complete(resp, sent)
		}
		if tries == most {
			return resp, err
		}
		delay, again := t.delay(ctx, resp, err, &own, tries)
		if !again {
			return resp, err
		}
		if err == nil {
			drop(resp.Body)
		}
		if err := wait(ctx, delay); err != nil {
			return nil, err
		}
		if getBody != nil {
			if body, err = getBody(); err != nil {
				return nil, fmt.Errorf("idempotency: Transport: GetBody: %w", err)
			}
		}
	}
}

// complete sets the fields that a response of a simpler RoundTripper than net/http's may lack.
func complete(resp *http.Response, sent *http.Request) {
	if Tries(resp) == 0 {
		resp.Request = sent
	}
	if resp.Body == nil {
		resp.Body = http.NoBody
	}
}

// CloseIdleConnections closes the idle connections of base. http.Client's method of this name calls
// it.
func (t *transport) CloseIdleConnections() { roundtrip.CloseIdle(t.base) }

// delay returns how long to wait before a request is sent again, after a number of tries. It
// returns false if the request must not be sent again.
func (t *transport) delay(ctx context.Context, resp *http.Response, err error, own *backoff.Growing, tries int) (time.Duration, bool) {
	var delay time.Duration
	var asked bool
	switch {
	case err == nil && refused(resp):
		delay, asked = t.asked(resp)
	case err == nil || ofCertificate(err) || roundtrip.Final(err):
		return 0, false
	}
	if !asked {
		delay = min(own.Next(), t.maxDelay)
	}
	most := t.maxDelay
	if deadline, ok := ctx.Deadline(); ok {
		most = min(most, time.Until(deadline))
	}
	switch {
	case delay > most:
		return 0, false
	case asked:
		delay = backoff.Asked(delay, tries-1, most)
	}
	return delay, true
}

// asked returns the pause that a refusal asks for, and false if it has none.
func (t *transport) asked(resp *http.Response) (longest time.Duration, ok bool) {
	if t.decoders == nil {
		if d, ok := backoff.RetryAfter(resp.Header); ok { // also that of a 409, which is about this request
			return d, true
		}
		longest = ratelimit.Standard(resp)
	}
	for _, decode := range t.decoders {
		longest = max(longest, decode(resp))
	}
	return longest, longest > 0
}

// ofCertificate reports whether an error is of the server's certificate, and so the same in the
// next try.
func ofCertificate(err error) bool {
	var invalid *tls.CertificateVerificationError
	return errors.As(err, &invalid)
}

func wait(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-ctx.Done():
	}
	if ctx.Err() != nil { // both may be over
		return context.Cause(ctx)
	}
	return nil
}

// keep reads the body of a request without a GetBody, and returns it with a GetBody. A body larger
// than the maximum has none.
func (t *transport) keep(r *http.Request) (io.ReadCloser, func() (io.ReadCloser, error), error) {
	if r.ContentLength > t.maxBody {
		return r.Body, nil, nil
	}
	data, err := read(r.Context(), r.Body, t.maxBody+1)
	if err != nil {
		roundtrip.CloseBody(r)
		return nil, nil, err
	}
	if int64(len(data)) > t.maxBody {
		return behind(data, r.Body), nil, nil
	}
	roundtrip.CloseBody(r)
	getBody := func() (io.ReadCloser, error) { return behind(data, http.NoBody), nil }
	body, err := getBody()
	return body, getBody, err
}
