package servertest

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/electiontest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// The leader of five is killed, paused, cut off, and resigns.
func TestElection(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	electiontest.Test{
		TTL: testpace.Scale(2 * time.Second), Rounds: 10,
		Handover: testpace.Scale(50 * time.Millisecond), Detection: testpace.Scale(time.Second),
		Start: func() electiontest.Process {
			proxy := redistest.NewProxy(t, server.Addr())
			client := connect(t, proxy.Addr())
			st := newStore(t, client, redisstore.WithTimeout(faultTimeout))
			return electiontest.Process{
				Store: st, Pause: proxy.BlackHole, Cut: func() { proxy.BlackHole(); proxy.CutAll() }, Mend: proxy.Mend,
				Die:   func() { _ = client.Close() }, // so that the store releases nothing
				Close: func() { _ = st.Close() },
			}
		},
	}.Run(t)
}
