package zkstore

import (
	"sync"
	"testing"

	"github.com/go-zookeeper/zk"
)

// The client ends the calls in flight when it is closed, and may still write their results: Close
// awaits their replies first. The race detector finds a call that it does not await.
func TestCloseDuringCalls(t *testing.T) {
	t.Parallel()
	for range 100 {
		s := newTestStore(t)
		var wg sync.WaitGroup
		for range 16 {
			wg.Go(func() {
				for s.createNode(t.Context(), s.root, nil, zk.FlagContainer) == nil {
				}
			})
		}
		must(t, s.Ping(t.Context()))
		must(t, s.Close())
		wg.Wait()
	}
}
