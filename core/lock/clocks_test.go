package lock_test

import (
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/internal/history"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// The server's clock steps and slews while pushes are unreliable. No two leases are valid at a
// time, unless the clock jumps forward past a lease; and the lock is handed on in any case.
func TestServersClock(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for name, c := range map[string]struct {
		move   func(*redistest.Clock)
		beyond bool // a lease
	}{
		"back 5s":    {func(c *redistest.Clock) { c.Step(-5 * time.Second) }, false},
		"back 1h":    {func(c *redistest.Clock) { c.Step(-time.Hour) }, false},
		"8% faster":  {func(c *redistest.Clock) { c.Slew(80) }, false},
		"8% slower":  {func(c *redistest.Clock) { c.Slew(-80) }, false},
		"forward 5s": {func(c *redistest.Clock) { c.Step(5 * time.Second) }, true},
		"forward 1h": {func(c *redistest.Clock) { c.Step(time.Hour) }, true},
	} {
		for mode, opts := range map[string][]lock.Option{"default": nil, "fair": {lock.WithFair()}} {
			t.Run(name+"/"+mode, func(t *testing.T) {
				t.Parallel()
				server, clock := redistest.StartWithClock(t)
				rivals := newRivals(t, 3, server, opts...)
				end := make(chan struct{})
				moved := make(chan time.Time, 1)
				go func() {
					var last time.Time
					defer func() { moved <- last }()
					for range 3 {
						select {
						case <-time.After(700 * time.Millisecond):
							c.move(clock)
							last = time.Now()
						case <-end:
							return
						}
					}
				}()
				events := compete(t, 4*time.Second, rivals, false)
				close(end)
				last := <-moved
				wantGrantsAfter(t, events, last)
				if !c.beyond {
					for _, wrong := range check(events, time.Minute) {
						t.Error(wrong)
					}
				}
			})
		}
	}
}

// A slot moves there and back between masters of a Cluster whose clocks differ by a second, while
// pushes are late. No two leases are valid at a time, and the lock is handed on after each move.
// Processes are cut off only while the slot moves to the later clock, since the other move shortens
// leases, as a step forward does.
//
// The longest gap that the faults explain is 7 s: a lease lasts 1 s longer on the slower clock, a
// grant to a process that is cut off as much longer than its 2 s, and the next process learns of
// its own by a heartbeat within 1 s, whose call may have been cut off and takes 2 s to time out.
// The longest seen was 6.4 s.
func TestClocksOfACluster(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds")
	}
	for name, c := range map[string]struct {
		opts    []lock.Option
		readers bool
	}{
		"default": {nil, false},
		"fair":    {[]lock.Option{lock.WithFair()}, false},
		"readers": {nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cluster, clocks := redistest.StartClusterWithClocks(t)
			var rivals []*rival
			for range 3 {
				client, proxies := cluster.ProxiedClient()
				rivals = append(rivals, newRival(t, client, proxies, late, c.opts...))
			}
			mustUnlock(t, mustLock(t, rivals[0].Locker, "k"))
			from := slices.IndexFunc(cluster.Servers, func(s *redistest.Server) bool { return s.Client().DBSize(t.Context()).Val() > 0 })
			ahead, behind := cluster.Servers[from], cluster.Servers[(from+1)%len(cluster.Servers)]
			clocks[from].Step(time.Second)

			done := make(chan []history.Event)
			go func() { done <- compete(t, 11*time.Second, rivals, c.readers) }()
			back := time.AfterFunc(1500*time.Millisecond, func() { cluster.MoveSlots(ahead, behind) })
			defer back.Stop()
			cutOff(rivals, 6*time.Second)
			<-time.After(1500 * time.Millisecond)
			cluster.MoveSlots(behind, ahead)
			last := time.Now()
			events := <-done
			wantGrantsAfter(t, events, last)
			for _, wrong := range check(events, 8*time.Second) {
				t.Error(wrong)
			}
		})
	}
}

// wantGrantsAfter checks that a lock was granted after the last change of its server's clock.
func wantGrantsAfter(t *testing.T, events []history.Event, last time.Time) {
	t.Helper()
	after := 0
	for _, e := range events {
		if e.What == history.Granted && e.At.After(last) {
			after++
		}
	}
	t.Logf("%d events, %d grants after the last change", len(events), after)
	if after == 0 {
		t.Error("no grant after the last change")
	}
}
