package tokenbucket

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/lockkeeper/lockkeeper/internal/base/naming"
)

// Mode is how far a limiter's decisions count.
type Mode uint8

const (
	// Enforce denies what is over the limit.
	Enforce Mode = iota
	// Shadow decides, charges and counts as Enforce does, and lets everything pass: see
	// [Decision.Shadow].
	Shadow
	// Off lets everything pass. Neither the store, nor a [PlanFunc], nor the candidate is asked,
	// and nothing is charged.
	Off
)

var modeNames = [...]string{"enforce", "shadow", "off"}

// String returns "enforce", "shadow" or "off".
func (m Mode) String() string {
	if int(m) < len(modeNames) {
		return modeNames[m]
	}
	return "Mode(" + strconv.Itoa(int(m)) + ")"
}

// MarshalText returns the text of String. It returns an error for a mode that does not exist.
func (m Mode) MarshalText() ([]byte, error) {
	if int(m) >= len(modeNames) {
		return nil, fmt.Errorf("%w: %v", ErrInvalidEnforcement, m)
	}
	return []byte(m.String()), nil
}

// UnmarshalText reads the text of String. Its error matches [ErrInvalidEnforcement].
func (m *Mode) UnmarshalText(text []byte) error {
	for i, name := range modeNames {
		if string(text) == name {
			*m = Mode(i) //nolint:gosec // one of three
			return nil
		}
	}
	return fmt.Errorf("%w: %.32q is none of enforce, shadow and off", ErrInvalidEnforcement, text)
}

// Enforcement is whether a limiter's denials count. The zero value enforces the limits of all keys.
type Enforcement struct {
	Mode Mode
	// Share is the part of the keys that Enforce applies to, above 0 and up to 1; zero is 1. The
	// others are in Shadow. Other modes have no share.
	//
	// A hash of the limiter's name and the key tells them apart, so a key is on the same side in
	// every process and after a restart. A larger share has all keys of a smaller one.
	Share float64
}

// check returns the enforcement with its share, or an error.
func (e Enforcement) check() (Enforcement, error) {
	switch {
	case int(e.Mode) >= len(modeNames):
		return e, fmt.Errorf("%w: %v", ErrInvalidEnforcement, e.Mode)
	case e.Mode != Enforce && e.Share != 0: // also if it is no number
		return e, fmt.Errorf("%w: a share of %v, where the mode is %v", ErrInvalidEnforcement, e.Share, e.Mode)
	case e.Mode == Enforce && e.Share == 0:
		e.Share = 1
	case e.Mode == Enforce && !(e.Share > 0 && e.Share <= 1):
		return e, fmt.Errorf("%w: a share of %v is not above 0 and up to 1", ErrInvalidEnforcement, e.Share)
	}
	return e, nil
}

// text describes the enforcement in settings, where operators' tools read it: nothing if all keys
// are enforced.
func (e Enforcement) text() string {
	switch {
	case e.Mode != Enforce:
		return " (" + e.Mode.String() + ")"
	case e.Share < 1:
		return " (share=" + strconv.FormatFloat(e.Share, 'g', -1, 64) + ")"
	}
	return ""
}

// SetEnforcement changes whether denials count, for all decisions that begin after it returns, also
// those of waiters: try a limit on real requests ([Shadow]), enforce it for a part of the keys and
// then for all, or switch it off when it was wrong. Buckets stay as they are.
//
// It returns [ErrInvalidEnforcement] or [ErrClosed], and then changes nothing.
func (l *Limiter) SetEnforcement(e Enforcement) error {
	e, err := e.check()
	if err != nil {
		return err
	}
	return l.change(func(r *compiledRule) { r.enforcement = e }, true)
}

// Enforcement returns the present enforcement. Its share is the part of the keys that is enforced:
// 1 if all of them are, and 0 if none is.
func (l *Limiter) Enforcement() Enforcement { return l.rule.Load().enforcement }

// Enforces reports whether the limits of a key are enforced: see [Enforcement]. For a key that is
// empty or longer than 1,024 bytes, which can have no place in a share, it reports whether those of
// all keys are.
func (l *Limiter) Enforces(key string) bool { return l.rule.Load().enforces(key) }

// enforces is [Limiter.Enforces].
func (r *compiledRule) enforces(key string) bool {
	switch {
	case r.enforcement.Share == 1:
		return true
	case r.enforcement.Share == 0, naming.CheckKey(key) != nil:
		return false
	}
	return place(r.limiter, key) < r.below
}

// The constants of FNV-1a in 64 bits.
const (
	hashOffset = 14695981039346656037
	hashPrime  = 1099511628211
)

// hashOf continues a hash by FNV-1a.
func hashOf(h uint64, text string) uint64 {
	for i := range len(text) {
		h = (h ^ uint64(text[i])) * hashPrime
	}
	return h
}

// place returns the place of a key of a limiter in 0 to 2^64-1, which must never change: FNV-1a in
// 64 bits of the limiter's name, a zero byte and the key, mixed by the finalizer of MurmurHash3,
// since the upper bits of FNV-1a are poor for short texts. The keys whose place is below the share
// of 2^64 are enforced.
func place(limiter uint64, key string) uint64 {
	h := hashOf(limiter, key)
	h = (h ^ h>>33) * 0xff51afd7ed558ccd
	h = (h ^ h>>33) * 0xc4ceb9fe1a85ec53
	return h ^ h>>33
}

// inShadow returns the limits in shadow.
func (p *fixedPlan) inShadow() *fixedPlan {
	twin := *p
	twin.mode = Shadow
	return &twin
}

// undecided returns the plan of a key in shadow about which there is no decision, because of err.
func undecided(err error) *fixedPlan { return &fixedPlan{mode: Shadow, undecided: err} }

// passing returns the plan by which a request passes in shadow although err keeps the limiter from
// a decision. If the plan is not in shadow, it returns err.
func (p *fixedPlan) passing(err error) (*fixedPlan, error) {
	if p.mode != Shadow {
		return nil, err
	}
	return undecided(err), nil
}

// lenient reports whether a request passes in shadow although its decision has failed: not if its
// caller has left, or the limiter or its store is closed.
func (p *fixedPlan) lenient(ctx context.Context, err error) bool {
	return p.mode == Shadow && ctx.Err() == nil && !errors.Is(err, ErrClosed)
}

// pass turns a denial in shadow into a decision that passes.
func (d *Decision) pass() { d.Allowed, d.Shadow, d.RetryAfter = true, true, 0 }
