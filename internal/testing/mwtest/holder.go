package mwtest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// holding is a policy whose requests hold something of their key while their handlers run: one at a
// time.
type holding struct {
	name                    string
	busy                    policy.Reason
	status                  string // the header field of an answer that ran without
	acquire, await, release storetest.Op
	lost                    error // the cause with which the context of a hold that is lost ends
	unreleased              error // the reported error if the store does not confirm a release
	open                    func(t *rig, st store.Store) holder
}

// holder is such a policy in one process.
type holder struct {
	// wire returns the middleware, whose requests pass without the store if it is open.
	wire func(open bool, hooks Hooks, opts ...policy.WaitOption) Middleware
	// try holds the key "1", and returns how to give it back.
	try func(ctx context.Context) (release func(context.Context) error, err error)
	// found returns how to give back what the handler of a request with this context holds; nil if
	// it holds nothing.
	found func(ctx context.Context) (release func(context.Context) error)
	// lose takes away what the handler of a request with this context holds.
	lose  func(ctx context.Context) error
	close func() error
}

var holdings = []holding{
	{
		name: "exclusive", busy: policy.Locked, status: "Lock-Status",
		acquire: storetest.AcquireLease, await: storetest.AwaitLease, release: storetest.ReleaseLeases,
		lost: lock.ErrLost, unreleased: store.ErrUnavailable,
		open: openLocker,
	},
	{
		name: "concurrency", busy: policy.TooManyAtOnce, status: "Concurrency-Status",
		acquire: storetest.AcquireLease, await: storetest.AwaitLease, release: storetest.ReleaseLeases,
		lost: semaphore.ErrLost, // released in the background
		open: openSemaphore,
	},
}

func openLocker(t *rig, st store.Store) holder {
	l := newLocker(t, st)
	found := func(ctx context.Context) func(context.Context) error {
		if lease, ok := lock.FromContext(ctx); ok {
			return lease.Unlock
		}
		return nil
	}
	return holder{
		wire: func(open bool, hooks Hooks, opts ...policy.WaitOption) Middleware {
			m := Exclusive{Locker: l, By: byID, Hooks: hooks}
			if open {
				m.Options = append(m.Options, policy.RunUnprotected())
			}
			for _, o := range opts {
				m.Options = append(m.Options, o)
			}
			return m
		},
		try: func(ctx context.Context) (func(context.Context) error, error) {
			lease, err := l.TryLock(ctx, "1")
			if err != nil {
				return nil, err
			}
			return lease.Unlock, nil
		},
		found: found,
		lose: func(ctx context.Context) error {
			lease, ok := lock.FromContext(ctx)
			if !ok {
				return errors.New("no lease")
			}
			_, err := l.ForceUnlock(context.WithoutCancel(ctx), "1", lease.Fence().Number)
			return err
		},
		close: l.Close,
	}
}

func openSemaphore(t *rig, st store.Store) holder {
	s := newSemaphore(t, st, 1)
	return holder{
		wire: func(open bool, hooks Hooks, opts ...policy.WaitOption) Middleware {
			m := Concurrency{Semaphore: s, By: byID, Hooks: hooks}
			if open {
				m.Options = append(m.Options, policy.FailOpen())
			}
			for _, o := range opts {
				m.Options = append(m.Options, o)
			}
			return m
		},
		try: func(ctx context.Context) (func(context.Context) error, error) {
			permit, err := s.TryAcquire(ctx, "1")
			if err != nil {
				return nil, err
			}
			return permit.Release, nil
		},
		found: func(ctx context.Context) func(context.Context) error {
			if permit, ok := semaphore.FromContext(ctx); ok {
				return permit.Release
			}
			return nil
		},
		lose: func(ctx context.Context) error {
			permit, ok := semaphore.FromContext(ctx)
			if !ok {
				return errors.New("no permit")
			}
			_, err := s.ForceRelease(context.WithoutCancel(ctx), "1", permit.Fence().Number)
			return err
		},
		close: s.Close,
	}
}

// local is a server in the process of its clients, so that time in it can be faked.
type local struct {
	t *rig
	http.Handler
	runs *counter
}

// serveLocal returns a server whose handler takes the time in X-Take, and then calls handle, if
// that is not nil.
func serveLocal(t *rig, handle http.HandlerFunc, middleware ...Middleware) local {
	runs := new(counter)
	return local{t, t.framework.Serve(func(w http.ResponseWriter, r *http.Request) {
		runs.handle(httptest.NewRecorder(), r)
		if took, err := time.ParseDuration(r.Header.Get("X-Take")); err == nil {
			<-time.After(took)
		}
		if handle != nil {
			handle(w, r)
		}
		_, _ = io.WriteString(w, "done")
	}, middleware...), runs}
}

// send sends a request whose context is ctx.
func (l local) send(ctx context.Context, id string, header ...string) answer {
	r := httptest.NewRequestWithContext(ctx, http.MethodPost, Path+id, http.NoBody)
	for i := 0; i < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	l.ServeHTTP(w, r)
	return answer{l.t, w.Code, w.Header(), w.Body.String()}
}

// later sends a request for the key "1" in the background, and returns when its goroutine blocks.
func (l local) later(ctx context.Context, header ...string) <-chan answer {
	answers := make(chan answer, 1)
	go func() { answers <- l.send(ctx, "1", header...) }()
	synctest.Wait()
	return answers
}

// reports records the errors that a middleware reports.
type reports struct {
	mu   sync.Mutex
	errs []error
}

func (r *reports) hooks() Hooks {
	return Hooks{Report: func(err error) {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.errs = append(r.errs, err)
	}}
}

// are checks that one error was reported, or none if it is nil.
func (r *reports) are(t *rig, want error) {
	t.Helper()
	r.mu.Lock()
	defer r.mu.Unlock()
	if want == nil && len(r.errs) > 0 || want != nil && (len(r.errs) != 1 || !errors.Is(r.errs[0], want)) {
		t.Errorf("reported %v, want %v", r.errs, want)
	}
}

// isFree checks that the key is not held.
func (h holder) isFree(t *rig) {
	t.Helper()
	synctest.Wait() // permits are released in the background
	release, err := h.try(t.Context())
	if err != nil {
		t.Errorf("the key is not free: %v", err)
		return
	}
	if err := release(t.Context()); err != nil {
		t.Error(err)
	}
}

// holds acquires the key "1", and returns its release.
func (h holder) holds(t *rig) func(context.Context) error {
	t.Helper()
	release, err := h.try(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return release
}
