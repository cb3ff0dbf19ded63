package script

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// Calls reuse the channels of calls that ended in time. The contexts of the earlier calls must not
// change with that.
func TestContextsOfEndedCallsDoNotChange(t *testing.T) {
	n := &Node{owner: new(Client)}
	d := &n.owner.deadlines
	defer d.stop()
	const timeout = time.Second // of all
	inTime := d.context(t.Context(), n, timeout, timeout)
	d.release(inTime)
	late := d.context(t.Context(), n, timeout, timeout)
	<-late.Done()
	d.release(late)
	if late.Err() == nil || inTime.Err() != nil {
		t.Errorf("late: %v, in time: %v", late.Err(), inTime.Err())
	}
	for range 100 {
		c := d.context(t.Context(), n, timeout, timeout)
		select {
		case <-c.Done():
			t.Fatal("a call has ended before it began")
		default:
		}
		if c.Err() != nil {
			t.Fatal(c.Err())
		}
		d.release(c)
	}

	parent, cancel := context.WithCancel(t.Context())
	canceled := d.context(parent, n, timeout, timeout)
	cancel()
	<-canceled.Done()
	if !errors.Is(canceled.Err(), context.Canceled) {
		t.Errorf("got %v", canceled.Err())
	}
	d.release(canceled)
}

// The timeout of the reply begins when the request is written, without the time for a connection.
func TestReplyTimeoutBeginsWithTheRequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		n := &Node{owner: new(Client)}
		d := &n.owner.deadlines
		ended := func(c *callContext) bool {
			synctest.Wait()
			return c.Err() != nil
		}
		unsent := d.context(t.Context(), n, 250*time.Millisecond, 250*time.Millisecond)
		slow := d.context(t.Context(), n, time.Second, 250*time.Millisecond)
		sent := d.context(t.Context(), n, 250*time.Millisecond, 250*time.Millisecond)
		large := d.context(t.Context(), n, 250*time.Millisecond, time.Second)
		time.Sleep(200 * time.Millisecond)
		for _, c := range []*callContext{sent, large} {
			if err := c.sent.write(); err != nil {
				t.Fatal(err)
			}
		}
		time.Sleep(100 * time.Millisecond)
		if !ended(unsent) || ended(slow) || ended(sent) || ended(large) {
			t.Errorf("after 300 ms: %v, %v, %v, %v", unsent.Err(), slow.Err(), sent.Err(), large.Err())
		}
		if err := sent.sent.write(); err != nil { // again, which does not extend the timeout
			t.Fatal(err)
		}
		time.Sleep(160 * time.Millisecond)
		if !ended(sent) || ended(slow) || ended(large) {
			t.Errorf("after 460 ms: %v, %v, %v", slow.Err(), sent.Err(), large.Err())
		}
		time.Sleep(600 * time.Millisecond)
		if !ended(slow) || ended(large) {
			t.Errorf("after 1060 ms: %v, %v", slow.Err(), large.Err())
		}
		time.Sleep(200 * time.Millisecond)
		if !ended(large) {
			t.Error("after 1260 ms a call of 1200 ms has not ended")
		}
		for _, c := range []*callContext{unsent, slow, sent, large} {
			d.release(c)
		}
		d.stop()
	})
}
