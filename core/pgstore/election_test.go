package pgstore

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/electiontest"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// The leader of five is killed, paused, cut off, and resigns.
func TestElection(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	electiontest.Test{
		TTL: testpace.Scale(2 * time.Second), Rounds: 10,
		Handover: testpace.Scale(50 * time.Millisecond), Detection: testpace.Scale(time.Second),
		Start: func() electiontest.Process {
			proxy := postgrestest.NewProxy(t, postgrestest.Shared(t).Addr())
			s := openTestStore(t, postgrestest.Through(dsn, proxy.Addr()), WithTimeout(brisk))
			cut := func() { proxy.BlackHole(); proxy.CutAll() }
			return electiontest.Process{
				Store: s, Pause: proxy.BlackHole, Cut: cut, Die: cut, Mend: proxy.Mend,
				Close: func() { _ = s.Close() },
			}
		},
	}.Run(t)
}
