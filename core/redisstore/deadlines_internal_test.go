package redisstore

import (
	"context"
	"errors"
	"testing"
	"time"
)

// A channel serves for one call after the other as long as it is not closed. Calls that have ended have
// nothing to do with what becomes of it.
func TestTheContextsOfCallsThatEndedStayAsTheyWere(t *testing.T) {
	var d deadlines
	defer d.stop()
	const timeout = time.Second // they all have as long
	inTime := d.context(t.Context(), timeout)
	d.giveBack(inTime)
	late := d.context(t.Context(), timeout)
	<-late.Done()
	d.giveBack(late)
	if late.Err() == nil || inTime.Err() != nil {
		t.Errorf("late: %v, in time: %v", late.Err(), inTime.Err())
	}
	for range 100 {
		c := d.context(t.Context(), timeout)
		select {
		case <-c.Done():
			t.Fatal("a call has ended before it began")
		default:
		}
		if c.Err() != nil {
			t.Fatal(c.Err())
		}
		d.giveBack(c)
	}

	parent, cancel := context.WithCancel(t.Context())
	left := d.context(parent, timeout)
	cancel()
	<-left.Done()
	if !errors.Is(left.Err(), context.Canceled) {
		t.Errorf("got %v", left.Err())
	}
	d.giveBack(left)
}
