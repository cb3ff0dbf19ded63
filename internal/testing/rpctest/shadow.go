package rpctest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/netip"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// told returns how much metadata tells of a limit.
func told(header, trailer http.Header) (n int) {
	for _, name := range []string{"Ratelimit-Status", "Retry-After", "Grpc-Retry-Pushback-Ms"} {
		n += len(header[name]) + len(trailer[name])
	}
	return n
}

func shadowDeniesNobodyAndCharges(t *rig) {
	var s Service
	st := newStore(t)
	plan := tokenbucket.PlanFunc(func(_ context.Context, key string) (tokenbucket.Plan, error) {
		if key == "lost" {
			return nil, errKey
		}
		return tokenbucket.PerHour(2), nil
	})
	limiter := NewLimiter(t, st, plan)
	var reported []error
	client := serve(t, &s, t.RateLimit(limiter, t.ByMetadata("x-key"), policy.Shadow(), policy.StatusHeaders(), t.PerMessage(),
		t.OnError(func(_ Call, err error) { reported = append(reported, err) }),
		t.OnDeny(func(Call, policy.Denial) error { return errors.New("denied") })))
	passes := func(pairs ...string) {
		t.Helper()
		var header, trailer http.Header
		if _, err := client.Make(with(t, pairs...), &Request{}, intoHeader(&header), intoTrailer(&trailer)); err != nil {
			t.Error(err)
		}
		if told(header, trailer) > 0 {
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
	if n, err := SendMessages(with(t, "x-key", "a"), t, client, 5); n != 5 || !errors.Is(err, io.EOF) {
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

func retryJitter(t *rig) {
	var s Service
	client := serve(t, &s, t.RateLimit(NewLimiter(t, newStore(t), tokenbucket.PerDay(1)), t.Global(), policy.RetryJitter(2*time.Second)))
	if _, err := client.Make(t.Context(), &Request{}); err != nil {
		t.Fatal(err)
	}
	// All but the first caller get a place in the order of retries, 20 s after there is a token.
	seen := make(map[time.Duration]bool)
	began := time.Now()
	for n := range 100 {
		var trailer http.Header
		_, err := client.Make(t.Context(), &Request{}, intoTrailer(&trailer))
		denies(t, err, policy.QuotaExceeded)
		delay := t.DetailsOf(err).retryAfter()
		if after, _ := t.Retry(err, trailer); after != delay {
			t.Errorf("the metadata asks for a retry after %v, for a delay of %v", after, delay)
		}
		if n == 0 {
			delay += 20 * time.Second
		}
		seen[delay-24*time.Hour-20*time.Second] = true
	}
	took := time.Since(began)
	for delay := range seen {
		if delay < -time.Second-took || delay > 2*time.Second || delay%time.Second != 0 {
			t.Errorf("%v after the limit's own time", delay)
		}
	}
	if len(seen) < 3 {
		t.Errorf("delays %v", seen)
	}
}

func clientIn(t *rig) {
	for network, skips := range map[string]bool{"127.0.0.0/8": true, "10.0.0.0/8": false} {
		var s Service
		client := serve(t, &s, t.RateLimit(NewLimiter(t, newStore(t), tokenbucket.PerHour(1)), t.Global(), t.UnlessFrom(netip.MustParsePrefix(network))))
		_, first := client.Make(t.Context(), &Request{})
		_, second := client.Make(with(t, "x-forwarded-for", "127.0.0.1"), &Request{})
		ok(t, first)
		if skips {
			ok(t, second)
		} else {
			denies(t, second, policy.QuotaExceeded)
		}
	}
}
