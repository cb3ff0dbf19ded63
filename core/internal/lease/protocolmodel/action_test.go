package protocolmodel

// action is one step of the model.
type action struct {
	verb  verb
	index uint8 // of a request, a process or a message
	fault fault
}

type verb uint8

const (
	start verb = iota
	end
	deliver
	crash
	pause
	resume
	flush
	stepForward
	stepBack
	drift
	tick
)

// fault is what goes wrong with a message, or with the step that it causes.
type fault uint8

const (
	noFault fault = iota
	requestLost
	requestLate // and the sender has given up
	requestSlow // and the sender waits for the reply
	replyLost
	replyLate
	pushLost
	pushLate
	failover // the step's write is lost, its messages are not
)

var faultNames = [...]string{"", "lost", "late, and given up", "late", "its reply is lost", "its reply is late", "its push is lost", "its push is late", "a failover loses what it has written"}

// actions calls visit with everything that can happen next. A message that commutes with whatever
// else can happen comes first: only it, what can go wrong with it, and faults of its process.
func (m *model) actions(s *state, visit func(action)) {
	w := world{m, s}
	if i, ok := w.commuting(); ok {
		m.deliveries(s, i, visit)
		m.faultsOfProcess(s, s.messages[i].process, visit)
		return
	}
	urgent := false
	for i, msg := range s.inFlight() {
		if i > 0 && msg == s.messages[i-1] || !msg.toStore() && s.processes[msg.process].paused {
			continue
		}
		urgent = urgent || msg.late == 0
		m.deliveries(s, uint8(i), visit)
	}
	for id, spec := range m.specs {
		id := uint8(id)
		switch phase := s.requests[id].phase; {
		case !w.isUp(spec.process):
		case phase == unborn && w.mayStart(id):
			visit(action{verb: start, index: id})
		case phase == waiting || phase == holding:
			visit(action{verb: end, index: id})
		}
	}
	for p := range m.subscribed {
		if s.processes[p].paused {
			visit(action{verb: resume, index: uint8(p)})
		}
		m.faultsOfProcess(s, uint8(p), visit)
	}
	if s.faults > 0 {
		visit(action{verb: flush})
		visit(action{verb: stepForward})
		visit(action{verb: stepBack})
		if !s.drifted {
			visit(action{verb: drift})
		}
	}
	if !urgent {
		visit(action{verb: tick})
	}
}

// commuting returns a message that is in time and of which only its own request takes notice, in
// whatever order it comes with others.
func (w world) commuting() (uint8, bool) {
	for i, msg := range w.inFlight() {
		switch msg.kind {
		case renew, queued, tombstoned, renewed, refused, missing, unknown:
			if msg.late == 0 && !msg.orphan && (msg.toStore() || w.isUp(msg.process)) {
				return uint8(i), true
			}
		}
	}
	return 0, false
}

// mayStart reports whether a request is the next of its process. An exclusive lock has one request of
// a process in the store.
func (w world) mayStart(id uint8) bool {
	for _, earlier := range w.requestsOf[w.specs[id].process] {
		if earlier == id {
			break
		}
		if phase := w.requests[earlier].phase; phase == unborn || w.exclusive && phase != over {
			return false
		}
	}
	return true
}

func (m *model) deliveries(s *state, i uint8, visit func(action)) {
	visit(action{deliver, i, noFault})
	if s.faults > 0 && s.messages[i].toStore() {
		m.faultsOf(s, i, visit)
	}
}

func (m *model) faultsOfProcess(s *state, p uint8, visit func(action)) {
	if s.faults > 0 && !s.processes[p].down && m.isBusy(s, p) {
		visit(action{verb: crash, index: p})
		if !s.processes[p].paused {
			visit(action{verb: pause, index: p})
		}
	}
}

// isBusy reports whether a process has a request that is not over.
func (m *model) isBusy(s *state, p uint8) bool {
	for _, id := range m.requestsOf[p] {
		if r := &s.requests[id]; r.phase == waiting || r.phase == holding || r.ending != none {
			return true
		}
	}
	return false
}

// faultsOf calls visit with what can go wrong with a command.
func (m *model) faultsOf(s *state, i uint8, visit func(action)) {
	cmd := s.messages[i]
	if cmd.late == 0 && !cmd.orphan {
		visit(action{deliver, i, requestLost})
		visit(action{deliver, i, requestLate})
		if cmd.kind != release {
			visit(action{deliver, i, requestSlow})
		}
	}
	after := *s
	t := step{world: world{m, &after}}
	t.execute(cmd)
	if !cmd.orphan && (len(t.replies) > 0 || cmd.kind == release) {
		visit(action{deliver, i, replyLost})
		if cmd.kind != release {
			visit(action{deliver, i, replyLate})
		}
	}
	if len(t.pushes) > 0 {
		visit(action{deliver, i, pushLost})
		visit(action{deliver, i, pushLate})
	}
	if after.places != s.places {
		visit(action{deliver, i, failover})
	}
}
