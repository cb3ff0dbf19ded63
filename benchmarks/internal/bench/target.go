package bench

import (
	"math"
	"strconv"
)

// Target is a row of the table of what is to be reached.
type Target struct {
	What           string
	Value          float64 // of this run's medians
	AtLeast, Reach float64 // zero where there is no such bound
	Better         Better
	Unit           string
}

// Verdict says how far the value has come: "reach", "at least" or "not reached".
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

// tolerance is what arithmetic may cost a value that is exactly its bound.
const tolerance = 1e-9

func (t Target) meets(bound float64) bool {
	if t.Better == Less {
		return t.Value <= bound+tolerance
	}
	return bound != 0 && t.Value >= bound-tolerance
}

// bound writes a bound: nothing may be less than zero, so a bound of zero from below is none.
func (t Target) bound(v float64) string {
	if v == 0 && t.Better != Less {
		return "–"
	}
	return strconv.FormatFloat(v, 'g', 3, 64)
}
