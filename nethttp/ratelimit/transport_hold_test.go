package ratelimit_test

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// held has two clients with limiters of their own on one store, as two processes have.
type held struct {
	*wire
	store  *storetest.Faulty
	logs   *bytes.Buffer
	mine   http.RoundTripper
	theirs http.RoundTripper
}

func newHeld(t *testing.T, w *wire, plan tokenbucket.Plan, opts ...policy.TransportOption) *held {
	h := &held{wire: w, store: newStore(t), logs: new(bytes.Buffer)}
	opts = append(opts, policy.Logger(slog.New(slog.NewTextHandler(h.logs, nil))))
	h.mine = ratelimit.Transport(w, newLimiter(h.store, plan), byTenant, opts...)
	h.theirs = ratelimit.Transport(w, newLimiter(h.store, plan), byTenant, opts...)
	return h
}

// An answer of any status holds its key for all processes, and other keys are not affected.
func TestAnswersHoldTheirKey(t *testing.T) {
	for name, a := range map[string]answer{
		"429":             refusal("2"),
		"503":             {status: 503, header: header("Retry-After", "2")},
		"200":             {header: header("Retry-After", "2")},
		"302":             {status: 302, header: header("Retry-After", "2")},
		"nothing is left": {header: header("RateLimit", `"a";r=0;t=2`)},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHeld(t, &wire{answers: []answer{a, {}}}, plenty)
				if status := send(t, h.mine, "a"); status != cmp.Or(a.status, 200) {
					t.Errorf("status %d", status)
				}
				if d := took(func() { send(t, h.mine, "b"); send(t, h.theirs, "c") }); d != 0 {
					t.Errorf("other keys waited for %v", d)
				}
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				if err := failure(ctx, t, h.theirs, "a"); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
					t.Errorf("within the hold: %v", err)
				}
				var wait sync.WaitGroup
				for _, transport := range []http.RoundTripper{h.mine, h.theirs} {
					wait.Go(func() {
						if d := took(func() { send(t, transport, "a") }); d < 2*time.Second || d > 2*time.Second+10*time.Millisecond {
							t.Errorf("sent again after %v", d)
						}
					})
				}
				wait.Wait()
				if strings.Contains(h.logs.String(), "held") {
					t.Errorf("logged %s", h.logs)
				}
			})
		})
	}
}

// A 429 that says nothing holds its key for a second, and for twice as long each time that the next request
// after the hold is refused so, too.
func TestRefusalsWithoutAHint(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		refusals := []answer{{status: http.StatusTooManyRequests}}
		for range 10 {
			refusals = append(refusals, refusals[0])
		}
		refusals[8] = answer{} // then the last hold is forgotten
		h := newHeld(t, &wire{answers: append(refusals, answer{})}, plenty)
		send(t, h.mine, "a")
		for n, want := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
			if d := took(func() { send(t, h.mine, "a") }); d.Round(time.Second) != time.Duration(want)*time.Second {
				t.Errorf("after refusal %d held for %v, want %d s", n+1, d, want)
			}
		}
		<-time.After(10 * time.Minute)
		send(t, h.mine, "a")
		if d := took(func() { send(t, h.mine, "a") }); d.Round(time.Second) != time.Second {
			t.Errorf("after a while held for %v", d)
		}
	})
}

// What a server says is capped.
func TestHoldsAreCapped(t *testing.T) {
	type options []policy.TransportOption
	ours := ratelimit.Decoders(func(*http.Response) time.Duration { return 3 * time.Nanosecond })
	negative := ratelimit.Decoders(func(*http.Response) time.Duration { return -time.Hour })
	for name, c := range map[string]struct {
		answer answer
		opts   options
		want   time.Duration
	}{
		"a year":               {refusal("31536000"), nil, 15 * time.Minute},
		"ages":                 {refusal("99999999999999999999"), nil, 15 * time.Minute},
		"a lower cap":          {refusal("31536000"), options{policy.MaxHold(time.Minute)}, time.Minute},
		"below it":             {refusal("7"), options{policy.MaxHold(time.Minute)}, 7 * time.Second},
		"no holds":             {refusal("7"), options{policy.MaxHold(0)}, 0},
		"no decoders":          {refusal("7"), options{ratelimit.Decoders()}, 0},
		"a nanosecond":         {answer{}, options{ours}, time.Millisecond},
		"a negative hold":      {answer{}, options{negative}, 0},
		"the longest decoder":  {refusal("7"), options{ratelimit.Decoders(ratelimit.OpenAI, ratelimit.Standard)}, 7 * time.Second},
		"a decoder left aside": {refusal("7"), options{ratelimit.Decoders(ratelimit.XRateLimit)}, time.Second}, // as without a hint
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				h := newHeld(t, &wire{answers: []answer{c.answer, {}}}, plenty, c.opts...)
				send(t, h.mine, "a")
				if d := took(func() { send(t, h.theirs, "a") }); d < c.want || d > c.want+time.Millisecond {
					t.Errorf("held for %v, want %v", d, c.want)
				}
			})
		})
	}
}

