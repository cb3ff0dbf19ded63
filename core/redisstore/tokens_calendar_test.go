package redisstore_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// ofDay returns a request for n tokens of 10 in each day, the present one of which ends then.
func ofDay(key string, n int64, end time.Time) store.TokenRequest {
	end = end.Truncate(time.Microsecond)
	return store.TokenRequest{Limiter: "api", Key: key, Charges: []store.Charge{{
		Bucket: "@day", Cost: time.Duration(n), Capacity: 10, Overdraft: 10, Interval: 1,
		Period: &store.Period{Begin: end.Add(-24 * time.Hour), End: end, Next: end.Add(24 * time.Hour)},
	}}}
}

func wantPeriod(t *testing.T, reply store.TakeReply, allowed bool, used int64, left time.Duration) {
	t.Helper()
	if end := reply.Debts.End(0); reply.Allowed != allowed || reply.Debts.At(0) != time.Duration(used) || end > left+time.Second || end < left-time.Minute {
		t.Errorf("%+v: %d used, for %v; want %v, %d for %v", reply, reply.Debts.At(0), end, allowed, used, left)
	}
}

// The server's clock says which period it is, whatever that of a client says, and when it is over.
func TestPeriodsByTheServersClock(t *testing.T) {
	t.Parallel()
	for name, start := range map[string]func(t *testing.T) (*redisstore.Store, func(time.Duration)){
		"miniredis": func(t *testing.T) (*redisstore.Store, func(time.Duration)) {
			server, now := miniredis.RunT(t), time.Now()
			return newStore(t, dial(t, server.Addr(), time.Second), redisstore.WithoutDenialCache()), func(by time.Duration) {
				now = now.Add(by)
				server.SetTime(now)
			}
		},
		"redis": func(t *testing.T) (*redisstore.Store, func(time.Duration)) {
			server, clock := redistest.StartWithClock(t)
			return newStore(t, server.Client(), redisstore.WithoutDenialCache()), clock.Step
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, step := start(t)
			step(0)
			end := time.Now().Add(12 * time.Hour)
			for hours := range 47 { // by which the clock of a client is off
				hours -= 23
				key, client := fmt.Sprint(hours), end
				switch {
				case hours >= 12: // it is the next day there
					client = end.Add(24 * time.Hour)
				case hours < -12:
					client = end.Add(-24 * time.Hour)
				}
				wantPeriod(t, takes(t, s, ofDay(key, 8, client)), true, 8, 12*time.Hour)
				wantPeriod(t, takes(t, s, ofDay(key, 8, end)), false, 8, 12*time.Hour)
			}
			step(13 * time.Hour)
			wantPeriod(t, takes(t, s, ofDay("0", 0, end)), true, 0, 23*time.Hour)
			wantPeriod(t, takes(t, s, ofDay("0", 9, end)), true, 9, 23*time.Hour)
			step(-2 * time.Hour) // it keeps its end
			wantPeriod(t, takes(t, s, ofDay("0", 9, end)), false, 9, 25*time.Hour)
			step(-30 * time.Hour) // which is too far
			wantPeriod(t, takes(t, s, ofDay("0", 7, end)), true, 7, 7*time.Hour)
			step(7*time.Hour - time.Minute)
			wantPeriod(t, takes(t, s, ofDay("0", 7, end)), false, 7, time.Minute)
			step(time.Minute + time.Second)
			wantPeriod(t, takes(t, s, ofDay("0", 7, end)), true, 7, 24*time.Hour)
		})
	}
}

// A bucket expires with its period, or its hold if that ends later.
func TestExpiryOfPeriods(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	s := newStore(t, client)
	end := time.Now().Add(3 * time.Hour)
	expires := func(want time.Duration) {
		t.Helper()
		if got := client.PTTL(ctx(), onlyKey(t, client)).Val(); got > want+2*time.Millisecond || got < want-time.Minute {
			t.Errorf("expires after %v, want %v", got, want)
		}
	}
	takes(t, s, ofDay("k", 3, end))
	expires(3 * time.Hour)
	for _, hold := range []time.Duration{time.Hour, 5 * time.Hour} {
		must(t, s.HoldTokens(ctx(), ofDay("k", 1, end), hold))
		expires(max(hold, 3*time.Hour))
	}
	settled(t, s, ofDay("k", -3, end))
	expires(5 * time.Hour)
	must(t, s.ResetTokens(ctx(), ofDay("k", 1, end)))
	must(t, s.HoldTokens(ctx(), ofDay("k", 1, end), time.Hour))
	expires(time.Hour)
	settled(t, s, ofDay("k", 3, end))
	expires(3 * time.Hour)
}

