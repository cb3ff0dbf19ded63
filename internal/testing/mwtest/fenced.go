package mwtest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/memfence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// Fenced is fenced.New.
type Fenced struct {
	Checker fence.Checker
	By      Key
	Options []policy.FencedOption
	Hooks
}

// checker is a fence.Checker that fails on command.
type checker struct {
	*memfence.Fence
	mu  sync.Mutex
	err error
}

func newChecker(t *rig) *checker {
	t.Helper()
	f := must(memfence.New())
	return &checker{Fence: f}
}

// fail makes every check return an error; nil undoes that.
func (c *checker) fail(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.err = err
}

// Check implements fence.Checker.
func (c *checker) Check(ctx context.Context, key string, t fence.Token) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil {
		return c.err
	}
	return c.Fence.Check(ctx, key, t)
}

// answerToken is a handler that answers with its token.
func answerToken(w http.ResponseWriter, r *http.Request) {
	text := "none"
	if token, ok := fence.FromContext(r.Context()); ok {
		text = token.String()
	}
	_, _ = io.WriteString(w, text)
}

// serveFenced starts a server whose handler answers with its token.
func serveFenced(t *rig, c fence.Checker, opts ...policy.FencedOption) server {
	t.Helper()
	return serve(t, answerToken, Fenced{Checker: c, By: byID, Options: opts})
}

// passes sends a request with a fence, and checks that its handler gets it.
func (s server) passes(id, token string) {
	s.t.Helper()
	s.send(id, "", fence.Header, token).is(http.StatusOK, token).has("Fence-Status", "")
}

// sendFenced sends a request for the resource 1 with each of these fences.
func (s server) sendFenced(tokens ...string) answer {
	s.t.Helper()
	var header []string
	for _, token := range tokens {
		header = append(header, fence.Header, token)
	}
	return s.send("1", "", header...)
}

