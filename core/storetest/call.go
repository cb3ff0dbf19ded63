package storetest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// call is a call in flight, which is cancelled when its test ends.
type call struct {
	t      *testing.T
	method string
	state  func() any // for the texts of failures
	cancel context.CancelFunc
	done   chan struct{}
	grant  store.Grant
	err    error
}

// begin makes a call in another goroutine. With faked time, the call is blocked when begin returns;
// otherwise it may be.
func begin(
	t *testing.T, advance func(time.Duration), method string, state func() any, do func(context.Context) (store.Grant, error),
) *call {
	ctx, cancel := context.WithCancel(background())
	c := &call{t: t, method: method, state: state, cancel: cancel, done: make(chan struct{})}
	go func() {
		defer close(c.done)
		c.grant, c.err = do(ctx)
	}()
	t.Cleanup(func() {
		cancel()
		<-c.done
	})
	advance(2 * time.Millisecond)
	return c
}

// ended waits for the end of the call.
func (c *call) ended() {
	c.t.Helper()
	select {
	case <-c.done:
	case <-time.After(eventually):
		c.t.Fatalf("%s did not return within %v; the state: %+v", c.method, eventually, c.state())
	}
}

// fails waits for the end of the call with an error, which is nil for its success.
func (c *call) fails(want error) {
	c.t.Helper()
	c.ended()
	if !errors.Is(c.err, want) {
		c.t.Fatalf("%s: %+v, %v, want %v", c.method, c.grant, c.err, want)
	}
}

// waits checks that the call has not returned.
func (c *call) waits() {
	c.t.Helper()
	select {
	case <-c.done:
		c.t.Fatalf("%s has not waited: %+v, %v", c.method, c.grant, c.err)
	default:
	}
}
