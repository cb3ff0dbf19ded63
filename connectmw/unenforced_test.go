package connectmw_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/connectmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// A limiter that does not enforce denies no call, and no metadata tells of it.
func TestUnenforcedLimiterDeniesNobody(t *testing.T) {
	var s service
	st := newStore(t)
	limiter := newLimiter(t, st, tokenbucket.PerHour(1))
	var reported []error
	by, hooks := connectmw.ByHeader("x-key"), []policy.RPCRateLimitOption{
		policy.StatusHeaders(), policy.RetryJitter(time.Second),
		connectmw.OnError(func(_ *connectmw.Call, err error) { reported = append(reported, err) }),
	}
	held := tokenbucket.Escalate(time.Minute, 2, time.Hour)
	clients := map[string]client{
		"plain": serve(t, &s, ratelimit.New(limiter, by, hooks...)),
		"costs": serve(t, &s, ratelimit.New(limiter, by, append(hooks, policy.Hold(held), ratelimit.Costs(func(*connectmw.Call) tokenbucket.Cost {
			return tokenbucket.Cost{"api": 1}
		}))...)),
		"open": serve(t, &s, ratelimit.New(limiter, by, append(hooks, policy.FailOpen(), ratelimit.PerMessage())...)),
	}
	calls := int64(0)
	call := func(client client, pairs ...string) error {
		t.Helper()
		var header, trailer http.Header
		_, err := client.Make(with(t, pairs...), &things.MakeRequest{}, intoHeader(&header), intoTrailer(&trailer))
		if err == nil {
			calls++
		}
		if told := len(header.Values("ratelimit-status")) + len(trailer.Values("retry-after")); err == nil && told > 0 {
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
			if n, err := sendMessages(with(t, "x-key", "a"), t, client, 5); n != 5 || !errors.Is(err, io.EOF) {
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
func TestUnenforcedClient(t *testing.T) {
	limiter := newLimiter(t, newStore(t), tokenbucket.PerHour(1))
	ok(t, limiter.SetEnforcement(tokenbucket.Enforcement{Mode: tokenbucket.Shadow}))
	key := ""
	i := ratelimit.NewClient(limiter, func(*connectmw.Call) (string, error) {
		if key == "" {
			return "", policy.ErrNoKey
		}
		return key, nil
	})
	url := listen(t, &service{})
	send := func() error {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		_, err := dial(t, url, i).Make(ctx, &things.MakeRequest{})
		return err
	}
	for _, key = range []string{"", "a", "a", strings.Repeat("k", 1025)} {
		ok(t, send())
	}
	key = ""
	ok(t, limiter.SetEnforcement(tokenbucket.Enforcement{}))
	denies(t, send(), policy.KeyMissing)
}