var fencedRows = append([]row{
	{"a stale fence is refused", func(t *rig) {
		s := serveFenced(t, newChecker(t))
		s.passes("1", "33")
		s.passes("1", "33") // the same holder again
		s.passes("1", "34")
		s.sendFenced("33").denies(policy.StaleFence).has("Retry-After", "")
		s.passes("1", "34")
		s.passes("1", "9223372036854775807")
		s.sendFenced("9223372036854775806").denies(policy.StaleFence)
	}},
	{"the handler of a refused request does not run", func(t *rig) {
		var c counter
		s := serve(t, c.handle, Fenced{Checker: newChecker(t), By: byID})
		s.sendFenced("2").is(http.StatusCreated, "run 1")
		s.sendFenced("1").denies(policy.StaleFence)
		s.sendFenced().denies(policy.FenceMissing)
		s.sendFenced("x").denies(policy.KeyMalformed)
		c.ran(t, 1)
	}},
	{"a shared fence excludes no other", func(t *rig) {
		s := serveFenced(t, newChecker(t))
		s.passes("1", "50;shared")
		s.passes("1", "40;shared")
		s.passes("1", "41")
		s.sendFenced("40;shared").denies(policy.StaleFence)
		s.passes("1", "41;shared")
	}},
	{"each resource has its own mark", func(t *rig) {
		s := serveFenced(t, newChecker(t))
		s.passes("1", "50")
		s.passes("2", "40")
		s.sendFenced("40").denies(policy.StaleFence)
	}},
	{"a request without a fence is refused", func(t *rig) {
		s := serveFenced(t, newChecker(t))
		a := s.sendFenced().denies(policy.FenceMissing)
		if !strings.Contains(a.header.Get("Link"), "#fence-missing") || !strings.Contains(a.body, fence.Header) {
			t.Errorf("it does not name the missing field: Link %q, %s", a.header.Get("Link"), a.body)
		}
	}},
	{"requests without a fence pass if configured", func(t *rig) {
		s := serveFenced(t, newChecker(t), policy.AllowUnfenced())
		s.passes("1", "50")
		s.sendFenced().is(http.StatusOK, "none").has("Fence-Status", "")
		s.sendFenced("40").denies(policy.StaleFence)
		s.sendFenced("").denies(policy.KeyMalformed)
	}},
	{"a malformed fence is refused", func(t *rig) {
		s := serveFenced(t, newChecker(t))
		for _, text := range []string{"", "0", "-1", "+1", "01", "1 2", "1.0", "1, 2", "x", "1;shared;shared", "1;Shared", "1; shared", "9223372036854775808"} {
			a := s.sendFenced(text).denies(policy.KeyMalformed)
			if !strings.Contains(a.body, fence.Header) {
				t.Errorf("%q: %s", text, a.body)
			}
		}
		s.passes("1", "1")
	}},
	{"two fences are refused", func(t *rig) {
		s := serveFenced(t, newChecker(t))
		s.sendFenced("50", "50").denies(policy.KeyMalformed)
		s.passes("1", "1")
	}},
	{"a key that is too long is refused", func(t *rig) {
		s := serve(t, answerToken, Fenced{Checker: newChecker(t), By: byHeader})
		s.send("1", "", fence.Header, "1", "X-Key", strings.Repeat("k", 1024)).is(http.StatusOK, "1")
		s.send("1", "", fence.Header, "1", "X-Key", strings.Repeat("k", 1025)).denies(policy.KeyMalformed)
	}},
	{"a key that the checker refuses is malformed", func(t *rig) {
		c := newChecker(t)
		s := serveFenced(t, c)
		c.fail(fence.ErrInvalidKey)
		s.sendFenced("1").denies(policy.KeyMalformed)
	}},
	{"an unavailable store refuses requests", func(t *rig) {
		c := newChecker(t)
		s := serveFenced(t, c)
		for _, err := range []error{store.ErrUnavailable, store.ErrFull, store.ErrUnconfirmed} {
			c.fail(err)
			s.sendFenced("1").denies(policy.ReducedCapacity)
		}
		s.sendFenced().denies(policy.FenceMissing) // whatever the store's state
		s.sendFenced("x").denies(policy.KeyMalformed)
		c.fail(nil)
		s.passes("1", "1")
	}},
	{"an unavailable store lets requests run unprotected if configured", func(t *rig) {
		c := newChecker(t)
		s := serveFenced(t, c, policy.RunUnprotected())
		s.passes("1", "50")
		c.fail(store.ErrUnavailable)
		s.sendFenced("40").is(http.StatusOK, "40").has("Fence-Status", "bypassed")
		s.sendFenced().denies(policy.FenceMissing)
		c.fail(nil)
		s.sendFenced("40").denies(policy.StaleFence)
	}},
	{"an error of the checker is an internal error", func(t *rig) {
		c := newChecker(t)
		s := serveFenced(t, c, policy.RunUnprotected())
		c.fail(errors.New(secret))
		s.sendFenced("1").denies(policy.InternalError)
	}},
	{"a guard does not keep the refusal", func(t *rig) {
		var c counter
		s := serve(t, c.handle,
			Idempotency{Guard: newGuard(t, newStore(t)), By: byUser}, Fenced{Checker: newChecker(t), By: byID})
		send := func(key, token string) answer {
			return s.send("1", "", "X-User", "u", keyHeader, key, fence.Header, token)
		}
		send("a", "50").is(http.StatusCreated, "run 1")
		send("b", "40").denies(policy.StaleFence)
		send("b", "50").is(http.StatusCreated, "run 2") // under the lock again
		send("a", "40").is(http.StatusCreated, "run 1") // what was done before
		c.ran(t, 2)
	}},
}, keyRows(func(t *rig, by Key, hooks Hooks) Middleware {
	return Fenced{Checker: newChecker(t), By: by, Hooks: hooks}
}, fence.Header, "1")...)
