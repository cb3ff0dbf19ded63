package zkstore

import (
	"log/slog"
	"time"
)

// guardAfter is how long a hold lasts before its node is watched. Shorter ones cost no watch.
const guardAfter = 50 * time.Millisecond

// keep sets until when an entry lasts, if nothing extends it. The caller holds mu.
func (s *Store) keep(e *entry, d time.Duration) {
	e.until = time.Now().Add(d)
	if e.stage == holding && !e.guarded {
		d = min(d, guardAfter)
	}
	if e.timer == nil {
		e.timer = time.AfterFunc(d, func() { s.due(e) })
		return
	}
	e.timer.Reset(d)
}

// due is called by the timer of an entry: this process ends its holds itself, and its session ends
// them only if it has died.
func (s *Store) due(e *entry) {
	s.entries.mu.Lock()
	guard, ended := false, false
	switch now := time.Now(); {
	case e.stage != holding && (e.stage != waiting || e.awaiting > 0):
	case s.entries.over(e, now):
		ended = true
	default:
		guard = e.stage == holding && !e.guarded
		e.guarded = e.guarded || guard
		e.timer.Reset(e.until.Sub(now))
	}
	s.entries.mu.Unlock()
	if ended {
		s.sweepSoon()
	}
	if guard {
		s.start(func() { s.guard(e) })
	}
}

// sessionEnded is called by the client when a session has ended. All that was learned under it is
// void: its holds are lost, and awaited requests are queued anew.
func (s *Store) sessionEnded(over *session) {
	var ids []string
	a := &s.entries
	a.mu.Lock()
	for _, k := range a.keys {
		for _, e := range k.entries {
			if e.session != over {
				continue
			}
			switch {
			case e.stage == holding:
				ids = append(ids, e.id)
				a.set(e, gone)
			case e.stage == leaving, e.stage == waiting && e.awaiting == 0:
				a.set(e, gone)
			}
		}
		k.wake()
	}
	a.mu.Unlock()
	s.config.logger.Warn("lockkeeper: the session at zookeeper has ended", slog.Int("holds", len(ids)), slog.Duration("session", over.length))
	s.notify(ids...)
}

// notify reports lost holds, without blocking.
func (s *Store) notify(ids ...string) {
	if len(ids) > 0 {
		s.start(func() {
			for _, id := range ids {
				s.lost.Call(id)
			}
		})
	}
}
