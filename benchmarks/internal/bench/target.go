package bench

import (
	"math"
	"slices"
	"strconv"
	"strings"
)

// Target is a row of the table of targets. Its bound is either what was asked for, or, where that
// cannot be reached, a measured floor times a factor.
type Target struct {
	What   string
	Bound  float64
	Better Better
	Unit   string
	Floor  string // the evidence, if the bound is a floor times a factor: what was measured, and the factor
}

// find returns the target of this name, or nil.
func find(all []Target, what string) *Target {
	i := slices.IndexFunc(all, func(t Target) bool { return t.What == what })
	if i < 0 {
		return nil
	}
	return &all[i]
}

// verdict returns "reached" or "not reached", or "not measured" if v is NaN.
func (t Target) verdict(v float64) string {
	switch {
	case math.IsNaN(v):
		return "not measured"
	case t.meets(v):
		return "reached"
	default:
		return "not reached"
	}
}

// tolerance allows for rounding of a value that is exactly its bound.
const tolerance = 1e-9

func (t Target) meets(v float64) bool {
	if t.Better == Less {
		return v <= t.Bound+tolerance
	}
	return v >= t.Bound-tolerance
}

// bound formats the bound with its unit.
func (t Target) bound() string {
	sign := "≥ "
	if t.Better == Less {
		sign = "≤ "
	}
	return strings.TrimSpace(sign + strconv.FormatFloat(t.Bound, 'g', 3, 64) + " " + t.Unit)
}
