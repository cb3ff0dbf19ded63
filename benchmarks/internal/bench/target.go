package bench

import (
	"math"
	"strconv"
)

// Target is a row of the table of targets.
type Target struct {
	What           string
	Value          float64 // of this run's medians
	AtLeast, Reach float64 // zero if there is no such bound
	Better         Better
	Unit           string
}

// Verdict returns the bound that the value meets: "reach", "at least" or "not reached"; or "not
// measured".
func (t Target) Verdict() string {
	switch {
	case math.IsNaN(t.Value):
		return "not measured"
	case t.meets(t.Reach):
		return "reach"
	case t.meets(t.AtLeast):
		return "at least"
	default:
		return "not reached"
	}
}

// tolerance allows for rounding of a value that is exactly its bound.
const tolerance = 1e-9

func (t Target) meets(bound float64) bool {
	if t.Better == Less {
		return t.Value <= bound+tolerance
	}
	return bound != 0 && t.Value >= bound-tolerance
}

// bound formats a bound. No value is negative, so a lower bound of zero is none.
func (t Target) bound(v float64) string {
	if v == 0 && t.Better != Less {
		return "–"
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
