package rpctest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/core/fence/memfence"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// fenceMetadata is the name of a fence in metadata.
const fenceMetadata = "lock-fence"

// marks is a fence.Checker that fails on command.
type marks struct {
	*memfence.Fence
	mu  sync.Mutex
	err error
}

func newMarks() *marks { return &marks{Fence: must(memfence.New())} }

// fail has every check end with an error; nil ends that.
func (m *marks) fail(err error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.err = err
}

// Check implements fence.Checker.
func (m *marks) Check(ctx context.Context, key string, t fence.Token) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return m.err
	}
	return m.Fence.Check(ctx, key, t)
}

// answerToken is a service whose handlers answer with their token.
func answerToken() *Service {
	text := func(ctx context.Context) string {
		if token, ok := fence.FromContext(ctx); ok {
			return token.String()
		}
		return "none"
	}
	return &Service{
		make: func(ctx context.Context, r *Request) (*Thing, error) {
			return &Thing{ID: r.ID, Text: text(ctx)}, nil
		},
		watch: func(r *Request, stream ServerStream) error {
			return stream.Send(&Thing{ID: r.ID, Text: text(stream.Context())})
		},
	}
}

// kinds are the kinds of calls: each returns the text of the first answer.
var kinds = map[string]func(ctx context.Context, client Client, id string, opts ...Option) (string, error){
	"unary": func(ctx context.Context, client Client, id string, opts ...Option) (string, error) {
		thing, err := client.Make(ctx, &Request{ID: id}, opts...)
		return thing.text(), err
	},
	"stream": func(ctx context.Context, client Client, id string, opts ...Option) (string, error) {
		ctx, cancel := context.WithCancel(ctx)
		defer cancel()
		stream, err := client.Watch(ctx, &Request{ID: id}, opts...)
		if err != nil {
			return "", err
		}
		thing, err := stream.Recv()
		if err == nil {
			if _, end := stream.Recv(); !errors.Is(end, io.EOF) { // by then the options have been served
				err = fmt.Errorf("after the first answer: %w", end)
			}
		}
		return thing.text(), err
	},
}

// fencing is a server behind the interceptors, for calls of one kind.
type fencing struct {
	t       *rig
	service *Service
	client  Client
	kind    string
}

func serveFenced(t *rig, kind string, c fence.Checker, by Key, opts ...policy.FencedOption) fencing {
	t.Helper()
	s := answerToken()
	return fencing{t, s, serve(t, s, t.Fenced(c, by, opts...)), kind}
}

// call makes a call for a resource with each of these fences.
func (f fencing) call(id string, tokens ...string) (string, error) {
	var pairs []string
	for _, token := range tokens {
		pairs = append(pairs, fenceMetadata, token)
	}
	return kinds[f.kind](with(f.t, pairs...), f.client, id)
}

// passes makes a call with a fence, which its handler must find.
func (f fencing) passes(id, token string) {
	f.t.Helper()
	if got, err := f.call(id, token); got != token || err != nil {
		f.t.Fatalf("%q for %s: the handler finds %q, %v", token, id, got, err)
	}
}

// denied makes a call for the resource 1 that must be refused.
func (f fencing) denied(reason policy.Reason, tokens ...string) (text string) {
	f.t.Helper()
	before := f.service.runs.Load()
	_, err := f.call("1", tokens...)
	text = denial(f.t, err, reason).Message
	f.service.ran(f.t, before)
	return text
}

func fenced(t *rig) {
	for kind := range kinds {
		for name, row := range map[string]func(t *rig, kind string){
			"an older fence is refused":          olderFence,
			"requests without a fence":           withoutAFence,
			"fences that cannot be read":         unreadable,
			"keys":                               fencedKeys,
			"the checker's store is unavailable": fencedOutage,
			"without the store, unprotected":     fencedUnprotected,
			"the checker fails":                  checkerFails,
			"skipped calls, and OnDeny":          fencedHooks,
		} {
			t.Run(kind+"/"+name, func(t *rig) { row(t, kind) })
		}
	}
}

// reported returns an error that was reported to the server.
func reported(t *rig, errs <-chan error) error {
	t.Helper()
	select {
	case err := <-errs:
		return err
	case <-time.After(patience):
		t.Fatal("nothing was reported")
		return nil
	}
}

func olderFence(t *rig, kind string) {
	s := serveFenced(t, kind, newMarks(), t.ByField("id"))
	s.passes("1", "33")
	s.passes("1", "33")
	s.passes("1", "40;shared")
	s.passes("1", "34")
	s.denied(policy.StaleFence, "33")
	s.denied(policy.StaleFence, "33;shared")
	s.passes("2", "33") // another resource
	s.passes("1", "9223372036854775807")
	s.denied(policy.StaleFence, "9223372036854775806")
}

