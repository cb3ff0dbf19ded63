package rpctest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// A limiter that does not enforce denies no call, and no metadata tells of it.
func unenforcedLimiterDeniesNobody(t *rig) {
	var s Service
	st := newStore(t)
	limiter := NewLimiter(t, st, tokenbucket.PerHour(1))
	var reported []error
	by, hooks := t.ByMetadata("x-key"), []policy.RPCRateLimitOption{
		policy.StatusHeaders(), policy.RetryJitter(time.Second),
		t.OnError(func(_ Call, err error) { reported = append(reported, err) }),
	}
	held := tokenbucket.Escalate(time.Minute, 2, time.Hour)
	clients := map[string]Client{
		"plain": serve(t, &s, t.RateLimit(limiter, by, hooks...)),
		"costs": serve(t, &s, t.RateLimit(limiter, by, append(hooks, policy.Hold(held), t.Costs(tokenbucket.Cost{"api": 1}))...)),
		"open":  serve(t, &s, t.RateLimit(limiter, by, append(hooks, policy.FailOpen(), t.PerMessage())...)),
	}
	calls := int64(0)
	call := func(client Client, pairs ...string) error {
		t.Helper()
		var header, trailer http.Header
		_, err := client.Make(with(t, pairs...), &Request{}, intoHeader(&header), intoTrailer(&trailer))
		if err == nil {
			calls++
		}
		if told := told(header, trailer); err == nil && told > 0 {
			t.Errorf("%v: %v and %v", pairs, header, trailer)
		}
		return err
	}
	set := func(e tokenbucket.Enforcement) {
		t.Helper()
		ok(t, limiter.SetEnforcement(e))
	}
	for _, mode := range []tokenbucket.Mode{tokenbucket.Shadow, tokenbucket.Off} {
		set(tokenbucket.Enforcement{Mode: mode})
		for name, client := range clients {
			for range 3 {
				ok(t, call(client, "x-key", "a"))
			}
			ok(t, call(client))
			ok(t, call(client, "x-key", strings.Repeat("k", 1025)))
			if n, err := SendMessages(with(t, "x-key", "a"), t, client, 5); n != 5 || !errors.Is(err, io.EOF) {
				t.Errorf("%s: %d messages, %v", name, n, err)
			}
			calls++
		}
		if len(reported) > 0 {
			t.Errorf("%v: reported %v", mode, reported)
		}
	}
	if n := st.Calls(storetest.HoldTokens); n > 0 {
		t.Errorf("held %d times", n)
	}
	before := st.Calls(storetest.TakeTokens)
	st.Break(storetest.TakeTokens, storetest.Down)
	for _, client := range clients {
		ok(t, call(client, "x-key", "a"))
	}
	if n := st.Calls(storetest.TakeTokens); n != before || len(reported) > 0 {
		t.Errorf("off, %d calls, and reported %v", n-before, reported)
	}
	set(tokenbucket.Enforcement{Mode: tokenbucket.Shadow})
	for _, client := range clients {
		ok(t, call(client, "x-key", "a"))
	}
	if len(reported) != 2 { // the one that fails open reports nothing
		t.Errorf("reported %v", reported)
	}
	st.Mend(storetest.TakeTokens)

	set(tokenbucket.Enforcement{Share: 0.5})
	for i := range 20 {
		key := "key-" + strconv.Itoa(i)
		ok(t, call(clients["plain"], "x-key", key))
		if err := call(clients["plain"], "x-key", key); limiter.Enforces(key) {
			denies(t, err, policy.QuotaExceeded)
		} else {
			ok(t, err)
		}
	}
	ok(t, call(clients["plain"]))
	set(tokenbucket.Enforcement{})
	denies(t, call(clients["plain"]), policy.KeyMissing)
	s.ran(t, calls)
}

// A client waits for no token of a limiter that does not enforce, and needs no key.
func unenforcedClient(t *rig) {
	limiter := NewLimiter(t, newStore(t), tokenbucket.PerHour(1))
	ok(t, limiter.SetEnforcement(tokenbucket.Enforcement{Mode: tokenbucket.Shadow}))
	key := ""
	i := t.RateLimitClient(limiter, t.KeyOf(func(Call) (string, error) {
		if key == "" {
			return "", policy.ErrNoKey
		}
		return key, nil
	}))
	url := t.Listen(t.T, &Service{})
	send := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		_, err := t.Dial(t.T, url, i).Make(ctx, &Request{})
		return err
	}
	for _, key = range []string{"", "a", "a", strings.Repeat("k", 1025)} {
		ok(t, send())
	}
	key = ""
	ok(t, limiter.SetEnforcement(tokenbucket.Enforcement{}))
	denies(t, send(), policy.KeyMissing)
}
