package redisstore

import (
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// Behind some proxies the server counts no receivers of what has been received: such a count says
// nothing of who is there.
func TestReceiversAreCountedOrNot(t *testing.T) {
	testpace.Parallel(t)
	sent := func(in *inbox) { in.echoSent, in.unreceived = time.Now(), false }
	for name, c := range map[string]struct {
		happens func(in *inbox)
		want    bool
	}{
		"counted":                       {func(in *inbox) { in.recordReceivers(1); in.recordEcho() }, false},
		"counted after it came":         {func(in *inbox) { in.recordEcho(); in.recordReceivers(1) }, false},
		"not counted":                   {func(in *inbox) { in.recordReceivers(0); in.recordEcho() }, true},
		"not counted, after it came":    {func(in *inbox) { in.recordEcho(); in.recordReceivers(0) }, true},
		"not there":                     {func(in *inbox) { in.recordReceivers(0) }, false},
		"not counted, and then it was":  {func(in *inbox) { in.recordReceivers(0); in.recordEcho(); sent(in); in.recordReceivers(1) }, false},
		"not there, and then it was":    {func(in *inbox) { in.recordReceivers(0); sent(in); in.recordReceivers(1); in.recordEcho() }, false},
		"it was there, and then is not": {func(in *inbox) { in.recordReceivers(1); in.recordEcho(); sent(in); in.recordReceivers(0) }, false},
	} {
		in := newInbox("lk")
		sent(in)
		c.happens(in)
		if got := in.uncounted.Load(); got != c.want {
			t.Errorf("%s: uncounted is %v", name, got)
		}
	}
}