func withoutAFence(t *rig, kind string) {
	s := serveFenced(t, kind, newMarks(), t.ByField("id"))
	if text := s.denied(policy.FenceMissing); !strings.Contains(text, "Lock-Fence") {
		t.Errorf("it does not name the field to send: %v", text)
	}
	s = serveFenced(t, kind, newMarks(), t.ByField("id"), policy.AllowUnfenced())
	s.passes("1", "50")
	if got, err := s.call("1"); got != "none" || err != nil {
		t.Errorf("the handler finds %q, %v", got, err)
	}
	s.denied(policy.StaleFence, "49")
	s.denied(policy.KeyMalformed, "")
}

func unreadable(t *rig, kind string) {
	s := serveFenced(t, kind, newMarks(), t.ByField("id"))
	for _, text := range []string{"", "0", "-1", "+1", "01", "1, 2", "x", "1;Shared", "9223372036854775808"} {
		if told := s.denied(policy.KeyMalformed, text); !strings.Contains(told, "Lock-Fence") {
			t.Errorf("%q: %v", text, told)
		}
	}
	s.denied(policy.KeyMalformed, "50", "50")
	s.passes("1", "1")
}

func fencedKeys(t *rig, kind string) {
	s := serveFenced(t, kind, newMarks(), t.ByMetadata("x-key"))
	s.denied(policy.KeyMissing, "1")
	for key, reason := range map[string]policy.Reason{"": policy.KeyMissing, strings.Repeat("k", 1025): policy.KeyMalformed, strings.Repeat("k", 1024): ""} {
		_, err := kinds[kind](with(t, "x-key", key, fenceMetadata, "1"), s.client, "1")
		if reason != "" {
			denies(t, err, reason)
		} else if err != nil {
			t.Error(err)
		}
	}
	s.service.ran(t, 1)

	c := newMarks()
	c.fail(fence.ErrInvalidKey)
	serveFenced(t, kind, c, t.ByField("id")).denied(policy.KeyMalformed, "1")

	errs := make(chan error, 1)
	s = serveFenced(t, kind, newMarks(), t.KeyOf(func(Call) (string, error) { return "", errKey }),
		t.OnError(func(_ Call, err error) { errs <- err }))
	s.denied(policy.InternalError, "1")
	if err := reported(t, errs); !errors.Is(err, errKey) {
		t.Errorf("reported %v", err)
	}
}

func fencedOutage(t *rig, kind string) {
	c, errs := newMarks(), make(chan error, 1)
	s := serveFenced(t, kind, c, t.ByField("id"), t.OnError(func(_ Call, err error) { errs <- err }))
	for _, err := range []error{store.ErrUnavailable, store.ErrFull, store.ErrUnconfirmed} {
		c.fail(err)
		s.denied(policy.ReducedCapacity, "1")
		if got := reported(t, errs); !errors.Is(got, err) {
			t.Errorf("reported %v, want %v", got, err)
		}
	}
	s.denied(policy.FenceMissing) // whatever the store's state
	s.denied(policy.KeyMalformed, "x")
	c.fail(nil)
	s.passes("1", "1")
	if len(errs) > 0 {
		t.Errorf("a denial is an error: %v", <-errs)
	}
}

func fencedUnprotected(t *rig, kind string) {
	c, errs := newMarks(), make(chan error, 1)
	s := serveFenced(t, kind, c, t.ByField("id"), policy.RunUnprotected(), t.OnError(func(_ Call, err error) { errs <- err }))
	call := func(token string) []string {
		t.Helper()
		var header http.Header
		if got, err := kinds[kind](with(t, fenceMetadata, token), s.client, "1", intoHeader(&header)); got != token || err != nil {
			t.Fatalf("%s: the handler finds %q, %v", token, got, err)
		}
		return header.Values("fence-status")
	}
	if got := call("50"); len(got) > 0 {
		t.Errorf("fence-status is %q", got)
	}
	c.fail(store.ErrUnavailable)
	if got := call("40"); !slices.Equal(got, []string{"bypassed"}) {
		t.Errorf("fence-status is %q", got)
	}
	if err := reported(t, errs); !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("reported %v", err)
	}
	s.denied(policy.FenceMissing)
	c.fail(nil)
	s.denied(policy.StaleFence, "40")
}

func checkerFails(t *rig, kind string) {
	c := newMarks()
	s := serveFenced(t, kind, c, t.ByField("id"), policy.RunUnprotected())
	c.fail(errors.New(secret))
	s.denied(policy.InternalError, "1")
}

