package waiting

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/hooks"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// A push of a grant begins a hold, is answered with a release if it has no waiter, and has the request
// sent again if the grant has almost run out.
func TestAPushOfAGrant(t *testing.T) {
	released, sent := make(chan string, 1), make(chan store.LeaseRequest, 1)
	var shutdown hooks.Shutdown
	p := New(Store[record]{
		Hooks: &shutdown, Life: t.Context(), Listen: func() {}, Broken: func() bool { return false },
		Start: func(f func()) bool { go f(); return true },
		Beat:  func([]*Key[record]) {}, // the server is slow
		Acquire: func(_ context.Context, req store.LeaseRequest, _ record) (Reply, error) {
			sent <- req
			return Reply{LeaseReply: store.LeaseReply{Outcome: store.Queued, Grant: store.Grant{Place: 7}}}, nil
		},
		Release: func(record, id string, fence int64) { released <- fmt.Sprint(record, id, fence) },
	})
	for _, odd := range []string{"", "lease", "lease w 1 1 7 2000000 0", "lease w 1 1 x 2000000 0 r", "lost", "beat", "other w"} {
		p.Pushed(odd)
	}
	push := func(fence int, ago time.Duration) {
		p.Pushed(fmt.Sprintf("lease w %d %d 7 2000000 %d a record", fence, fence+9, Elapsed()-ago.Microseconds()))
	}
	push(1, 0)
	if got := <-released; got != "a recordw1" {
		t.Errorf("released %q", got)
	}
	req := store.LeaseRequest{ID: "w", Weight: 1, Capacity: 1, Queue: true, TTL: time.Minute}
	if reply, err := p.Acquire(t.Context(), req, "a record"); err != nil || reply.Outcome != store.Queued {
		t.Fatal(reply, err)
	}
	<-sent
	push(2, 1900*time.Millisecond)
	within, cancel := context.WithCancelCause(t.Context())
	ended := errors.New("ended")
	go func() {
		if again := <-sent; again.Place != 7 {
			t.Errorf("sent again with place %d", again.Place)
		}
		cancel(ended)
	}()
	if grant, err := p.Await(within, req, "a record"); !errors.Is(err, ended) {
		t.Errorf("got %+v, %v", grant, err)
	}
	const ago = 100 * time.Millisecond // of two seconds, within which a busy machine takes it
	push(3, ago)
	grant, err := p.Await(t.Context(), req, "a record")
	if err != nil || grant.Fence != 3 || grant.LastFence != 12 || grant.Place != 7 || !grant.Untaken || time.Since(grant.Sent) < ago {
		t.Errorf("got %+v, %v", grant, err)
	}
}