// A store that cannot hold a key does not lose its answer, and the process obeys by itself.
func TestHoldWithoutAStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(t, &wire{answers: []answer{refusal("2"), refusal("2"), refusal("2"), {}}}, plenty)
		h.store.Break(storetest.HoldTokens, storetest.Down)
		for _, tenant := range []string{"a", "b", "c"} {
			if status := send(t, h.mine, tenant); status != http.StatusTooManyRequests {
				t.Errorf("status %d", status)
			}
		}
		const message = "a key is held in this process alone"
		if n := strings.Count(h.logs.String(), message); n != 1 {
			t.Errorf("logged %d times: %s", n, h.logs)
		}
		if d := took(func() { send(t, h.theirs, "a") }); d != 0 {
			t.Errorf("another process waited for %v", d)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := failure(ctx, t, h.mine, "a"); !errors.Is(err, context.DeadlineExceeded) || ctx.Err() != nil {
			t.Errorf("within the hold: %v", err)
		}
		leaving, leave := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, leave)
		if err := failure(leaving, t, h.mine, "a"); !errors.Is(err, context.Canceled) {
			t.Errorf("a caller that leaves: %v", err)
		}
		if d := took(func() { send(t, h.mine, "a") }); d != time.Second {
			t.Errorf("sent again a second later, after %v", d)
		}
		if d := took(func() { send(t, h.mine, "a") }); d != 0 {
			t.Errorf("sent again after %v", d)
		}
	})
}

// A store that hangs holds an answer up for a second, whatever becomes of its request.
func TestHoldOfAHungStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(t, &wire{answers: []answer{refusal("60"), {}}}, plenty)
		h.store.Break(storetest.HoldTokens, storetest.Hung)
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		if d := took(func() { send(t, h.mine, "a") }); d != time.Second {
			t.Errorf("the answer came after %v", d)
		}
		if d := took(func() { _, _ = h.mine.RoundTrip(outgoing(ctx, "a")) }); d != 59*time.Second {
			t.Errorf("sent again after %v", d)
		}
	})
}

// The hold of an answer whose request has ended is not lost.
func TestHoldAfterTheRequestHasEnded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		h := newHeld(t, &wire{answers: []answer{refusal("2"), {}}}, plenty,
			ratelimit.Decoders(func(resp *http.Response) time.Duration { cancel(); return ratelimit.Standard(resp) }))
		if _, err := h.mine.RoundTrip(outgoing(ctx, "a")); err != nil {
			t.Error(err)
		}
		if d := took(func() { send(t, h.theirs, "a") }); d < 2*time.Second {
			t.Errorf("another process sent after %v", d)
		}
	})
}

// With policy.FailOpen requests are sent while the store is down, within what the process has
// learned.
func TestTransportFailsOpen(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(t, &wire{answers: []answer{refusal("60"), {}, {}, refusal("10"), {}}}, tokenbucket.PerHour(3), policy.FailOpen())
		send(t, h.mine, "a")
		h.store.Break(storetest.Any, storetest.Down) // while the key is held
		for range 2 {
			if d := took(func() { send(t, h.mine, "b") }); d != 0 {
				t.Errorf("another key waited for %v", d)
			}
		}
		if d := took(func() { send(t, h.mine, "a") }); d != time.Minute {
			t.Errorf("what was learned before the outage held it for %v", d)
		}
		if d := took(func() { send(t, h.mine, "a") }); d != 10*time.Second {
			t.Errorf("what was learned in the outage held it for %v", d)
		}
		h.store.Mend(storetest.Any)
		time.Sleep(time.Second) // so that the outage counts as over
		if d := took(func() { send(t, h.mine, "a"); send(t, h.theirs, "a") }); d != 0 {
			t.Errorf("after all: %v", d)
		}
		if all := h.logs.String(); strings.Count(all, "requests bypass the store") != 1 || strings.Count(all, "no longer bypass") != 1 {
			t.Errorf("logged %s", all)
		}
		h.store.Break(storetest.TakeTokens, storetest.Misconfigured)
		if err := failure(t.Context(), t, h.mine, "a"); !errors.Is(err, store.ErrMisconfigured) {
			t.Errorf("a misconfigured store: %v", err)
		}
	})
}

// While the store has the hold, ending it there is enough.
func TestResetEndsAHold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(t, &wire{answers: []answer{refusal("60"), {}}}, plenty, policy.FailOpen())
		send(t, h.mine, "a")
		if err := newLimiter(h.store, plenty).Reset(t.Context(), "a"); err != nil {
			t.Fatal(err)
		}
		if d := took(func() { send(t, h.mine, "a") }); d != 0 {
			t.Errorf("sent after %v", d)
		}
	})
}

// A key without limits obeys in its process.
func TestHoldOfAnUnlimitedKey(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(t, &wire{answers: []answer{refusal("2"), {}}}, tokenbucket.Unlimited())
		send(t, h.mine, "a")
		if d := took(func() { send(t, h.mine, "b"); send(t, h.theirs, "a") }); d != 0 {
			t.Errorf("others waited for %v", d)
		}
		if d := took(func() { send(t, h.mine, "a") }); d != 2*time.Second || h.logs.Len() > 0 {
			t.Errorf("sent again after %v, logged %s", d, h.logs)
		}
	})
}

// However many keys are held, their number in a process is bounded, and they are forgotten.
func TestOwnHoldsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := newHeld(t, &wire{answers: []answer{refusal("60")}}, tokenbucket.Unlimited())
		for n := range 5000 {
			send(t, h.mine, fmt.Sprint(n))
		}
		waits := func(n int) bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := h.mine.RoundTrip(outgoing(ctx, fmt.Sprint(n)))
			return err != nil
		}
		if !waits(0) || !waits(4095) || waits(4096) {
			t.Error("4,096 keys are not what is held")
		}
		time.Sleep(time.Minute)
		if waits(0) || !waits(0) || waits(4999) || !waits(4999) {
			t.Error("holds that ended left no room")
		}
	})
}
