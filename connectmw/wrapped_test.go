package connectmw_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"strings"
	"sync/atomic"
	"testing"

	"connectrpc.com/connect"
	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/fenced"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// wrapping is an interceptor that wraps every error, and records the original one.
func wrapping(last *atomic.Pointer[error]) connect.Interceptor {
	wrap := func(err error) error {
		if last.Store(&err); err == nil {
			return nil
		}
		wrapped := connect.NewError(codeOf(err), fmt.Errorf("the shop: %w", err))
		var inner *connect.Error
		if errors.As(err, &inner) {
			for _, d := range inner.Details() {
				wrapped.AddDetail(d)
			}
		}
		return wrapped
	}
	return around(func(ctx context.Context, handler func(context.Context) error) error { return wrap(handler(ctx)) })
}

// An interceptor that wraps refusals reveals no error of the store or of a key function to the
// client, and finds both itself.
func TestWrappedRefusalHidesItsCause(t *testing.T) {
	const inside = "fails on command" // by the store
	builds := map[string]func(t *testing.T, st store.Store, by connectmw.KeyFunc) connect.Interceptor{
		"fenced": func(_ *testing.T, _ store.Store, by connectmw.KeyFunc) connect.Interceptor {
			m := newMarks()
			m.fail(fmt.Errorf("%w: the fence %s", store.ErrUnavailable, inside))
			return fenced.New(m, by)
		},
	}
	for name, build := range policies {
		builds[name] = func(t *testing.T, st store.Store, by connectmw.KeyFunc) connect.Interceptor {
			return build(t, st, by)
		}
	}
	for name, build := range builds {
		for cause, c := range map[string]struct {
			by     connectmw.KeyFunc
			text   string
			behind error
			reason policy.Reason
		}{
			"store down":         {connectmw.Global(), inside, store.ErrUnavailable, policy.ReducedCapacity},
			"key function fails": {func(*connectmw.Call) (string, error) { return "", errKey }, secret, errKey, policy.InternalError},
		} {
			t.Run(name+", "+cause, func(t *testing.T) {
				st := newStore(t)
				st.Break(storetest.Any, storetest.Down)
				var s service
				var returned atomic.Pointer[error]
				client := serve(t, &s, wrapping(&returned), build(t, st, c.by))
				ctx := with(t, "idempotency-key", "k", fenceMetadata, "7")
				check := func(err error) {
					t.Helper()
					got := denial(t, err, c.reason)
					if !strings.HasPrefix(got.Message(), "the shop: ") {
						t.Fatalf("the refusal was not wrapped: %v", got)
					}
					if strings.Contains(all(got), c.text) {
						t.Errorf("the client gets %v", all(got))
					}
					last := *returned.Load()
					d, ok := connectmw.DenialOf(last)
					if !ok || d.Reason != c.reason || d.Err == nil || !strings.Contains(d.Err.Error(), c.text) || !errors.Is(last, c.behind) {
						t.Errorf("the interceptor finds %+v, %v, in %v", d, ok, last)
					}
				}
				_, err := client.Make(ctx, &things.MakeRequest{Id: "1"})
				check(err)
				stream := must(client.Watch(ctx, &things.MakeRequest{Id: "1"}))
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
func TestProblemTypes(t *testing.T) {
	const base = "https://shop.example/problems/"
	own := policy.ProblemTypes(base)
	failing := func(*connectmw.Call) (string, error) { return "", errKey }
	builds := maps.Clone(policies)
	builds["fenced"] = func(_ *testing.T, _ store.Store, by connectmw.KeyFunc, opts ...connectmw.Option) connect.Interceptor {
		var all []policy.FencedOption
		for _, o := range opts {
			all = append(all, o)
		}
		return fenced.New(newMarks(), by, all...)
	}
	for name, build := range builds {
		t.Run(name, func(t *testing.T) {
			refusal := func(by connectmw.KeyFunc, broken bool, opts ...connectmw.Option) error {
				st := newStore(t)
				if broken {
					st.Break(storetest.Any, storetest.Down)
				}
				_, err := serve(t, new(service), build(t, st, by, opts...)).Make(
					with(t, "idempotency-key", "k", fenceMetadata, "7"), &things.MakeRequest{Id: "1"})
				if err == nil {
					t.Fatal("the call was served")
				}
				return err
			}
			deny := func(_ *connectmw.Call, d policy.Denial) error { return failure(connect.CodeInternal, d.Type()) }
			if got := refusal(failing, false, connectmw.OnDeny(deny), own).Error(); !strings.HasSuffix(got, ": "+base+"internal-error") {
				t.Errorf("the type is %s", got)
			}
			if help := detail[errdetails.Help](refusal(failing, false)); help != nil {
				t.Errorf("without a base the help is %v", help)
			}
			check := func(err error, reason policy.Reason) {
				t.Helper()
				denies(t, err, reason)
				links := detail[errdetails.Help](err).GetLinks()
				want := policy.Denial{Reason: reason, TypeBase: base}
				if len(links) != 1 || links[0].GetUrl() != base+string(reason) || links[0].GetDescription() != want.Title() {
					t.Errorf("the help for %s is %v", reason, links)
				}
			}
			check(refusal(failing, false, own), policy.InternalError)
			if name != "fenced" { // which has no store
				check(refusal(connectmw.Global(), true, own), policy.ReducedCapacity)
			}
		})
	}
}
