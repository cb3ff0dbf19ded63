package election_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/electiontest"
)

// The leader of five is killed, paused, cut off, and resigns, 200 times.
func TestFleet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		shared := memstore.New()
		defer shared.Close()
		electiontest.Test{
			TTL: ttl, Rounds: 200, Handover: 50 * time.Millisecond, Detection: time.Second,
			Start: func() electiontest.Process {
				st := storetest.NewFaulty(shared)
				cut := func() { st.Break(storetest.Any, storetest.Down) }
				return electiontest.Process{
					Store: st, Cut: cut, Die: cut, Close: func() {},
					Pause: func() { st.Break(storetest.Any, storetest.Hung) },
					Mend:  func() { st.Mend(storetest.Any) },
				}
			},
		}.Run(t)
	})
}
