package console_test

import (
	"context"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/nethttp/console"
)

// The sums of a chart over the processes of a fleet are those of the load, to the decision. A process
// that ends without a word keeps its last slots for a while, and is then gone.
func TestChartsHaveTheLoad(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	var allowed, denied atomic.Uint64
	var stores []*redisstore.Store
	var load sync.WaitGroup
	for i := range 4 {
		st := redisStore(t, server)
		stores = append(stores, st)
		_, err := presence.Start(st, presence.Service("api"))
		must(t, err)
		l, err := tokenbucket.New(st, "api", tokenbucket.PerSecond(20))
		must(t, err)
		t.Cleanup(func() { _ = l.Close() })
		load.Go(func() {
			for n := range 400 {
				d, err := l.Allow(context.Background(), fmt.Sprint("key", i))
				switch {
				case err != nil:
					t.Error(err)
				case d.Allowed:
					allowed.Add(1)
				default:
					denied.Add(1)
				}
				<-time.After(time.Duration(n%20) * time.Millisecond)
			}
		})
	}
	v := serve(t, redisStore(t, server), console.AllowAnyone())
	type page struct {
		Mechanisms []struct {
			Name      string
			Processes int
			Total     uint64
			Minutes   struct{ Passed, Denied, Failed uint64 } `json:"last_ten_minutes"`
		}
		Processes []struct{ Name string }
	}
	read := func() (p page) {
		v.json("monitor", &p)
		return p
	}
	load.Wait()
	until(t, "the sums are those of the load", func() bool {
		p := read()
		return len(p.Mechanisms) == 1 && p.Mechanisms[0].Processes == 4 && p.Mechanisms[0].Minutes.Passed == allowed.Load() &&
			p.Mechanisms[0].Minutes.Denied == denied.Load() && p.Mechanisms[0].Total == allowed.Load()+denied.Load()
	})
	if denied.Load() == 0 || allowed.Load() == 0 {
		t.Errorf("%d allowed, %d denied", allowed.Load(), denied.Load())
	}
	if n := len(read().Processes); n != 5 {
		t.Errorf("%d processes", n)
	}
	must(t, stores[3].Close()) // it can remove nothing then
	if p := read(); len(p.Processes) != 5 || p.Mechanisms[0].Minutes.Passed != allowed.Load() {
		t.Errorf("just after its end: %+v", p)
	}
	until(t, "the process is gone", func() bool { return len(read().Processes) == 4 })
}
