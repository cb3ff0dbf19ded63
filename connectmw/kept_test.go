package connectmw_test

import (
	"context"
	"net/http"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/connectmw/idempotency"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
)

// A method and a handler say how long an answer is kept.
func TestHowLongAnswersAreKept(t *testing.T) {
	for name, c := range map[string]struct {
		opts []policy.RPCIdempotencyOption
		keep time.Duration
		want time.Duration
	}{
		"by the guard":   {want: 24 * time.Hour},
		"by the method":  {opts: []policy.RPCIdempotencyOption{policy.Retention(time.Hour)}, want: time.Hour},
		"by the handler": {opts: []policy.RPCIdempotencyOption{policy.Retention(time.Hour)}, keep: 48 * time.Hour, want: 48 * time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			g := newGuard(t, newStore(t))
			var id string
			s := service{make: func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
				attempt, _ := guard.FromContext(ctx)
				if id = attempt.OperationID(); c.keep > 0 {
					attempt.Keep(c.keep)
				}
				return &things.Thing{Text: "made"}, nil
			}}
			client := serve(t, &s, idempotency.New(g, byUser, c.opts...))
			for range 2 {
				thing, err := client.Make(keyed(t, "k"), &things.MakeRequest{})
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
func TestAnOperatorsAnswerIsReplayed(t *testing.T) {
	g := newGuard(t, newStore(t))
	var id string
	s := service{make: func(ctx context.Context, _ *things.MakeRequest) (*things.Thing, error) {
		attempt, _ := guard.FromContext(ctx)
		id = attempt.OperationID()
		return nil, attempt.CompleteUnknown(ctx)
	}}
	client := serve(t, &s, idempotency.New(g, byUser))
	_, _ = client.Make(keyed(t, "k"), &things.MakeRequest{})
	record := must(g.InspectID(t.Context(), id))
	answer := must(idempotency.Answer(&things.Thing{Text: "found"}, nil))
	ok(t, g.Resolve(t.Context(), record, guard.Happened(answer), "on-call", "receipt found"))
	for range 2 {
		var header http.Header
		thing, err := client.Make(keyed(t, "k"), &things.MakeRequest{}, intoHeader(&header))
		is(t, thing, err, "found")
		if !replayed(header) {
			t.Errorf("the header is %v", header)
		}
	}
	s.ran(t, 1)
}
