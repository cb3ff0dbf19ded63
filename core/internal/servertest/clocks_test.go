package servertest

import (
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/internal/testing/history"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// The server's clock steps and slews while pushes are unreliable. No two leases are valid at a
// time, unless the clock jumps forward past a lease; and the lock is handed on in any case.
func TestServersClock(t *testing.T) {
	t.Parallel()
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
				events := compete(t, rivals, false, func(granted func() int) {
					for range 3 {
						<-time.After(700 * time.Millisecond)
						c.move(clock)
					}
					wantMoreGrants(t, 2*time.Second, granted)
				})
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
	t.Parallel()
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
			mustUnlock(t, insistOn(t, rivals[0].Locker, "k"))
			from := slices.IndexFunc(cluster.Servers, func(s *redistest.Server) bool { return s.Client().DBSize(t.Context()).Val() > 0 })
			ahead, behind := cluster.Servers[from], cluster.Servers[(from+1)%len(cluster.Servers)]
			clocks[from].Step(time.Second)

			allowed := lateness(t, behind)
			events := compete(t, rivals, c.readers, func(granted func() int) {
				moved := make(chan struct{})
				go func() {
					defer close(moved)
					<-time.After(1500 * time.Millisecond)
					cluster.MoveSlots(ahead, behind)
				}()
				cutOff(rivals, 6*time.Second)
				<-moved
				<-time.After(1500 * time.Millisecond)
				cluster.MoveSlots(behind, ahead)
				wantMoreGrants(t, 3*time.Second, granted)
			})
			died := history.Event{What: history.Killed, Hold: "before"} // from where on gaps count
			for _, wrong := range check(slices.Insert(events, 0, died), 8*time.Second+allowed()) {
				t.Error(wrong)
			}
		})
	}
}

// wantMoreGrants checks that a lock is granted after the last change of its server's clock, and has
// the competition continue for some time.
func wantMoreGrants(t *testing.T, during time.Duration, granted func() int) {
	t.Helper()
	last := granted()
	<-time.After(during)
	eventually(t, "a grant after the last change", func() bool { return granted() > last })
}
