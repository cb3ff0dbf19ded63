package rpctest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

func overTheLimit(t *rig) {
	var s Service
	client := serve(t, &s, t.RateLimit(NewLimiter(t, newStore(t), tokenbucket.PerHour(10)), t.ByMetadata("x-key")))
	began := time.Now()
	for range 10 {
		if _, err := client.Make(with(t, "x-key", "a"), &Request{}); err != nil {
			t.Fatal(err)
		}
	}
	var trailer http.Header
	_, err := client.Make(with(t, "x-key", "a"), &Request{}, intoTrailer(&trailer))
	denies(t, err, policy.QuotaExceeded)
	const refill = 6 * time.Minute
	if delay := t.DetailsOf(err).retryAfter(); delay <= refill-time.Since(began)-time.Second || delay > refill {
		t.Errorf("to be tried again after %v", delay)
	}
	if quota := t.DetailsOf(err).Quota; !slices.Equal(quota, []string{"limit:api"}) {
		t.Errorf("QuotaFailure %v", quota)
	}
	delay := t.DetailsOf(err).retryAfter()
	if after, found := t.Retry(err, trailer); !found || after < delay || after > refill+time.Millisecond {
		t.Errorf("the metadata asks for a retry after %v, %v, for a delay of %v", after, found, delay)
	}
	s.ran(t, 10)
	if _, err := client.Make(with(t, "x-key", "b"), &Request{}); err != nil {
		t.Errorf("another key: %v", err)
	}
}

func failOpen(t *rig) {
	var s Service
	store := newStore(t)
	client := serve(t, &s, t.RateLimit(NewLimiter(t, store, tokenbucket.PerMinute(10)), t.ByMetadata("x-key"), policy.FailOpen(), policy.StatusHeaders()))
	store.Break(storetest.TakeTokens, storetest.Down)
	for range 12 {
		var header http.Header
		if _, err := client.Make(with(t, "x-key", "a"), &Request{}, intoHeader(&header)); err != nil {
			t.Fatal(err)
		}
		if got := header.Values("ratelimit-status"); len(got) != 1 || got[0] != "bypassed" {
			t.Errorf("the header is %q", got)
		}
	}
	_, err := client.Make(t.Context(), &Request{})
	denies(t, err, policy.KeyMissing)
}

// SendMessages sends messages on a stream and returns how many were answered before an error.
func SendMessages(ctx context.Context, t testing.TB, client Client, n int) (answered int, err error) {
	t.Helper()
	stream := must(client.Talk(ctx))
	for range n {
		if err := stream.Send(&Request{}); err != nil && !errors.Is(err, io.EOF) {
			t.Fatal(err)
		}
		if _, err := stream.Recv(); err != nil {
			return answered, err
		}
		answered++
	}
	ok(t, stream.CloseSend())
	_, err = stream.Recv()
	return answered, err
}

func streamIsChargedOnce(t *rig) {
	var s Service
	client := serve(t, &s, t.RateLimit(NewLimiter(t, newStore(t), tokenbucket.PerMinute(2)), t.Global()))
	for range 2 {
		if n, err := SendMessages(t.Context(), t, client, 5); n != 5 || !errors.Is(err, io.EOF) {
			t.Fatalf("%d messages, %v", n, err)
		}
	}
	n, err := SendMessages(t.Context(), t, client, 5)
	denies(t, err, policy.QuotaExceeded)
	if n != 0 {
		t.Errorf("%d messages", n)
	}
	s.ran(t, 2)
}

func perMessage(t *rig) {
	refusals := make(chan error, 2)
	s := Service{talk: func(stream ServerStream) error {
		for {
			r, err := stream.Recv()
			if errors.Is(err, io.EOF) {
				return nil
			}
			if err != nil {
				refusals <- err
				_, again := stream.Recv()
				refusals <- again
				return err
			}
			if err := stream.Send(&Thing{ID: r.ID}); err != nil {
				return err
			}
		}
	}}
	client := serve(t, &s, t.RateLimit(NewLimiter(t, newStore(t), tokenbucket.PerMinute(4)), t.Global(), t.PerMessage()))
	if n, err := SendMessages(t.Context(), t, client, 3); n != 3 || !errors.Is(err, io.EOF) {
		t.Fatalf("%d messages, %v", n, err)
	}
	n, err := SendMessages(t.Context(), t, client, 3) // one is left
	if n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
	denies(t, err, policy.QuotaExceeded)
	for range 2 {
		denies(t, <-refusals, policy.QuotaExceeded)
	}
	n, err = SendMessages(t.Context(), t, client, 3) // none for the stream itself
	if n != 0 {
		t.Errorf("%d messages, want none", n)
	}
	denies(t, err, policy.QuotaExceeded)
	if _, err := client.Make(t.Context(), &Request{}); err == nil {
		t.Error("a unary call passes a limit without tokens")
	}
	s.ran(t, 2)
}
