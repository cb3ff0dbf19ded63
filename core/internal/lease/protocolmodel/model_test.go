// Package protocolmodel explores the protocol of leases, breadth first: every state that a few
// processes, a store and the messages between them can reach. It shares nothing with the
// implementation. A change of the protocol is tried here first.
//
// Requests for a key stand in one queue: smaller reserve first, then by place number. A request
// holds as soon as
//   - its weight, and the weights of all requests that hold or stand before it, fit into its
//     capacity less its reserve, and
//   - every request before it with the same reserve holds.
//
// A process sends acquire. The store grants the request, or queues it and replies its number.
// Acquire is repeated under the same ID:
//   - to ask for the state of the request;
//   - if a reply failed;
//   - if a push left too little time;
//   - if the store reports that the place is missing.
//
// It then names its number, and keeps its place.
//
// Every step of the store ends holds that have run out, and grants to the waiters that fit. It
// grants for G, and pushes ID, fence, number and token. A token is the process's own time at the
// sending of its last acquire or heartbeat. The grant is younger, so the holder's deadline is the
// token's time, plus G, less a margin for drift. With less than G/4 left the process does not
// begin, but asks. A grant is taken up by its first renewal, which gives it the TTL. All deadlines
// count from the sending of the request that was answered; of two answers the one to the later
// request counts.
//
// A hold is an ID and a fence. Renewals name both. The release at the end of a request ends its
// place or its hold, of any fence. A stray grant, of another fence than the request holds, is
// released by its fence, and the request continues. A hold that has run out in the process, or was
// refused a renewal, is over and released at once. A process counts, per ID, the commands that can
// create as sent and as answered. Unless these counts are equal, the final release leaves a
// tombstone, which refuses late ones. The release is repeated until it is answered.
//
// A process with waiters sends heartbeats that list them. The reply names
//   - waiters that hold;
//   - waiters without a place, which the process requests again;
//   - places that the process did not list, which it withdraws if their requests are over.
//
// A heartbeat itself creates and removes nothing.
//
// A process is alive while it is subscribed, or else for three heartbeats. If a grant ran out
// untaken, it must have sent an acquire or a heartbeat since that grant was made. A waiter whose
// turn comes and whose process is not alive is passed over: all places of its process are removed.
// After a grant that ran out the next one to this process is twice as long, at most the TTL.
//
// The model leaves out blocks of fences, downgrades, more than 64 grants in a step, shutdown, and
// hand-on in the process. It assumes that a fence and a number are larger than all before, also
// after lost state (they follow the server's clock), and that a tombstone outlives every late
// message.
//
// Time is in ticks. It passes only when nothing is due and every message that is not late has been
// delivered, so within a tick all orders are tried. Faults are few per run: requests, replies and
// pushes lost or late, crash, pause, flush, a failover that loses the last write, steps of the
// server's clock, and drift as far as the margin. After lost state a hold may outlive the store's
// record of it: it counts as valid only after the next answer about it.
package protocolmodel

import (
	"flag"
	"testing"
)

// model says what is explored.
type model struct {
	specs      []spec // of the requests
	subscribed []bool // whether the store knows from its subscription that a process is alive
	faults     uint8  // how many may happen
	change     change

	// Set by prepare.
	exclusive  bool // no two requests can hold together
	requestsOf [maxProcesses][]uint8
	mirrors    [][]uint8 // how alike processes can change places
}

// spec is what a request asks for.
type spec struct {
	process                   uint8
	weight, capacity, reserve int
	confirmed                 bool // does not begin on a push
}

// change is a change of the protocol.
type change uint8

const (
	asSpecified         change = iota
	countFromReceipt           // the deadline of a pushed grant counts from the push's receipt, not the token
	noTombstones               // a release leaves no tombstone
	holdsByIDAlone             // renewals and releases ignore the fence
	heartbeatsCreate           // a heartbeat queues the places that are missing
	noMargin                   // deadlines leave no margin for drift
	heartbeatsRemove           // a heartbeat removes the places that it does not list
	finalReleaseByFence        // the release at the end of a request ends nothing but the hold that it names
)

// prepare returns the model with the fields that follow from the others.
func (m model) prepare() *model {
	m.exclusive = true
	for id, s := range m.specs {
		m.requestsOf[s.process] = append(m.requestsOf[s.process], uint8(id))
		m.exclusive = m.exclusive && s.weight == s.capacity
	}
	for _, to := range [][]uint8{{1, 0}, {0, 2, 1}, {1, 0, 2}, {1, 2, 0}, {2, 0, 1}, {2, 1, 0}} {
		if len(to) == len(m.subscribed) && m.isMirror(to) {
			m.mirrors = append(m.mirrors, to)
		}
	}
	return &m
}

// isMirror reports whether every process p is like process to[p].
func (m *model) isMirror(to []uint8) bool {
	for p, q := range to {
		of, like := m.requestsOf[p], m.requestsOf[q]
		if m.subscribed[p] != m.subscribed[q] || len(of) != len(like) {
			return false
		}
		for i := range of {
			a, b := m.specs[of[i]], m.specs[like[i]]
			if a.process = b.process; a != b {
				return false
			}
		}
	}
	return true
}

