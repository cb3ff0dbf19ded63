package mwtest

import (
	"net/http"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// serveAttempts starts a server with room for ten failed attempts, whose key is held then. An
// attempt waits for the gate, and is answered with its field X-Status.
func serveAttempts(t *rig, g gate, st store.Buckets) settling {
	t.Helper()
	limit := RateLimit{Options: append([]policy.RateLimitOption{
		policy.Hold(tokenbucket.Escalate(2*time.Hour, 2, 24*time.Hour)), policy.LegacyHeaders(),
	}, failures.Options...)}
	return serveSettling(t, newLimiter(t, st, tokenbucket.PerDay(10)), limit, func(w http.ResponseWriter, r *http.Request) {
		w.WriteHeader(must(strconv.Atoi(r.Header.Get("X-Status"))))
		g.handle(w, r)
	})
}

// opens sends attempts that will be answered with a status, and waits until they run.
func (s settling) opens(g gate, n, status int) <-chan answer {
	s.t.Helper()
	answers := s.sendingMany(n, "X-Key", "a", "X-Status", strconv.Itoa(status))
	for range n {
		g.runs(s.t)
	}
	return answers
}

// refusedMeanwhile checks the answer to an attempt for which open ones leave no room: it may come
// back as soon as one of them can have ended, which is how long those before it took.
func (s settling) refusedMeanwhile() {
	s.t.Helper()
	a := s.send("1", "", "X-Key", "a", "X-Status", "200").denies(policy.QuotaExceeded)
	soon := a.header.Get("Retry-After")
	if n, err := strconv.Atoi(soon); err != nil || n < 1 || n > 1+int(time.Since(s.t.began)/time.Second) {
		s.t.Errorf("Retry-After is %q", soon)
	}
	a.has("RateLimit", `"api";r=0;t=`+soon).has("X-RateLimit-Remaining", "0").has("X-RateLimit-Reset", soon)
}

// end lets attempts end, and waits for their answers.
func (g gate) end(t *rig, answers <-chan answer, n, status int) {
	t.Helper()
	for range n {
		g.let()
		(<-answers).is(status, "done")
	}
}

// openAttemptRows are about attempts that are refused while others are open.
var openAttemptRows = []row{
	{"right attempts at once do not hold their key", func(t *rig) {
		g := newGate(t)
		s := serveAttempts(t, g, newStore(t))
		for range 2 {
			right := s.opens(g, 10, http.StatusOK)
			s.refusedMeanwhile()
			s.refusedMeanwhile()
			g.end(t, right, 10, http.StatusOK)
			s.leaves("api 10")
		}
		g.end(t, s.opens(g, 1, http.StatusOK), 1, http.StatusOK)
	}},
	{"wrong attempts at once hold their key when they have failed", func(t *rig) {
		g := newGate(t)
		s := serveAttempts(t, g, newStore(t))
		wrong := s.opens(g, 10, http.StatusUnauthorized)
		s.refusedMeanwhile()
		s.refusedMeanwhile()
		g.end(t, wrong, 10, http.StatusUnauthorized)
		s.send("1", "", "X-Key", "a", "X-Status", "200").denies(policy.AbnormalUsage).has("Retry-After", "~8640")
		if d := must(s.limiter.Peek(t.Context(), "a")); d.Held <= time.Hour || d.Held > 2*time.Hour {
			t.Errorf("the key is held for %v", d.Held)
		}
	}},
	{"as many wrong attempts as there is room for do not hold their key", func(t *rig) {
		g := newGate(t)
		st := newStore(t)
		s := serveAttempts(t, g, st)
		g.end(t, s.opens(g, 10, http.StatusUnauthorized), 10, http.StatusUnauthorized)
		if n := st.Calls(storetest.HoldTokens); n != 0 {
			t.Errorf("it was held %d times", n)
		}
		s.send("1", "", "X-Key", "a", "X-Status", "200").denies(policy.AbnormalUsage)
	}},
	{"a right attempt among wrong ones had room for the one that was refused", func(t *rig) {
		g := newGate(t)
		s := serveAttempts(t, g, newStore(t))
		right := s.opens(g, 1, http.StatusOK)
		wrong := s.opens(g, 9, http.StatusUnauthorized)
		s.refusedMeanwhile()
		for range 10 {
			g.let()
		}
		for range 9 {
			(<-wrong).is(http.StatusUnauthorized, "done")
		}
		(<-right).is(http.StatusOK, "done")
		s.leaves("api 1")
		g.end(t, s.opens(g, 1, http.StatusUnauthorized), 1, http.StatusUnauthorized)
		s.send("1", "", "X-Key", "a", "X-Status", "200").denies(policy.AbnormalUsage)
	}},
	{"an allowed attempt is not told of reserved tokens as used", func(t *rig) {
		g := newGate(t)
		s := serveSettling(t, newLimiter(t, newStore(t), tokenbucket.PerDay(1)), failures, func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(http.StatusOK)
		})
		g.let()
		s.send("1", "", "X-Key", "a").is(http.StatusOK, "").has("RateLimit", `"api";r=0;t=1`)
		s.send("1", "", "X-Key", "a").is(http.StatusOK, "")
	}},
	timedRow("an attempt that stays open counts as used", func(t *rig) {
		st := newStore(t)
		s := serveLocal(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(must(strconv.Atoi(r.Header.Get("X-Status"))))
		},
			RateLimit{
				Limiter: newLimiter(t, st, tokenbucket.PerHour(2)), By: byHeader,
				Options: append([]policy.RateLimitOption{policy.Hold(tokenbucket.Escalate(2*time.Hour, 2, 24*time.Hour))}, failures.Options...),
			})
		s.send(t.Context(), "1", "X-Key", "a", "X-Status", "401").is(http.StatusUnauthorized, "done")
		open := s.later(t.Context(), "X-Key", "a", "X-Status", "200", "X-Take", "10m")
		s.send(t.Context(), "1", "X-Key", "a", "X-Status", "200").denies(policy.QuotaExceeded).has("Retry-After", "1")
		<-time.After(29 * time.Second)
		s.send(t.Context(), "1", "X-Key", "a", "X-Status", "200").denies(policy.QuotaExceeded).has("Retry-After", "1")
		<-time.After(time.Second)
		s.send(t.Context(), "1", "X-Key", "a", "X-Status", "200").denies(policy.AbnormalUsage).has("Retry-After", "7200")
		(<-open).is(http.StatusOK, "done")
	}),
	timedRow("an attempt that is not settled counts as used after a while", func(t *rig) {
		var r reports
		st := newStore(t)
		s := serveLocal(t, nil, RateLimit{
			Limiter: newLimiter(t, st, tokenbucket.PerHour(1)), By: byHeader, Hooks: r.hooks(),
			Options: append([]policy.RateLimitOption{policy.Hold(tokenbucket.Escalate(2*time.Hour, 2, 24*time.Hour))}, failures.Options...),
		})
		st.Break(storetest.SettleTokens, storetest.Down)
		s.send(t.Context(), "1", "X-Key", "a").is(http.StatusOK, "done")
		r.are(t, store.ErrUnavailable)
		st.Mend(storetest.Any)
		s.send(t.Context(), "1", "X-Key", "a").denies(policy.QuotaExceeded).has("Retry-After", "1")
		<-time.After(30 * time.Second)
		s.send(t.Context(), "1", "X-Key", "a").denies(policy.AbnormalUsage).has("Retry-After", "7200")
	}),
	timedRow("Retry-After of an attempt is how long others take", func(t *rig) {
		s := serveLocal(t, nil, RateLimit{Limiter: newLimiter(t, newStore(t), tokenbucket.PerHour(1)), By: byHeader, Options: failures.Options})
		s.send(t.Context(), "1", "X-Key", "a", "X-Take", "4s").is(http.StatusOK, "done")
		open := s.later(t.Context(), "X-Key", "a", "X-Take", "4s")
		s.send(t.Context(), "1", "X-Key", "a").denies(policy.QuotaExceeded).has("Retry-After", "4").has("RateLimit", `"api";r=0;t=4`)
		(<-open).is(http.StatusOK, "done")
	}),
}
