package lock_test

import (
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/history"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// The server's clock steps and slews while pushes are unreliable. No two leases are valid at a time,
// unless the clock jumps forward past a lease; and the lock is handed on in any case.
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
				var lockers []*lock.Locker
				for range 3 {
					proxy := redistest.NewProxy(t, server.Addr())
					proxy.Pushes(unreliable)
					client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: proxy.Addr()})
					st := must(redisstore.New(client, redisstore.WithTimeout(2*time.Second)))
					t.Cleanup(func() { _ = st.Close(); _ = client.Close() })
					lockers = append(lockers, newLocker(t, leasesOf(t, st), append(opts, lock.WithTTL(3*time.Second))...))
				}
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
				events := compete(t, 4*time.Second, lockers)
				close(end)
				last := <-moved
				after := 0
				for _, e := range events {
					if e.What == history.Granted && e.At.After(last) {
						after++
					}
				}
				t.Logf("%d events, %d grants after the last step", len(events), after)
				if after == 0 {
					t.Error("no grant after the last step")
				}
				if !c.beyond {
					for _, wrong := range check(events, time.Minute) {
						t.Error(wrong)
					}
				}
			})
		}
	}
}