// A denial is remembered until the period ends, and not for longer.
func TestDenialsOfPeriodsAreCached(t *testing.T) {
	t.Parallel()
	_, proxy, _, s := behindProxy(t, time.Second)
	end := time.Now().Add(3 * time.Hour)
	takes(t, s, ofDay("k", 8, end))
	wantPeriod(t, takes(t, s, ofDay("k", 3, end)), false, 8, 3*time.Hour)
	before := proxy.Seen("evalsha")
	for _, n := range []int64{3, 10} {
		for _, client := range []time.Time{end, end.Add(5 * time.Hour)} { // the bucket keeps its end
			reply := takes(t, s, ofDay("k", n, client))
			if wantPeriod(t, reply, false, 8, 3*time.Hour); !reply.Cached {
				t.Errorf("%d tokens: %+v", n, reply)
			}
		}
	}
	if n := proxy.Seen("evalsha") - before; n != 0 {
		t.Errorf("sent %d times", n)
	}
	wantPeriod(t, takes(t, s, ofDay("k", 2, end)), true, 10, 3*time.Hour)
	takes(t, s, ofDay("k", 1, end))
	settled(t, s, ofDay("k", -4, end))
	wantPeriod(t, takes(t, s, ofDay("k", 1, end)), true, 7, 3*time.Hour)

	for range 20 {
		end := time.Now().Add(100 * time.Millisecond)
		takes(t, s, ofDay("short", 10, end))
		reply := takes(t, s, ofDay("short", 1, end))
		if reply.Allowed {
			continue // late
		}
		for { // as a client that obeys RetryAfter
			<-time.After(reply.Debts.End(0))
			if again := takes(t, s, ofDay("short", 10, end)); again.Allowed {
				break
			} else if time.Until(end) < -time.Millisecond {
				t.Fatalf("denied %v after the end: %+v", time.Since(end), again)
			} else {
				reply = again
			}
		}
		return
	}
	t.Error("the machine is too slow")
}

// FuzzDamagedPeriod checks that a decision about a damaged bucket of a calendar is plausible.
func FuzzDamagedPeriod(f *testing.F) {
	server := redistest.Start(f)
	direct := server.Client()
	s := newStore(f, server.Client(), redisstore.WithoutDenialCache())
	hour := time.Now().Add(time.Hour).UnixMicro()
	zeros := strings.Repeat("0", 18)
	for _, value := range []string{
		"", "x", "@", zeros + "7@", zeros + "7@x", zeros + "7@@1", fmt.Sprint(zeros, "7@", hour), fmt.Sprint(zeros, "7@0", hour),
		fmt.Sprint(zeros, "7@-", hour), fmt.Sprint(zeros, "7@", hour, ".5"), fmt.Sprint(zeros, "7@", hour, "000000"), zeros + "7@inf", zeros + "7@nan",
		fmt.Sprint("             inf001@", hour), fmt.Sprint("             nan001@", hour), fmt.Sprint("              -5001@", hour),
		fmt.Sprint("            0x10001@", hour), fmt.Sprint("             1.5001@", hour), fmt.Sprint(strings.Repeat("9", 19), "@", hour),
		fmt.Sprint(zeros, "7@", hour, " ", hour, " 3600000000"), fmt.Sprint(zeros, "7@", hour, " ", hour), fmt.Sprint(zeros, "7@0 ", hour, " 60000000"),
		fmt.Sprint(zeros, "7@", hour, " ", strings.Repeat("9", 40), " 5"), fmt.Sprint(hour, "0001"), fmt.Sprint(hour, "0001@", hour),
		fmt.Sprint(zeros, "7@", strings.Repeat("9", 19)), fmt.Sprint(zeros, "7@", strings.Repeat("9", 16)), fmt.Sprint(zeros, "@", hour),
	} {
		f.Add(value)
	}
	end := time.Now().Add(5 * time.Hour)
	ask := func(t testing.TB, r store.TokenRequest, call func(store.TokenRequest) (store.TakeReply, error)) (store.TakeReply, bool) {
		reply, err := call(r)
		if err != nil && !errors.Is(err, store.ErrUnavailable) {
			t.Fatal(err)
		}
		return reply, err == nil
	}
	if _, err := s.TakeTokens(ctx(), ofDay("k", 1, end)); err != nil {
		f.Fatal(err)
	}
	key := onlyKey(f, direct)
	f.Fuzz(func(t *testing.T, value string) {
		for _, n := range []int64{0, 1, 10} {
			if err := direct.Set(ctx(), key, value, time.Hour).Err(); err != nil {
				t.Fatal(err)
			}
			for range 2 {
				take := func(r store.TokenRequest) (store.TakeReply, error) { return s.TakeTokens(ctx(), r) }
				reply, ok := ask(t, ofDay("k", n, end), take)
				if debt, left := reply.Debts.At(0), reply.Debts.End(0); ok && (debt < 0 || debt > 20 || left <= 0 || left > 48*time.Hour || reply.Held < 0) {
					t.Fatalf("%q: %+v, %d used for %v", value, reply, debt, left)
				}
				rate := ofDay("k", n, end)
				rate.Charges[0].Period, rate.Charges[0].Interval, rate.Charges[0].Capacity = nil, 7, 70
				reply, ok = ask(t, rate, take)
				if debt := reply.Debts.At(0); ok && (debt < 0 || debt > 80 || reply.Held < 0 || reply.Debts.End(0) != 0) {
					t.Fatalf("%q: %+v, a debt of %d", value, reply, debt)
				}
			}
			ask(t, ofDay("k", -n, end), func(r store.TokenRequest) (store.TakeReply, error) { return s.SettleTokens(ctx(), r) })
		}
	})
}
