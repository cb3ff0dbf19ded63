package connectmw_test

import (
	"context"
	"errors"
	"net/http"
	"strings"
	"testing"
	"time"

	"connectrpc.com/connect"

	"github.com/lockkeeper/lockkeeper/connectmw/idempotency"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestInvalidCodeIsUnknown(t *testing.T) {
	for _, err := range []error{failure(17, "odd"), failure(4_000_000_000, "odd"), errors.New("odd")} {
		s := service{make: func(context.Context, *things.MakeRequest) (*things.Thing, error) { return nil, err }}
		client := guarded(t, &s)
		for n := range 3 {
			var header http.Header
			_, err := client.Make(keyed(t, "k"), &things.MakeRequest{}, intoHeader(&header))
			if codeOf(err) != connect.CodeUnknown || !strings.HasSuffix(err.Error(), "odd") || replayed(header) != (n > 0) {
				t.Errorf("time %d: %v, header %v", n, err, header)
			}
		}
		s.ran(t, 1)
	}
}

func TestCleanAttemptIsRetried(t *testing.T) {
	var s service
	shedding := around(func(ctx context.Context, _ func(context.Context) error) error {
		attempt, _ := guard.FromContext(ctx)
		ok(t, attempt.MarkClean(ctx))
		return failure(connect.CodeUnavailable, "busy")
	})
	client := serve(t, &s, idempotency.New(newGuard(t, newStore(t)), byUser), shedding)
	for range 2 {
		var header http.Header
		_, err := client.Make(keyed(t, "k"), &things.MakeRequest{}, intoHeader(&header))
		if codeOf(err) != connect.CodeUnavailable || replayed(header) {
			t.Errorf("%v, header %v", err, header)
		}
	}
}

func TestStatusOfAnUnconfirmedAnswer(t *testing.T) {
	for want, opts := range map[string][]policy.RPCIdempotencyOption{"": nil, "unconfirmed": {policy.StatusHeaders()}} {
		var s service
		store := newStore(t)
		client := serve(t, &s, idempotency.New(newGuard(t, store), byUser, opts...))
		store.Break(storetest.SettleOperation, storetest.Down)
		var header http.Header
		thing, err := client.Make(keyed(t, "k"), &things.MakeRequest{}, intoHeader(&header))
		is(t, thing, err, "run 1")
		if got := header.Values("idempotency-status"); len(got) > 1 || (len(got) == 1) != (want != "") || len(got) == 1 && got[0] != want {
			t.Errorf("header %v, want %q", header, want)
		}
		store.Mend(storetest.Any)
	}
}

func TestHandlerEndsAtMaxRun(t *testing.T) {
	s := service{make: func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
		select {
		case <-ctx.Done():
		case <-time.After(patience):
		}
		return &things.Thing{Text: context.Cause(ctx).Error()}, nil
	}}
	client := guarded(t, &s, policy.MaxRun(20*time.Millisecond))
	for range 2 {
		thing, err := client.Make(keyed(t, "k"), &things.MakeRequest{})
		is(t, thing, err, policy.ErrMaxRun.Error())
	}
	s.ran(t, 1)
}
