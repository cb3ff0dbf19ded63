package connectmw_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"

	"github.com/lockkeeper/lockkeeper/connectmw"
	"github.com/lockkeeper/lockkeeper/connectmw/internal/things"
	"github.com/lockkeeper/lockkeeper/connectmw/ratelimit"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

func TestOverTheLimit(t *testing.T) {
	var s service
	client := serve(t, &s, ratelimit.New(newLimiter(t, newStore(t), tokenbucket.PerHour(10)), connectmw.ByHeader("x-key")))
	began := time.Now()
	for range 10 {
		if _, err := client.Make(with(t, "x-key", "a"), &things.MakeRequest{}); err != nil {
			t.Fatal(err)
		}
	}
	_, err := client.Make(with(t, "x-key", "a"), &things.MakeRequest{})
	meta := denial(t, err, policy.QuotaExceeded).Meta()
	const refill = 6 * time.Minute
	if delay := detail[errdetails.RetryInfo](err).GetRetryDelay().AsDuration(); delay <= refill-time.Since(began)-time.Second || delay > refill {
		t.Errorf("to be tried again after %v", delay)
	}
	if quota := detail[errdetails.QuotaFailure](err); len(quota.GetViolations()) != 1 || quota.GetViolations()[0].GetSubject() != "limit:api" {
		t.Errorf("QuotaFailure %v", quota)
	}
	delay := detail[errdetails.RetryInfo](err).GetRetryDelay().AsDuration()
	if s := must(strconv.Atoi(meta.Get("Retry-After"))); time.Duration(s)*time.Second < delay || s > 360 {
		t.Errorf("Retry-After is %d s, for a delay of %v", s, delay)
	}
	s.ran(t, 10)
	if _, err := client.Make(with(t, "x-key", "b"), &things.MakeRequest{}); err != nil {
		t.Errorf("another key: %v", err)
	}
}

func TestFailOpen(t *testing.T) {
	var s service
	store := newStore(t)
	client := serve(t, &s, ratelimit.New(newLimiter(t, store, tokenbucket.PerMinute(10)), connectmw.ByHeader("x-key"), policy.FailOpen(), policy.StatusHeaders()))
	store.Break(storetest.TakeTokens, storetest.Down)
	for range 12 {
		var header http.Header
		if _, err := client.Make(with(t, "x-key", "a"), &things.MakeRequest{}, intoHeader(&header)); err != nil {
			t.Fatal(err)
		}
		if got := header.Values("ratelimit-status"); len(got) != 1 || got[0] != "bypassed" {
			t.Errorf("the header is %q", got)
		}
	}
	_, err := client.Make(t.Context(), &things.MakeRequest{})
	denies(t, err, policy.KeyMissing)
}

// sendMessages sends messages on a stream and returns how many were answered before an error.
func sendMessages(ctx context.Context, t *testing.T, client client, n int) (answered int, err error) {
	t.Helper()
	stream := must(client.Talk(ctx))
	for range n {
		if err := stream.Send(&things.MakeRequest{}); err != nil && !errors.Is(err, io.EOF) {
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

func TestStreamIsChargedOnce(t *testing.T) {
	var s service
	client := serve(t, &s, ratelimit.New(newLimiter(t, newStore(t), tokenbucket.PerMinute(2)), connectmw.Global()))
	for range 2 {
		if n, err := sendMessages(t.Context(), t, client, 5); n != 5 || !errors.Is(err, io.EOF) {
			t.Fatalf("%d messages, %v", n, err)
		}
	}
	n, err := sendMessages(t.Context(), t, client, 5)
	denies(t, err, policy.QuotaExceeded)
	if n != 0 {
		t.Errorf("%d messages", n)
	}
	s.ran(t, 2)
}

func TestPerMessage(t *testing.T) {
	refusals := make(chan error, 2)
	s := service{talk: func(stream *bidiStream) error {
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
			if err := stream.Send(&things.Thing{Id: r.GetId()}); err != nil {
				return err
			}
		}
	}}
	client := serve(t, &s, ratelimit.New(newLimiter(t, newStore(t), tokenbucket.PerMinute(4)), connectmw.Global(), ratelimit.PerMessage()))
	if n, err := sendMessages(t.Context(), t, client, 3); n != 3 || !errors.Is(err, io.EOF) {
		t.Fatalf("%d messages, %v", n, err)
	}
	n, err := sendMessages(t.Context(), t, client, 3) // one is left
	if n != 1 {
		t.Errorf("%d messages, want 1", n)
	}
	denies(t, err, policy.QuotaExceeded)
	for range 2 {
		denies(t, <-refusals, policy.QuotaExceeded)
	}
	n, err = sendMessages(t.Context(), t, client, 3) // none for the stream itself
	if n != 0 {
		t.Errorf("%d messages, want none", n)
	}
	denies(t, err, policy.QuotaExceeded)
	if _, err := client.Make(t.Context(), &things.MakeRequest{}); err == nil {
		t.Error("a unary call passes a limit without tokens")
	}
	s.ran(t, 2)
}
