package protocolmodel

import "hash/maphash"

const (
	maxRequests  = 4
	maxProcesses = 3
	maxMessages  = 12
)

// ticks is a duration, or what remains of one; half a second, say.
type ticks = int8

const (
	ttl     ticks = 6 // of a hold that is taken up
	grant   ticks = 4 // G, of a hold that is not
	margin  ticks = 1 // for the drift between the clocks
	renewal ticks = 2 // between renewals
	beat    ticks = 2 // between heartbeats
	alive   ticks = 3 * beat
	latest  ticks = 5 // of a message that is late
)

// state is everything: what the processes know, what the store has, and the messages between them.
// It has no clock. Every time in it is what remains or what has passed, so states that differ only
// in the date are one, and there is a finite number of them.
type state struct {
	requests  [maxRequests]request
	processes [maxProcesses]process
	places    [maxRequests]place
	entries   [maxProcesses]entry
	messages  [maxMessages]message // sorted; those in use come first
	newest    uint8                // the largest fence of a hold that has begun in a process
	faults    uint8                // how many may still happen
	drifted   bool                 // the margin is used up
	idle      ticks                // how long a process has waited although there was no holder
	broken    violation
}

type phase uint8

const (
	unborn phase = iota
	waiting
	holding
	over // released, withdrawn or lost
)

// request is what a process knows of one of its requests. Its ID is its index.
type request struct {
	phase  phase
	place  uint8 // its number in the queue, if known
	fence  uint8 // of the hold
	left   ticks // until the deadline of the hold
	asked  ticks // since the request (or the token) that this deadline is counted from
	renew  ticks // until the next renewal
	open   uint8 // commands sent that can create, less those answered
	ask    bool  // an acquire is due
	ending ending

	lost bool // a fault of the store made the deadline too late, and no answer has come since

	// For the invariants.
	closed bool  // the store has executed the release or the withdrawal
	exempt bool  // the store has lost state since the request was over
	ghost  ticks // how long the store has held for it since it was over
}

// ending is how far the final release of a request is.
type ending uint8

const (
	none ending = iota
	due
	sent
)

type process struct {
	down, paused bool
	beat         ticks // until the next heartbeat
}

// place is what the store has under an ID: nothing, a place in the queue, or a hold.
type place struct {
	phase     phase // unborn for nothing, waiting, or holding
	number    uint8
	fence     uint8
	left      ticks // until the hold expires
	span      ticks // what left was at first: no step of the clock makes it longer
	untaken   bool  // granted by the store, and not yet renewed
	seen      uint8 // processes that have been heard since such a grant was made
	tombstone bool
}

// entry is what the store has of a process.
type entry struct {
	known      bool
	token      ticks // since the process had sent its largest token
	alive      ticks // until it counts as dead, if it is not subscribed
	subscribed bool
	suspect    bool // not heard since a grant was made that ran out
	doubled    bool // a grant of this process ran out
}

type kind uint8

const (
	noMessage kind = iota

	// From a process to the store.
	acquire // also the one that asks
	renew
	release // or withdrawal, without a fence
	heartbeat

	// From the store to a process.
	push
	granted    // reply of acquire
	queued     // reply of acquire
	tombstoned // reply of acquire
	renewed    // reply of renew
	refused    // reply of renew
	held       // reply of heartbeat, as are the next two
	missing
	unknown
)

type message struct {
	kind    kind
	process uint8
	id      uint8
	fence   uint8
	number  uint8 // of the place
	list    uint8 // heartbeat: the requests that wait, as a bit set
	age     ticks // since the request of which it is part was sent, or since the push's token
	left    ticks // of the hold, when the store wrote this
	late    ticks // for so long at most; 0: it is delivered before any time passes
	orphan  bool  // the sender has given up, and takes no reply
	final   bool  // release: the request is over
	tomb    bool  // release: leave a tombstone
	untaken bool  // held: the hold is untaken
	lost    bool  // a fault of the store made left too large
}

func (m *message) toStore() bool { return m.kind <= heartbeat }

