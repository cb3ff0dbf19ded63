package rpctest

import (
	"context"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
)

// A method and a handler say how long an answer is kept.
func howLongAnswersAreKept(t *rig) {
	for name, c := range map[string]struct {
		opts []policy.RPCIdempotencyOption
		keep time.Duration
		want time.Duration
	}{
		"by the guard":   {want: 24 * time.Hour},
		"by the method":  {opts: []policy.RPCIdempotencyOption{policy.Retention(time.Hour)}, want: time.Hour},
		"by the handler": {opts: []policy.RPCIdempotencyOption{policy.Retention(time.Hour)}, keep: 48 * time.Hour, want: 48 * time.Hour},
	} {
		t.Run(name, func(t *rig) {
			g := NewGuard(t, newStore(t))
			var id string
			s := Service{make: func(ctx context.Context, _ *Request) (*Thing, error) {
				attempt, _ := guard.FromContext(ctx)
				if id = attempt.OperationID(); c.keep > 0 {
					attempt.Keep(c.keep)
				}
				return &Thing{Text: "made"}, nil
			}}
			client := serve(t, &s, t.Idempotency(g, byUser(t), c.opts...))
			for range 2 {
				thing, err := client.Make(keyed(t, "k"), &Request{})
				is(t, thing, err, "made")
			}
			s.ran(t, 1)
			record, err := g.InspectID(t.Context(), id)
			if err != nil || record.Expires > c.want || record.Expires < c.want-time.Minute {
				t.Errorf("it is kept for %v, %v; want %v", record.Expires, err, c.want)
			}
		})
	}
}

// An operator answers for an attempt that died.
func anOperatorsAnswerIsReplayed(t *rig) {
	g := NewGuard(t, newStore(t))
	var id string
	s := Service{make: func(ctx context.Context, _ *Request) (*Thing, error) {
		attempt, _ := guard.FromContext(ctx)
		id = attempt.OperationID()
		return nil, attempt.CompleteUnknown(ctx)
	}}
	client := serve(t, &s, t.Idempotency(g, byUser(t)))
	_, _ = client.Make(keyed(t, "k"), &Request{})
	record := must(g.InspectID(t.Context(), id))
	answer := must(t.Answer(&Thing{Text: "found"}))
	ok(t, g.Resolve(t.Context(), record, guard.Happened(answer), "on-call", "receipt found"))
	for range 2 {
		var header http.Header
		thing, err := client.Make(keyed(t, "k"), &Request{}, intoHeader(&header))
		is(t, thing, err, "found")
		if !replayed(header) {
			t.Errorf("the header is %v", header)
		}
	}
	s.ran(t, 1)
}
