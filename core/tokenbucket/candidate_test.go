package tokenbucket_test

import (
	"errors"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// A candidate decides about all requests, with buckets of its own, and changes no decision.
func TestCandidate(t *testing.T) {
	st := storetest.NewFaulty(memstore.New())
	plan := tokenbucket.PerHour(3)
	l := must(tokenbucket.New(st, "api", plan, tokenbucket.WithCandidate(tokenbucket.PerHour(5))))
	enforced := must(tokenbucket.New(st, "api", plan))
	for i := range 7 {
		if d := must(l.Allow(t.Context(), "k")); d.Allowed != (i < 3) {
			t.Errorf("decision %d: %+v", i, d)
		}
	}
	if d := must(enforced.Peek(t.Context(), "k")); d.Limits()[0].Remaining != 0 {
		t.Errorf("%+v", d)
	}
	if d := must(l.AllowN(t.Context(), "other", 3)); !d.Allowed || d.Limits()[0].Remaining != 0 {
		t.Errorf("%+v", d)
	}
	r := must(l.Reserve(t.Context(), "third", tokenbucket.Cost{"api": 2}))
	if !r.Allowed || r.Limits()[0].Remaining != 1 {
		t.Errorf("%+v", r.Decision)
	}
}

func TestCandidateRefuses(t *testing.T) {
	for _, plan := range []tokenbucket.Plan{nil, tokenbucket.PerHour(0), tokenbucket.Limits{}} {
		if _, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerHour(1), tokenbucket.WithCandidate(plan)); !errors.Is(err, tokenbucket.ErrInvalidLimit) {
			t.Errorf("%v: %v", plan, err)
		}
	}
	for _, n := range []int64{-1, 0, 1, 1_000_001} {
		if _, err := tokenbucket.New(memstore.New(), "api", tokenbucket.PerHour(1), tokenbucket.WithLease(n)); err == nil {
			t.Errorf("blocks of %d", n)
		}
	}
}
