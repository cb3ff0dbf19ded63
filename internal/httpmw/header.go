package httpmw

import (
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// draft11 is draft-ietf-httpapi-ratelimit-headers-11: two structured-field Lists of Strings. The
// fields are added, so that each limiter of a request is reported.
//
// RateLimit-Policy has the quota q, which is the burst, and the window w, the time that refills it.
// RateLimit has the remaining quota r, which so never exceeds q, and the time t:
//
//   - until the bucket is full again;
//   - without remaining quota, until there is some; and
//   - on a denial, at most until a retry can succeed.
//
// The parts that depend on the plan alone are cached, for as many plans as most applications have.
// A PlanFunc may have any number of plans; those without a place in the cache are encoded each
// time.
type draft11 struct {
	plans [16]atomic.Pointer[plan]
}

// plan is the cached part of the fields of a plan.
type plan struct {
	limits []limit
	policy string // the value of RateLimit-Policy
}

type limit struct {
	name     string
	capacity int64
	window   time.Duration
	item     string // the name as a structured-field String
}

// encode adds the fields. Their values are then in room.
func (e *draft11) encode(h http.Header, states []tokenbucket.LimitState, room *[2]string) {
	p := e.plan(states)
	if p == nil {
		return
	}
	var buffer [128]byte
	b := buffer[:0]
	for i := range states {
		s := &states[i]
		if i > 0 {
			b = append(b, ", "...)
		}
		b = append(b, p.limits[i].item...)
		b = append(b, ";r="...)
		b = strconv.AppendInt(b, s.Remaining, 10)
		b = append(b, ";t="...)
		b = strconv.AppendInt(b, roundUp(resetOf(s)), 10)
	}
	room[0], room[1] = p.policy, string(b) // one array for both
	policy, state := room[0:1:1], room[1:2:2]
	if len(h) > 0 { // most limiters are outermost, so there are no fields yet
		policy, state = behind(h[policyField], policy), behind(h[stateField], state)
	}
	h[policyField], h[stateField] = policy, state
}

func behind(before, values []string) []string {
	if len(before) == 0 {
		return values
	}
	return append(before, values...)
}

// The names of the fields in canonical form.
const (
	policyField = "Ratelimit-Policy"
	stateField  = "Ratelimit"
)

// plan returns the texts of a decision's limits, or nil if they cannot be written.
func (e *draft11) plan(states []tokenbucket.LimitState) *plan {
	place := &e.plans[placeOf(states)%uint64(len(e.plans))]
	if p := place.Load(); p != nil && p.of(states) {
		return p
	}
	p := newPlan(states)
	if p != nil {
		place.Store(p)
	}
	return p
}

// placeOf hashes a plan.
func placeOf(states []tokenbucket.LimitState) uint64 {
	n := uint64(len(states))
	for i := range states {
		s := &states[i]
		n = (n ^ uint64(s.Capacity) ^ uint64(s.Window)) * 0x9e3779b97f4a7c15 // spreads into the upper bits
	}
	return n >> 32
}

func (p *plan) of(states []tokenbucket.LimitState) bool {
	if len(p.limits) != len(states) {
		return false
	}
	for i := range states {
		s, l := &states[i], &p.limits[i]
		if s.Capacity != l.capacity || s.Window != l.window || s.Name != l.name {
			return false
		}
	}
	return true
}

func newPlan(states []tokenbucket.LimitState) *plan {
	p := &plan{limits: make([]limit, len(states))}
	policies := make([]string, len(states))
	for i, s := range states {
		item, err := httpsfv.Marshal(httpsfv.NewItem(s.Name))
		if err != nil {
			return nil
		}
		policy := httpsfv.NewItem(s.Name)
		policy.Params.Add("q", s.Capacity)
		policy.Params.Add("w", max(roundUp(s.Window), 1))
		if policies[i], err = httpsfv.Marshal(policy); err != nil {
			return nil
		}
		p.limits[i] = limit{s.Name, s.Capacity, s.Window, item}
	}
	p.policy = strings.Join(policies, ", ")
	return p
}

// legacy writes the X-RateLimit fields that are older than the draft, for the limit nearest to
// exhaustion. X-RateLimit-Reset is the t of the draft.
func legacy(h http.Header, states []tokenbucket.LimitState) {
	nearest := states[0]
	for _, s := range states[1:] {
		if s.RetryAfter > nearest.RetryAfter || s.RetryAfter == nearest.RetryAfter && s.Remaining < nearest.Remaining {
			nearest = s
		}
	}
	h.Set("X-Ratelimit-Limit", strconv.FormatInt(nearest.Capacity, 10))
	h.Set("X-Ratelimit-Remaining", strconv.FormatInt(nearest.Remaining, 10))
	h.Set("X-Ratelimit-Reset", strconv.FormatInt(roundUp(resetOf(&nearest)), 10))
}

// resetOf returns the time after which a client may expect another state of a limit.
func resetOf(s *tokenbucket.LimitState) time.Duration {
	switch {
	case s.RetryAfter > 0: // Retry-After must not point earlier
		return min(s.Reset, s.RetryAfter)
	case s.Remaining == 0: // a client that obeys must not stop for a whole window
		return min(s.Reset, s.Next)
	}
	return s.Reset
}

// roundUp returns a duration in whole seconds.
func roundUp(d time.Duration) int64 { return int64((d + time.Second - 1) / time.Second) }
