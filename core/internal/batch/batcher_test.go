package batch

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// weight is a request with this much work.
type weight struct {
	Queued
	n int
}

func (w *weight) Work() int { return w.n }

// server is one that works.
type server struct{}

func (server) Start(call func()) bool       { go call(); return true }
func (server) Refuses(Urgency) error        { return nil }
func (server) Late(why error, _ bool) error { return why }
func (server) Missed()                      {}
func (server) Batched(int)                  {}

// A request that has been queued for too long is sent by one more call: later if the work in flight
// keeps the server busy, which one more call would not change.
func TestOneMoreCall(t *testing.T) {
	for name, test := range map[string]struct {
		inFlight []int
		limit    time.Duration
		after    time.Duration
	}{
		"a distant server":                   {[]int{1, 1}, 0, patience + 2*slowWork},
		"a busy server":                      {[]int{100, 28}, 0, patience + 128*slowWork},
		"a busy server, and a long limit":    {[]int{100, 28}, time.Second, patience + 128*slowWork},
		"a busy server, and a short limit":   {[]int{100, 28}, 8 * time.Millisecond, 2 * time.Millisecond},
		"a busy server, and a minimal limit": {[]int{100, 28}, 2 * time.Millisecond, patience},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				calls, release := 0, make(chan struct{})
				b := New(Config[*weight]{Server: server{}, Few: len(test.inFlight), Most: len(test.inFlight) + 1, MaxWork: 128, Limit: test.limit})
				b.Send = func(context.Context, []*weight) bool {
					b.mu.Lock()
					calls++
					b.mu.Unlock()
					<-release
					return true
				}
				state := func() (sent, working int) {
					synctest.Wait()
					b.mu.Lock()
					defer b.mu.Unlock()
					return calls, b.working
				}
				add := func(n int) *weight {
					w := &weight{Queued{since: time.Now(), ended: make(chan struct{}, 1)}, n}
					if !b.add(w) {
						t.Fatal("the queue is full")
					}
					return w
				}
				var all []*weight
				for _, n := range test.inFlight {
					all = append(all, add(n))
				}
				all = append(all, add(1))
				time.Sleep(test.after - 1)
				if n, _ := state(); n != len(test.inFlight) {
					t.Errorf("%d calls are in flight before %v", n, test.after)
				}
				time.Sleep(time.Nanosecond)
				if n, _ := state(); n != len(test.inFlight)+1 {
					t.Errorf("%d calls are in flight after %v", n, test.after)
				}
				close(release)
				for _, w := range all {
					if <-w.ended; w.err != nil {
						t.Error(w.err)
					}
				}
				if _, working := state(); working != 0 || b.inFlight != 0 {
					t.Errorf("in the end %d calls with %d work", b.inFlight, working)
				}
			})
		})
	}
}

// A request that is not sent in time fails at its limit, while the only call is in flight.
func TestARequestFailsAtItsLimit(t *testing.T) {
	for _, limit := range []time.Duration{patience / 2, patience, 8 * time.Millisecond, 250 * time.Millisecond} {
		synctest.Test(t, func(t *testing.T) {
			release := make(chan struct{})
			b := New(Config[*weight]{Server: server{}, Few: 1, Most: 1, MaxWork: 128, Limit: limit})
			b.Send = func(context.Context, []*weight) bool { <-release; return true }
			first := make(chan error)
			go func() { first <- b.Do(t.Context(), &weight{n: 1}, Ordinary) }()
			synctest.Wait()
			for _, ctx := range []context.Context{t.Context(), context.Background()} {
				began := time.Now()
				if err := b.Do(ctx, &weight{n: 1}, Ordinary); !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != limit {
					t.Errorf("%v after %v, where the limit is %v", err, time.Since(began), limit)
				}
			}
			close(release)
			if err := <-first; err != nil {
				t.Error(err)
			}
		})
	}
}