func (m *message) order() (o uint64) {
	for _, v := range [...]uint8{uint8(m.kind), m.process, m.id, m.fence, m.number, m.list, uint8(m.age), uint8(m.left), uint8(m.late)} {
		o = o<<4 | uint64(v)
	}
	for _, v := range [...]bool{m.orphan, m.final, m.tomb, m.untaken, m.lost} {
		o <<= 1
		if v {
			o |= 1
		}
	}
	return o
}

func (s *state) send(m message) {
	if s.messages[maxMessages-1].kind != noMessage {
		panic("protocolmodel: too many messages")
	}
	copy(s.messages[1:], s.messages[:])
	s.messages[0] = m
}

// remove removes a message.
func (s *state) remove(i int) message {
	m := s.messages[i]
	copy(s.messages[i:], s.messages[i+1:])
	s.messages[maxMessages-1] = message{}
	return m
}

// inFlight returns the messages.
func (s *state) inFlight() []message {
	n := 0
	for n < maxMessages && s.messages[n].kind != noMessage {
		n++
	}
	return s.messages[:n]
}

// fences and numbers call f with every fence, and every place number, that can still be compared.
func (s *state) fences(f func(*uint8)) {
	f(&s.newest)
	for i := range s.requests {
		f(&s.requests[i].fence)
		f(&s.places[i].fence)
	}
	for i := range s.inFlight() {
		f(&s.messages[i].fence)
	}
}

func (s *state) numbers(f func(*uint8)) {
	for i := range s.requests {
		f(&s.requests[i].place)
		f(&s.places[i].number)
	}
	for i := range s.inFlight() {
		f(&s.messages[i].number)
	}
}

// following returns a number that is larger than those that each visits.
func following(each func(func(*uint8))) uint8 {
	var largest uint8
	each(func(v *uint8) { largest = max(largest, *v) })
	return largest + 1
}

// normalize makes states equal that differ only in the values of fences and place numbers, whose
// order alone counts, or in the order of the messages.
func (s *state) normalize() {
	for _, each := range []func(func(*uint8)){s.fences, s.numbers} {
		var rank [64]uint8
		each(func(v *uint8) { rank[*v] = 1 })
		n := uint8(0)
		for v := 1; v < len(rank); v++ {
			n += rank[v]
			rank[v] = n
		}
		rank[0] = 0
		each(func(v *uint8) { *v = rank[*v] })
	}
	s.sortMessages()
}

func (s *state) sortMessages() {
	m := s.inFlight()
	for i := 1; i < len(m); i++ {
		for j := i; j > 0 && m[j].order() < m[j-1].order(); j-- {
			m[j], m[j-1] = m[j-1], m[j]
		}
	}
}

var seed = maphash.MakeSeed()

// hash returns the hash of the state; a state and its mirror images, in which alike processes have
// changed places, have one hash.
func (m *model) hash(s *state) uint64 {
	h := maphash.Comparable(seed, *s)
	for _, to := range m.mirrors {
		image := m.mirror(s, to)
		h = min(h, maphash.Comparable(seed, image))
	}
	return h
}

// mirror returns the state with process p renamed to to[p], and its requests likewise.
func (m *model) mirror(s *state, to []uint8) state {
	image := *s
	rename := make([]uint8, 0, maxRequests)
	nth := [maxProcesses]int{}
	for _, spec := range m.specs {
		rename = append(rename, m.requestsOf[to[spec.process]][nth[spec.process]])
		nth[spec.process]++
	}
	for i, j := range rename {
		image.requests[j], image.places[j] = s.requests[i], s.places[i]
		image.places[j].seen = renameBits(s.places[i].seen, to)
	}
	for p, q := range to {
		image.processes[q], image.entries[q] = s.processes[p], s.entries[p]
	}
	for i := range s.inFlight() {
		msg := &image.messages[i]
		msg.process = to[msg.process]
		if msg.kind != heartbeat {
			msg.id = rename[msg.id]
		}
		msg.list = renameBits(msg.list, rename)
	}
	image.sortMessages()
	return image
}

func renameBits(set uint8, to []uint8) (renamed uint8) {
	for i, j := range to {
		renamed |= set >> i & 1 << j
	}
	return renamed
}
