package middleware

import (
	"context"
	"errors"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

const (
	noFence       = "Send the fence of the lock as Lock-Fence."
	severalFences = "The request has several Lock-Fence fields."
	badFence      = `The Lock-Fence is not a positive decimal number, or one with ";shared" after it.`
)

// Fence refuses the requests of holders that have lost their lock.
type Fence struct {
	*Watch
	checker       fence.Checker
	allowUnfenced bool
}

// NewFence returns a Fence with this checker. It panics, as the New of package fenced, if that is
// nil or a nil pointer.
func NewFence(c fence.Checker, s setting.Settings) *Fence {
	if naming.IsNil(c) {
		panic("fenced: New: nil checker")
	}
	return &Fence{newWatch(s, "fence", ""), c, s.AllowUnfenced}
}

// Passage describes a request that passes.
type Passage struct {
	// Context is the handler's. It has the token of the request, if there is one.
	Context context.Context
	// Bypassed is the error that prevented the check of the token; nil if it was checked, or if there
	// is none.
	Bypassed error
}

// Check decides about a request with these values of the fence's header field. It returns its
// passage or its denial.
func (m *Fence) Check(ctx context.Context, values []string, key func() (string, error)) (passage Passage, denial *policy.Denial) {
	defer func() {
		if denial != nil {
			Fail(ctx, *denial)
		}
	}()
	if len(values) == 0 && m.allowUnfenced {
		return Passage{Context: ctx}, nil
	}
	token, denial := tokenOf(values)
	if denial != nil {
		return Passage{}, denial
	}
	k, err := key()
	if err != nil || k == "" {
		d := m.NoKey(ctx, err)
		return Passage{}, &d
	}
	if err := naming.CheckKey(k); err != nil {
		return Passage{}, &policy.Denial{Reason: policy.KeyMalformed, Err: err}
	}
	passage = Passage{Context: fence.NewContext(ctx, token)}
	err = m.checker.Check(ctx, k, token)
	switch {
	case err == nil:
		m.Decided(ctx)
	case m.Passes(ctx, err):
		passage.Bypassed = err
	default:
		d := fenceDenial(ctx, err)
		return Passage{}, &d
	}
	return passage, nil
}

// tokenOf returns the token in the values of a request's header field.
func tokenOf(values []string) (fence.Token, *policy.Denial) {
	switch {
	case len(values) == 0:
		return fence.Token{}, &policy.Denial{Reason: policy.FenceMissing, Detail: noFence}
	case len(values) > 1:
		return fence.Token{}, &policy.Denial{Reason: policy.KeyMalformed, Detail: severalFences}
	}
	token, err := fence.ParseToken(values[0])
	if err != nil {
		return fence.Token{}, &policy.Denial{Reason: policy.KeyMalformed, Detail: badFence, Err: err}
	}
	return token, nil
}

// fenceDenial returns the denial for a checker's error.
func fenceDenial(request context.Context, err error) policy.Denial {
	switch {
	case errors.Is(err, fence.ErrStale):
		return policy.Denial{Reason: policy.StaleFence, Err: err}
	case errors.Is(err, fence.ErrInvalidKey), errors.Is(err, fence.ErrInvalid):
		return policy.Denial{Reason: policy.KeyMalformed, Err: err}
	case errors.Is(err, store.ErrUnavailable), request.Err() != nil:
		return unavailable(err)
	}
	return policy.Denial{Reason: policy.InternalError, Err: err}
}
