package redisstore

import (
	"testing"
	"time"
)

// Behind some proxies the server counts no receivers of what has been received: such a count says
// nothing of who is there.
func TestReceiversAreCountedOrNot(t *testing.T) {
	sent := func(in *inbox) { in.echoSent, in.unheard = time.Now(), false }
	for name, c := range map[string]struct {
		happens func(in *inbox)
		want    bool
	}{
		"counted":                       {func(in *inbox) { in.published(1); in.echoed() }, false},
		"counted after it came":         {func(in *inbox) { in.echoed(); in.published(1) }, false},
		"not counted":                   {func(in *inbox) { in.published(0); in.echoed() }, true},
		"not counted, after it came":    {func(in *inbox) { in.echoed(); in.published(0) }, true},
		"not there":                     {func(in *inbox) { in.published(0) }, false},
		"not there, and then it was":    {func(in *inbox) { in.published(0); sent(in); in.published(1); in.echoed() }, false},
		"it was there, and then is not": {func(in *inbox) { in.published(1); in.echoed(); sent(in); in.published(0) }, false},
	} {
		in := newInbox("lk")
		sent(in)
		c.happens(in)
		if got := in.uncounted.Load(); got != c.want {
			t.Errorf("%s: uncounted is %v", name, got)
		}
	}
}
