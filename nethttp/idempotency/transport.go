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

// WithMaxDelay sets the longest delay that is waited for: 30 s if not set. A server that asks for
// more has its refusal returned at once. It panics if d is negative, or less than a millisecond but
// not zero.
func WithMaxDelay(d time.Duration) TransportOption {
	if d != 0 && d < time.Millisecond {
		panic(fmt.Sprintf("idempotency: WithMaxDelay: %v is neither 0 nor at least 1ms", d))
	}
	return func(t *transport) { t.maxDelay = d }
}

// WithMaxBody sets the largest body, in bytes, that is kept in memory so that it can be sent again:
// 1 MiB if not set. It is for requests without a GetBody, which http.NewRequest sets for the
// readers of packages bytes and strings. A request with a larger body is sent once. It panics if n
// is negative.
func WithMaxBody(n int64) TransportOption {
	if n < 0 {
		panic(fmt.Sprintf("idempotency: WithMaxBody: %d is negative", n))
	}
	return func(t *transport) { t.maxBody = min(n, math.MaxInt64-1) }
}

// WithDecoders sets what reads for how long a refusal asks to wait: the longest pause of them counts. If
// not set these are Retry-After, whatever the status, and without one ratelimit.Standard. A decoder that
// returns nothing, or less, has found nothing. It panics if one is nil.
func WithDecoders(decoders ...ratelimit.Decoder) TransportOption {
	for _, d := range decoders {
		if d == nil {
			panic("idempotency: WithDecoders: nil decoder")
		}
	}
	return func(t *transport) { t.decoders = slices.Clone(decoders) }
}

// Transport returns a RoundTripper for clients of services that run requests with the same
// Idempotency-Key once. It sends requests by base, http.DefaultTransport if that is nil, gives
// those that need one a key, and sends again what may be sent again:
//
//	client := &http.Client{Transport: idempotency.Transport(nil)}
//
// A POST or PATCH gets a key of its own, unless it has one: in its header, by [WithKey], or from
// the request that was redirected to it. A redirect to another host, unless it is within the domain of
// the first, gets a key of its own: the other service must not learn the first key. All tries of a
// request have the same key, also those that net/http makes by itself, so a server behind [New] runs it once. A server that ignores the
// Idempotency-Key runs it for each try: do not use the transport for such a service.
//
// A request is sent again after
//
//   - an error of base: the connection was refused, or broke before the response came;
//   - 425, 429 and 503;
//   - 409, if the response is the problem in-flight or locked.
//
// Any other response is the request's, and is returned: so are a replay ([Replayed]), whatever its
// status, 409 outcome-unknown and response-not-retained, and 422. A body that breaks off while the
// caller reads it is not the transport's either: a caller that sends the request again with the
// same key, see WithKey, gets the same response.
//
// The transport waits for as long as the response's Retry-After says, in seconds or as a date
// (compared with the response's own Date), or what else says so ([WithDecoders]), and for a random
// time more, so that not all clients come back at the same moment: up to half of that delay, or 50 ms if that is more, before the second
// try, and up to twice as much before each further one, within [WithMaxDelay] and the deadline of
// the request's context. After errors, and responses without a Retry-After that can be read, it
// waits 200 ms, and half as long again before each further try, varied by up to half at random.
//
// The last response, or error, is returned when the tries are used up ([WithMaxTries]), and at once
// when the delay is longer than WithMaxDelay, or would end after the context's deadline. If the
// context ends, the error is the context's cause, and nothing is sent any more.
//
// Sent once are: a request whose field Idempotency-Key is there without a value, which switches the
// key off; other methods without a key, but for GET, HEAD, OPTIONS, TRACE, PUT and DELETE, which
// are idempotent by themselves; bodies larger than [WithMaxBody]; and requests that failed for the
// server's certificate. A request that ratelimit.Transport, as base, has not sent is tried again
// only after an outage of its store. If a body fails while it is read into memory, nothing is sent,
// and the error is returned.
//
// [Tries] says how often a request was sent. The response's Request is the one that was sent, with
// its key. The caller's request is not changed.
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

// leastDelay is what is waited on average before the second try, if the server has not said for how
// long.
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

// complete sets what a response of a simpler RoundTripper than net/http's may lack.
func complete(resp *http.Response, sent *http.Request) {
	if Tries(resp) == 0 {
		resp.Request = sent
	}
	if resp.Body == nil {
		resp.Body = http.NoBody
	}
}

// CloseIdleConnections is what http.Client's does.
func (t *transport) CloseIdleConnections() { roundtrip.CloseIdle(t.base) }

// delay returns how long to wait until a request is sent again, after so many tries, or false if it
// is not to be sent again.
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

// asked returns for how long a refusal asks to wait, or false if it does not say so.
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

// ofCertificate reports whether an error will be the same in the next try.
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

// keep reads the body of a request without a GetBody, and returns it with a GetBody; without one,
// if it is larger than it may be.
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
