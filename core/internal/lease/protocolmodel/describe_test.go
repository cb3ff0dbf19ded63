package protocolmodel

import (
	"fmt"
	"strings"
)

// describe tells a trace, one action a line, with the time at which it happens.
func (m *model) describe(trace []action) string {
	var b strings.Builder
	s := state{faults: m.faults}
	now := 0
	for _, a := range trace {
		if a.verb == tick {
			now++
		} else {
			fmt.Fprintf(&b, "%3d  %s\n", now, m.sentence(&s, a))
		}
		m.do(&s, a)
	}
	fmt.Fprintf(&b, "%3d  => %v", now, s.broken)
	return b.String()
}

func (m *model) sentence(s *state, a action) string {
	switch a.verb {
	case start, end:
		p := m.specs[a.index].process
		what := map[verb]string{start: "starts", end: "releases"}[a.verb]
		if a.verb == end && s.requests[a.index].phase == waiting {
			what = "withdraws"
		}
		return fmt.Sprintf("P%d %s %c", p, what, 'a'+a.index)
	case crash, pause, resume:
		return fmt.Sprintf("P%d %s", a.index, [...]string{"crashes", "pauses", "resumes"}[a.verb-crash])
	case flush, stepForward, stepBack, drift:
		return [...]string{"the store is flushed", "the server's clock steps forward", "the server's clock steps back", "the server's clock drifts"}[a.verb-flush]
	}
	msg := s.messages[a.index]
	text := fmt.Sprintf("the store executes %v", msg)
	if !msg.toStore() {
		text = fmt.Sprintf("P%d gets %v", msg.process, msg)
	}
	if a.fault >= requestLost && a.fault <= requestSlow {
		return fmt.Sprintf("%v is %s", msg, faultNames[a.fault])
	}
	if a.fault != noFault {
		text += "; " + faultNames[a.fault]
	}
	return text
}

var kindNames = [...]string{"", "acquire", "renew", "release", "heartbeat", "push", "granted", "queued", "tombstoned", "renewed", "refused", "held", "missing", "unknown"}

func (m message) String() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s", kindNames[m.kind])
	if m.kind == heartbeat {
		fmt.Fprintf(&b, " of P%d", m.process)
	} else {
		fmt.Fprintf(&b, " %c", 'a'+m.id)
	}
	if m.fence > 0 {
		fmt.Fprintf(&b, ", fence %d", m.fence)
	}
	if m.age > 0 {
		fmt.Fprintf(&b, ", sent %d ago", m.age)
	}
	if m.orphan {
		b.WriteString(", given up")
	}
	return b.String()
}
