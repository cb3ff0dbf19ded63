package rpctest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync/atomic"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/middleware/setting"
)

// wrapping is an interceptor that wraps every error, and records the original one.
func wrapping(t *rig, last *atomic.Pointer[error]) Interceptor {
	wrap := func(err error) error {
		if last.Store(&err); err == nil {
			return nil
		}
		return t.Prefixed("the shop: ", err)
	}
	return t.Around(func(ctx context.Context, handler func(context.Context) error) error { return wrap(handler(ctx)) })
}

// An interceptor that wraps refusals reveals no error of the store or of a key function to the
// client, and finds both itself.
func wrappedRefusalHidesItsCause(t *rig) {
	const inside = "fails on command" // by the store
	builds := map[string]func(t *rig, st store.Store, by Key) Interceptor{
		"fenced": func(_ *rig, _ store.Store, by Key) Interceptor {
			m := newMarks()
			m.fail(fmt.Errorf("%w: the fence %s", store.ErrUnavailable, inside))
			return t.Fenced(m, by)
		},
	}
	for name, build := range policies {
		builds[name] = func(t *rig, st store.Store, by Key) Interceptor {
			return build(t, st, by)
		}
	}
	for name, build := range builds {
		for cause, c := range map[string]struct {
			by     Key
			text   string
			behind error
			reason policy.Reason
		}{
			"store down":         {t.Global(), inside, store.ErrUnavailable, policy.ReducedCapacity},
			"key function fails": {t.KeyOf(func(Call) (string, error) { return "", errKey }), secret, errKey, policy.InternalError},
		} {
			t.Run(name+", "+cause, func(t *rig) {
				st := newStore(t)
				st.Break(storetest.Any, storetest.Down)
				var s Service
				var returned atomic.Pointer[error]
				client := serve(t, &s, wrapping(t, &returned), build(t, st, c.by))
				ctx := with(t, "idempotency-key", "k", fenceMetadata, "7")
				check := func(err error) {
					t.Helper()
					got := denial(t, err, c.reason)
					if !strings.HasPrefix(got.Message, "the shop: ") {
						t.Fatalf("the refusal was not wrapped: %v", got)
					}
					if strings.Contains(got.All, c.text) {
						t.Errorf("the client gets %v", got.All)
					}
					last := *returned.Load()
					d, ok := t.DenialOf(last)
					if !ok || d.Reason != c.reason || d.Err == nil || !strings.Contains(d.Err.Error(), c.text) || !errors.Is(last, c.behind) {
						t.Errorf("the interceptor finds %+v, %v, in %v", d, ok, last)
					}
				}
				_, err := client.Make(ctx, &Request{ID: "1"})
				check(err)
				stream := must(client.Watch(ctx, &Request{ID: "1"}))
				if _, err = stream.Recv(); errors.Is(err, io.EOF) {
					t.Fatal("the stream was served")
				}
				if name != "idempotency" { // which refuses every stream
					check(err)
				}
				s.ran(t, 0)
			})
		}
	}
}

// OnDeny hooks get the application's problem types, and other refusals a link to their pages.
func problemTypes(t *rig) {
	const base = "https://shop.example/problems/"
	own := policy.ProblemTypes(base)
	failing := t.KeyOf(func(Call) (string, error) { return "", errKey })
	builds := maps.Clone(policies)
	builds["fenced"] = func(_ *rig, _ store.Store, by Key, opts ...setting.RPCOption) Interceptor {
		var all []policy.FencedOption
		for _, o := range opts {
			all = append(all, o)
		}
		return t.Fenced(newMarks(), by, all...)
	}
	for name, build := range builds {
		t.Run(name, func(t *rig) {
			refusal := func(by Key, broken bool, opts ...setting.RPCOption) error {
				st := newStore(t)
				if broken {
					st.Break(storetest.Any, storetest.Down)
				}
				_, err := serve(t, new(Service), build(t, st, by, opts...)).Make(
					with(t, "idempotency-key", "k", fenceMetadata, "7"), &Request{ID: "1"})
				if err == nil {
					t.Fatal("the call was served")
				}
				return err
			}
			deny := func(_ Call, d policy.Denial) error { return failure(t, Internal, d.Type()) }
			if got := t.DetailsOf(refusal(failing, false, t.OnDeny(deny), own)).Message; got != base+"internal-error" {
				t.Errorf("the type is %s", got)
			}
			if help := t.DetailsOf(refusal(failing, false)).Links; help != nil {
				t.Errorf("without a base the help is %v", help)
			}
			check := func(err error, reason policy.Reason) {
				t.Helper()
				denies(t, err, reason)
				links := t.DetailsOf(err).Links
				want := policy.Denial{Reason: reason, TypeBase: base}
				if len(links) != 1 || links[0] != (Link{base + string(reason), want.Title()}) {
					t.Errorf("the help for %s is %v", reason, links)
				}
			}
			check(refusal(failing, false, own), policy.InternalError)
			if name != "fenced" { // which has no store
				check(refusal(t.Global(), true, own), policy.ReducedCapacity)
			}
		})
	}
}
