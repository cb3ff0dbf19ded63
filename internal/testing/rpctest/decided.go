package rpctest

import (
	"context"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func invalidCodeIsUnknown(t *rig) {
	for _, err := range t.Traits().Unknown {
		s := Service{make: func(context.Context, *Request) (*Thing, error) { return nil, err }}
		client := guarded(t, &s)
		for n := range 3 {
			var header http.Header
			_, err := client.Make(keyed(t, "k"), &Request{}, intoHeader(&header))
			if t.CodeOf(err) != Unknown || t.DetailsOf(err).Message != "odd" || replayed(header) != (n > 0) {
				t.Errorf("time %d: %v, header %v", n, err, header)
			}
		}
		s.ran(t, 1)
	}
}

func cleanAttemptIsRetried(t *rig) {
	var s Service
	shedding := t.Around(func(ctx context.Context, _ func(context.Context) error) error {
		attempt, _ := guard.FromContext(ctx)
		ok(t, attempt.MarkClean(ctx))
		return t.Failure(Unavailable, "busy", Details{RetryAfter: new(time.Duration)})
	})
	client := serve(t, &s, t.Idempotency(NewGuard(t, newStore(t)), byUser(t)), shedding)
	for range 2 {
		var header http.Header
		_, err := client.Make(keyed(t, "k"), &Request{}, intoHeader(&header))
		if t.CodeOf(err) != Unavailable || replayed(header) {
			t.Errorf("%v, header %v", err, header)
		}
	}
}

func statusOfAnUnconfirmedAnswer(t *rig) {
	for want, opts := range map[string][]policy.RPCIdempotencyOption{"": nil, "unconfirmed": {policy.StatusHeaders()}} {
		var s Service
		store := newStore(t)
		client := serve(t, &s, t.Idempotency(NewGuard(t, store), byUser(t), opts...))
		store.Break(storetest.SettleOperation, storetest.Down)
		var header http.Header
		thing, err := client.Make(keyed(t, "k"), &Request{}, intoHeader(&header))
		is(t, thing, err, "run 1")
		if got := header.Values("idempotency-status"); len(got) > 1 || (len(got) == 1) != (want != "") || len(got) == 1 && got[0] != want {
			t.Errorf("header %v, want %q", header, want)
		}
		store.Mend(storetest.Any)
	}
}

func handlerEndsAtMaxRun(t *rig) {
	s := Service{make: func(ctx context.Context, _ *Request) (*Thing, error) {
		select {
		case <-ctx.Done():
		case <-time.After(patience):
		}
		return &Thing{Text: context.Cause(ctx).Error()}, nil
	}}
	client := guarded(t, &s, policy.MaxRun(20*time.Millisecond))
	for range 2 {
		thing, err := client.Make(keyed(t, "k"), &Request{})
		is(t, thing, err, policy.ErrMaxRun.Error())
	}
	s.ran(t, 1)
}
