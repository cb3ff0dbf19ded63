package connectmw_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"strconv"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/connectmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func TestShadowDeniesNobodyAndCharges(t *testing.T) {
	var s service
	st := newStore(t)
	plan := tokenbucket.PlanFunc(func(_ context.Context, key string) (tokenbucket.Plan, error) {
		if key == "lost" {
			return nil, errKey
		}
		return tokenbucket.PerHour(2), nil
	})
	limiter := newLimiter(t, st, plan)
	var reported []error
	client := serve(t, &s, ratelimit.New(limiter, connectmw.ByHeader("x-key"), policy.Shadow(), policy.StatusHeaders(), ratelimit.PerMessage(),
		connectmw.OnError(func(_ *connectmw.Call, err error) { reported = append(reported, err) }),
		connectmw.OnDeny(func(*connectmw.Call, policy.Denial) error { return errors.New("denied") })))
	passes := func(pairs ...string) {
		t.Helper()
		var header, trailer http.Header
		if _, err := client.Make(with(t, pairs...), &things.MakeRequest{}, intoHeader(&header), intoTrailer(&trailer)); err != nil {
			t.Error(err)
		}
		if len(header.Values("ratelimit-status")) > 0 || len(header.Values("retry-after")) > 0 {
			t.Errorf("%v and %v", header, trailer)
		}
	}
	passes("x-key", "a")
	if d, err := limiter.Peek(t.Context(), "a"); err != nil || d.Limits()[0].Remaining != 1 {
		t.Errorf("%+v, %v: nothing was charged", d, err)
	}
	passes("x-key", "a")
	passes("x-key", "a") // would be denied
	passes()
	if n, err := sendMessages(with(t, "x-key", "a"), t, client, 5); n != 5 || !errors.Is(err, io.EOF) {
		t.Errorf("%d messages, %v", n, err)
	}
	if len(reported) > 0 {
		t.Errorf("reported %v", reported)
	}
	passes("x-key", "lost")
	st.Break(storetest.TakeTokens, storetest.Down)
	passes("x-key", "a")
	if len(reported) != 2 || !errors.Is(reported[0], errKey) {
		t.Errorf("reported %v", reported)
	}
	s.ran(t, 7)
}

func TestRetryJitter(t *testing.T) {
	var s service
	client := serve(t, &s, ratelimit.New(newLimiter(t, newStore(t), tokenbucket.PerDay(1)), connectmw.Global(), policy.RetryJitter(2*time.Second)))
	if _, err := client.Make(t.Context(), &things.MakeRequest{}); err != nil {
		t.Fatal(err)
	}
	// All but the first caller get a place in the order of retries, 20 s after there is a token.
	seen := make(map[time.Duration]bool)
	for n := range 100 {
		_, err := client.Make(t.Context(), &things.MakeRequest{})
		meta := denial(t, err, policy.QuotaExceeded).Meta()
		delay := detail[errdetails.RetryInfo](err).GetRetryDelay().AsDuration()
		if after := meta.Get("Retry-After"); after != strconv.Itoa(int(delay.Seconds())) {
			t.Errorf("Retry-After is %s, for a delay of %v", after, delay)
		}
		if n == 0 {
			delay += 20 * time.Second
		}
		seen[delay-24*time.Hour-20*time.Second] = true
	}
	for delay := range seen {
		if delay < -3*time.Second || delay > 2*time.Second || delay%time.Second != 0 { // the test takes up to 3 s
			t.Errorf("%v after the limit's own time", delay)
		}
	}
	if len(seen) < 3 {
		t.Errorf("delays %v", seen)
	}
}

func TestClientIn(t *testing.T) {
	for network, skips := range map[string]bool{"127.0.0.0/8": true, "10.0.0.0/8": false} {
		var s service
		in := connectmw.ClientIn(clientip.Direct(), netip.MustParsePrefix(network))
		client := serve(t, &s, ratelimit.New(newLimiter(t, newStore(t), tokenbucket.PerHour(1)), connectmw.Global(), connectmw.Unless(in)))
		_, first := client.Make(t.Context(), &things.MakeRequest{})
		_, second := client.Make(with(t, "x-forwarded-for", "127.0.0.1"), &things.MakeRequest{})
		ok(t, first)
		if skips {
			ok(t, second)
		} else {
			denies(t, second, policy.QuotaExceeded)
		}
	}
}