var thorough = flag.Bool("thorough", false, "explore the largest models too")

// size is how much there is to explore. Models that are large take seconds, and are left out with -short.
type size uint8

const (
	small size = iota
	large
	largest
)

func (s size) skip(t *testing.T) {
	switch {
	case s == large && testing.Short():
		t.Skip("takes many seconds")
	case s == largest && !*thorough:
		t.Skip("without -thorough")
	}
}

const (
	capacity = 2
	limit    = 40_000_000 // states
)

func exclusive(p uint8) spec { return spec{process: p, weight: capacity, capacity: capacity} }
func shared(p uint8) spec    { return spec{process: p, weight: 1, capacity: capacity} }
func lowTier(p uint8) spec   { return spec{process: p, weight: 1, capacity: capacity, reserve: 1} }

func confirmed(p uint8) spec {
	s := exclusive(p)
	s.confirmed = true
	return s
}

var (
	both  = []bool{true, true}
	one   = []bool{true, false}
	none2 = []bool{false, false}
	three = []bool{true, true, true}
)

func TestProtocolHasNoViolation(t *testing.T) {
	for _, test := range []struct {
		name  string
		model model
		size  size
	}{
		{name: "two locks, one fault", model: model{specs: []spec{exclusive(0), exclusive(1)}, subscribed: one, faults: 1}},
		{name: "without subscriptions", model: model{specs: []spec{exclusive(0), exclusive(1)}, subscribed: none2, faults: 1}},
		{name: "confirmed", model: model{specs: []spec{confirmed(0), exclusive(1)}, subscribed: both, faults: 1}},
		{name: "four locks", model: model{specs: []spec{exclusive(0), exclusive(0), exclusive(1), exclusive(1)}, subscribed: both}},
		{name: "readers and a writer", model: model{specs: []spec{shared(0), exclusive(0), shared(1)}, subscribed: both}},
		{name: "semaphore", model: model{specs: []spec{shared(0), shared(0), shared(1)}, subscribed: one}},
		{name: "tiers", model: model{specs: []spec{shared(0), lowTier(0), lowTier(1)}, subscribed: both}},
		{name: "two locks, two faults", model: model{specs: []spec{exclusive(0), exclusive(1)}, subscribed: both, faults: 2}, size: largest},
		{name: "three processes, one fault", model: model{specs: []spec{exclusive(0), exclusive(1), exclusive(2)}, subscribed: three, faults: 1}, size: large},
		{name: "three locks, one fault", model: model{specs: []spec{exclusive(0), exclusive(0), exclusive(1)}, subscribed: both, faults: 1}, size: largest},
		{name: "semaphore, one fault", model: model{specs: []spec{shared(0), shared(0), shared(1)}, subscribed: both, faults: 1}, size: largest},
		{name: "without subscriptions, two faults", model: model{specs: []spec{exclusive(0), exclusive(1)}, subscribed: none2, faults: 2}, size: largest},
		{name: "tiers, one fault", model: model{specs: []spec{shared(0), lowTier(0), lowTier(1)}, subscribed: both, faults: 1}, size: largest},
		{name: "confirmed, two faults", model: model{specs: []spec{confirmed(0), confirmed(1)}, subscribed: both, faults: 2}, size: largest},
		{name: "readers and a writer, one fault", model: model{specs: []spec{shared(0), exclusive(0), shared(1)}, subscribed: both, faults: 1}, size: largest},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.size.skip(t)
			m := test.model.prepare()
			found := m.explore(limit)
			t.Logf("%d states, %d steps deep", found.states, found.deepest)
			if found.violation != noViolation {
				t.Errorf("%v:\n%s", found.violation, m.describe(found.trace))
			}
		})
	}
}

func TestChangesAreViolations(t *testing.T) {
	two := []spec{exclusive(0), exclusive(1)}
	threes := []spec{exclusive(0), exclusive(1), exclusive(2)}
	for _, test := range []struct {
		name  string
		model model
		size  size
	}{
		{"deadline from the receipt of the push", model{specs: threes, subscribed: three, faults: 1, change: countFromReceipt}, large},
		{"no tombstones", model{specs: two, subscribed: both, faults: 1, change: noTombstones}, small},
		{"holds named by ID alone", model{specs: two, subscribed: both, faults: 1, change: holdsByIDAlone}, small},
		{"heartbeats that create", model{specs: two, subscribed: both, faults: 1, change: heartbeatsCreate}, small},
		{"no margin", model{specs: two, subscribed: both, faults: 2, change: noMargin}, large},
		{"heartbeats that remove", model{specs: []spec{exclusive(0), exclusive(0), exclusive(1)}, subscribed: both, faults: 1, change: heartbeatsRemove}, large},
		{"final release by fence", model{specs: two, subscribed: both, faults: 1, change: finalReleaseByFence}, small},
	} {
		t.Run(test.name, func(t *testing.T) {
			test.size.skip(t)
			m := test.model.prepare()
			found := m.explore(limit)
			if found.violation == noViolation {
				t.Fatalf("no violation in %d states", found.states)
			}
			t.Logf("%v, after %d states:\n%s", found.violation, found.states, m.describe(found.trace))
		})
	}
}