func fencedHooks(t *rig, kind string) {
	s := serveFenced(t, kind, newMarks(), t.ByField("id"),
		t.Unless(func(call Call) bool { return call.Context().Value(UserKey{}) == "admin" }),
		t.OnDeny(func(call Call, d policy.Denial) error {
			return failure(t, NotFound, call.Method()+" "+string(d.Reason))
		}))
	if got, err := kinds[kind](with(t, "x-user", "admin"), s.client, "1"); got != "none" || err != nil {
		t.Errorf("an admin: the handler finds %q, %v", got, err)
	}
	_, err := s.call("1")
	told := t.DetailsOf(err).Message
	if t.CodeOf(err) != NotFound || !strings.HasPrefix(told, "/lockkeeper.test.Things/") || !strings.HasSuffix(told, " fence-missing") {
		t.Errorf("%v", err)
	}
	s.service.ran(t, 1)
}

// A key function has no request of a client stream.
func fencedClientStreams(t *rig) {
	var s Service
	errs := make(chan error, 1)
	client := serve(t, &s, t.Fenced(newMarks(), t.ByField("id"), t.OnError(func(_ Call, err error) { errs <- err })))
	_, err := SendMessages(with(t, fenceMetadata, "1"), t, client, 1)
	denies(t, err, policy.InternalError)
	if err := reported(t, errs); !strings.Contains(err.Error(), "Talk") {
		t.Errorf("reported %v", err)
	}
	s.ran(t, 0)

	client = serve(t, &s, t.Fenced(newMarks(), t.ByMetadata("x-key")))
	if n, _ := SendMessages(with(t, fenceMetadata, "2", "x-key", "k"), t, client, 3); n != 3 {
		t.Errorf("%d answers to three messages", n)
	}
	_, err = SendMessages(with(t, fenceMetadata, "1", "x-key", "k"), t, client, 1)
	denies(t, err, policy.StaleFence)
}

// A holder that has lost its lock gets replays of earlier calls, and a refused call runs once the
// lock is held again.
func guardKeepsNoRefusalOfAFence(t *rig) {
	var s Service
	client := serve(t, &s,
		t.Idempotency(NewGuard(t, newStore(t)), t.ScopeBy(t.ByContext(UserKey{}))), t.Fenced(newMarks(), t.ByField("id")))
	send := func(key, token string) (*Thing, error) {
		return client.Make(with(t, "x-user", "u", "idempotency-key", key, fenceMetadata, token), &Request{ID: "1"})
	}
	thing, err := send("a", "50")
	is(t, thing, err, "run 1")
	_, err = send("b", "40")
	denies(t, err, policy.StaleFence)
	thing, err = send("b", "50")
	is(t, thing, err, "run 2")
	thing, err = send("a", "40")
	is(t, thing, err, "run 1")
}

// A call is sent with the fence of the lease that its context derives from, and with no other.
func clientsSendTheFenceOfTheirLease(t *rig) {
	locker := NewLocker(t, newStore(t))
	outer := must(locker.Lock(t.Context(), "1"))
	inner := must(locker.Lock(outer.Context(), "2"))
	reader := must(locker.RLock(t.Context(), "3"))
	over := must(locker.Lock(t.Context(), "4"))
	late := context.WithoutCancel(over.Context())
	ok(t, over.Unlock(t.Context()))
	t.Cleanup(func() {
		for _, lease := range []*lock.Lease{inner, outer, reader} {
			_ = lease.Unlock(context.Background())
		}
	})
	s := answerToken()
	texts := make(chan string, 1)
	spy := func(ctx context.Context) {
		texts <- strings.Join(t.Incoming(ctx, fenceMetadata), "|") + " " + strings.Join(t.Incoming(ctx, "x-other"), "|")
	}
	url := t.Listen(t.T, s, t.Around(func(ctx context.Context, handler func(context.Context) error) error {
		spy(ctx)
		return handler(ctx)
	}))
	client := t.Dial(t.T, url, t.FencedClient())
	for kind, call := range kinds {
		for name, c := range map[string]struct {
			ctx  context.Context
			want string
		}{
			"a lease":                {outer.Context(), outer.Fence().String()},
			"the innermost of two":   {inner.Context(), inner.Fence().String()},
			"a shared lease":         {reader.Context(), reader.Fence().String()},
			"an expired lease":       {late, over.Fence().String()},
			"no lease":               {t.Context(), ""},
			"a fence that is set":    {t.Sending(outer.Context(), "Lock-Fence", "7"), "7"},
			"a fence set to nothing": {t.Sending(outer.Context(), fenceMetadata, ""), ""},
			"set, and no lease":      {with(t, fenceMetadata, "7"), "7"},
		} {
			if _, err := call(t.Sending(c.ctx, "x-other", "stays"), client, "1"); err != nil {
				t.Errorf("%s, %s: %v", kind, name, err)
				continue
			}
			if got := <-texts; got != c.want+" stays" {
				t.Errorf("%s, %s: sent %q, want %q", kind, name, got, c.want+" stays")
			}
		}
	}
}
