package redisstore_test

import (
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/internal/lease"
	"github.com/lockkeeper/lockkeeper/core/internal/waiting"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// late delays the pushes of grants, and edits them.
func late(by time.Duration, edit func(push string) string) func(string, func(string)) {
	return func(message string, deliver func(string)) {
		if !strings.HasPrefix(message, "lease ") {
			deliver(message)
			return
		}
		time.AfterFunc(by, func() { deliver(edit(message)) })
	}
}

func same(push string) string { return push }

// fresh returns a push whose token is of its receipt.
func fresh(push string) string {
	f := strings.SplitN(push, " ", 8) // "lease", ID, fences, place, span, token, record
	f[6] = strconv.FormatInt(waiting.Elapsed(), 10)
	return strings.Join(f, " ")
}

// A waiter whose grant arrives a second late, and cannot take it up, counts its time from the
// token in the push, and not from the receipt: then it would hold although the next one does.
func TestALateGrantEndsBeforeTheNext(t *testing.T) {
	testpace.Parallel(t)
	for name, c := range map[string]struct {
		edit     func(string) string
		overlaps bool
	}{
		"by its token":   {same, false},
		"by its receipt": {fresh, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			direct := newStore(t, server.Client())
			proxy := redistest.NewProxy(t, server.Addr())
			proxy.Pushes(late(time.Second, c.edit))
			s := newStore(t, dial(t, proxy.Addr(), time.Second))
			defer proxy.Mend()

			holder := acquired(t, direct, lockRequest("k"))
			w := queues(t, s, lockRequest("k"))
			next := queues(t, direct, lockRequest("k"))
			listening(t, server.Client(), 2)
			reply, err := s.AcquireLease(ctx(), w.LeaseRequest) // with a token of now
			if err != nil || reply.Outcome != store.Queued {
				t.Fatalf("again: %+v, %v", reply, err)
			}
			proxy.CutOffCalls()
			released(t, direct, holder, store.Released)
			w.granted(t, 4*time.Second)
			if !w.grant.Untaken {
				t.Errorf("granted %+v, want it untaken", w.grant)
			}
			next.granted(t, 5*time.Second)
			until := lease.ValidUntil(w.grant.Sent, w.grant.TTL)
			t.Logf("began %v before the next, and ended %v after its beginning", next.at.Sub(w.at), until.Sub(next.at))
			if overlaps := until.After(next.at); overlaps != c.overlaps {
				t.Errorf("overlaps: %v", overlaps)
			}
		})
	}
}

// A waiter that has its lease by a heartbeat, before the push arrives, keeps it.
func TestALatePushEndsNoLease(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct := newStore(t, server.Client())
	proxy := redistest.NewProxy(t, server.Addr())
	proxy.Pushes(late(1800*time.Millisecond, same))
	s := newStore(t, dial(t, proxy.Addr(), time.Second))
	holder := acquired(t, direct, lockRequest("k"))
	w := queues(t, s, lockRequest("k"))
	listening(t, server.Client(), 2)
	released(t, direct, holder, store.Released)
	began := time.Now()
	ref := w.granted(t, 5*time.Second)
	if w.grant.Untaken {
		t.Errorf("granted %+v, want it by a heartbeat", w.grant)
	}
	<-time.After(time.Until(began.Add(2200 * time.Millisecond))) // the push has arrived
	wantLease(t, s, ref, true)
	released(t, s, ref, store.Released)
}

// A push that arrives after the release of its lease gives the lock to no caller, and takes it from
// none.
func TestAPushAfterTheRelease(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct := newStore(t, server.Client())
	proxy := redistest.NewProxy(t, server.Addr())
	pushed := make(chan struct{}, 1)
	proxy.Pushes(func(message string, deliver func(string)) {
		deliver(message)
		if strings.HasPrefix(message, "lease ") {
			time.AfterFunc(500*time.Millisecond, func() {
				deliver(message)
				deliver(message)
				pushed <- struct{}{}
			})
		}
	})
	s := newStore(t, dial(t, proxy.Addr(), time.Second))
	holder := acquired(t, direct, lockRequest("k"))
	w := queues(t, s, lockRequest("k"))
	listening(t, server.Client(), 2)
	released(t, direct, holder, store.Released)
	released(t, s, w.granted(t, 5*time.Second), store.Released)
	next := acquired(t, s, lockRequest("k"))
	select {
	case <-pushed:
	case <-time.After(30 * time.Second):
		t.Fatal("no push of the grant")
	}
	must(t, s.Ping(ctx()))
	for range 20 {
		wantLease(t, s, next, true)
	}
	released(t, s, next, store.Released)
	state, err := s.InspectLease(ctx(), w.Name, w.Key)
	if err != nil || len(state.Holders)+state.Waiting > 0 {
		t.Errorf("state %+v, %v", state, err)
	}
}
