package waiting

import (
	"strconv"
	"strings"
	"time"
)

// pushedGrant is a grant that a push has announced.
type pushedGrant struct {
	record, id  string
	first, last int64
	place       int64
	span        time.Duration
	sent        time.Time // of the last request that the store had of the process: no later than the grant
}

// Subscribed is called when the store begins to listen for pushes, at first or again: earlier ones
// may be lost.
func (p *Process[R]) Subscribed() {
	p.BeatNow()
	p.notices.deliverAll()
}

// NotifyLost implements store.Leases.
func (p *Process[R]) NotifyLost(f func(id string)) (remove func()) { return p.lost.Add(f) }

// Pushed handles a push, and ignores one that is none of these:
//
//	lease ID FENCE LAST PLACE SPAN TOKEN RECORD   the request holds, for SPAN µs; TOKEN is the
//	                                              largest Elapsed that the process had sent before
//	beat RECORD                                   a heartbeat for the record is due at once
//	lost ID …                                     the hold was revoked
//	open …, ended …, due …                        the event of an AwaitPush
func (p *Process[R]) Pushed(push string) {
	what, rest, _ := strings.Cut(push, " ")
	switch what {
	case "lease":
		p.pushedLease(rest)
	case "beat":
		p.beatSoon(rest)
	case "lost":
		id, _, _ := strings.Cut(rest, " ")
		p.lost.Call(id)
	case "open", "ended", "due":
		p.notices.deliver(push, true)
	}
}

func (p *Process[R]) pushedLease(text string) {
	f := strings.SplitN(text, " ", 7)
	if len(f) != 7 {
		return
	}
	var numbers [5]int64
	for i := range numbers {
		var err error
		if numbers[i], err = strconv.ParseInt(f[1+i], 10, 64); err != nil {
			return
		}
	}
	g := &pushedGrant{record: f[6], id: f[0], first: numbers[0], last: numbers[1], place: numbers[2]}
	g.span = time.Duration(numbers[3]) * time.Microsecond
	g.sent = time.Now().Add(-time.Duration(Elapsed()-numbers[4]) * time.Microsecond)
	if p.push(g) {
		return
	}
	// The request has no waiter, or the ID holds another lease.
	p.store.Start(func() { p.store.Release(g.record, g.id, g.first) })
}
