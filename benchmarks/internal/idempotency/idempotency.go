// Package idempotency measures guards on Redis beside the fewest round trips that they can take.
package idempotency

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/floor"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/idempotency"
)

// Sections are the comparison of idempotency guards.
func Sections() []bench.Section {
	return []bench.Section{{
		Name:  "idempotency",
		Title: "Idempotency",
		About: "There is no Go library whose records outlive the lease of an attempt to compare with, so guards are compared with the floor: " +
			"a fresh request takes at least two round trips, a replay one. Round trips are commands of the client, as the server counts them.",
		Full:    90 * time.Second,
		Run:     run,
		Targets: targets(),
	}}
}

func run(ctx context.Context, b *bench.B) error {
	server, err := b.Redis(ctx)
	if err != nil {
		return err
	}
	return floor.With(server.Addr(), 2, func(s []*floor.Site) error {
		if err := requests(ctx, b, s[0]); err != nil {
			return err
		}
		if err := handlers(ctx, b, s[0]); err != nil {
			return err
		}
		if err := storms(ctx, b, s); err != nil {
			return err
		}
		return listing(ctx, b, s)
	})
}

const (
	fresh  = "Lockkeeper, fresh: Begin and Complete"
	replay = "Lockkeeper, replay: Begin"
)

// keys are keys of new operations.
type keys struct {
	name string
	n    atomic.Int64
}

func (k *keys) next() string { return k.name + strconv.FormatInt(k.n.Add(1), 10) }

// requests measures a guard alone.
func requests(ctx context.Context, b *bench.B, s *floor.Site) error {
	const freshDo, replayDo = "Lockkeeper, fresh: guard.Do", "Lockkeeper, replay: guard.Do"
	g, err := guard.New(s.Store, "requests", guard.WithMaxPerScope(1<<20), guard.WithMaxScopeBytes(1<<30))
	if err != nil {
		return err
	}
	t := b.Table("idempotency", "A guard",
		"One goroutine; the operation does nothing, and its result has 256 bytes.", floor.Columns("request")...)
	result := guard.Result{Status: http.StatusOK, Data: []byte(strings.Repeat("x", 256))}
	value := strings.Repeat("x", 256)
	unused := keys{name: "fresh-"}
	operation := func(key string) guard.Operation {
		return guard.Operation{Scope: "subject", Key: key, Fingerprint: []byte("POST /orders")}
	}
	do := func(ctx context.Context, key string, want bool) error {
		_, replayed, err := guard.Do(ctx, g, operation(key), func(context.Context) (string, error) { return value, nil })
		if err == nil && replayed != want {
			err = fmt.Errorf("replayed: %t", replayed)
		}
		return err
	}
	complete := func(ctx context.Context, key string) error {
		attempt, _, err := g.Begin(ctx, operation(key))
		if err != nil {
			return err
		}
		if attempt == nil {
			return errors.New("a fresh request was replayed")
		}
		return attempt.Complete(ctx, result)
	}
	if err := complete(ctx, "finished"); err != nil {
		return err
	}
	if err := do(ctx, "done", false); err != nil {
		return err
	}
	contenders := s.Rows(b, t, floor.OnePing, floor.TwoPings, floor.OneScript, floor.TwoScripts)
	for _, c := range []struct {
		row string
		fn  func(ctx context.Context) error
	}{
		{fresh, func(ctx context.Context) error { return complete(ctx, unused.next()) }},
		{freshDo, func(ctx context.Context) error { return do(ctx, unused.next(), false) }},
		{replay, func(ctx context.Context) error {
			_, kept, err := g.Begin(ctx, operation("finished"))
			if err == nil && kept == nil {
				err = errors.New("a finished request was not replayed")
			}
			return err
		}},
		{replayDo, func(ctx context.Context) error { return do(ctx, "done", true) }},
	} {
		contenders = append(contenders, bench.Contender{Row: c.row, Run: func(ctx context.Context) error {
			return s.Alone(ctx, t, c.row, b.Time(time.Second), c.fn)
		}})
	}
	if err := b.InterleaveFinely(ctx, "idempotency, guard", bench.PartsOfCalls, contenders); err != nil {
		return err
	}
	t.Chart("A guard", "p50", "p99")
	b.Measured(freshTrips, t.Value(fresh, "round trips"))
	b.Measured(replayTrips, t.Value(replay, "round trips"))
	b.Measured(freshTime, t.Ratio("p50", fresh, floor.TwoScripts))
	b.Measured(replayTime, t.Ratio("p50", replay, floor.OneScript))
	b.Measured(freshAllocations, t.Value(fresh, "allocations"))
	b.Measured(replayAllocations, t.Value(replay, "allocations"))
	return nil
}

// handlers measures the cost of the middleware.
func handlers(ctx context.Context, b *bench.B, s *floor.Site) error {
	const (
		bare     = "the handler alone"
		freshly  = "Lockkeeper's middleware, fresh"
		replayed = "Lockkeeper's middleware, replay"
	)
	g, err := guard.New(s.Store, "handlers")
	if err != nil {
		return err
	}
	t := b.Table("idempotency-http", "What the net/http middleware adds",
		"A POST of 64 bytes with an answer of 256, without a network between client and handler.", floor.Columns("request")...)
	answer := []byte(strings.Repeat("x", 256))
	handler := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write(answer) })
	once := idempotency.New(g, nethttp.Unscoped())(handler)
	unused := keys{name: "http-fresh-"}
	request := func(ctx context.Context, h http.Handler, key, marker string) error {
		r := httptest.NewRequestWithContext(ctx, http.MethodPost, "/orders", strings.NewReader(strings.Repeat("y", 64)))
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		if got := w.Header().Get("Idempotency-Replayed"); w.Code != http.StatusOK || got != marker {
			return fmt.Errorf("answered %d, replayed %q", w.Code, got)
		}
		return nil
	}
	if err := request(ctx, once, "finished", ""); err != nil {
		return err
	}
	contenders := s.Rows(b, t, floor.OnePing, floor.TwoPings, floor.OneScript, floor.TwoScripts)
	for _, c := range []struct {
		row string
		fn  func(ctx context.Context) error
	}{
		{bare, func(ctx context.Context) error { return request(ctx, handler, "any", "") }},
		{freshly, func(ctx context.Context) error { return request(ctx, once, unused.next(), "") }},
		{replayed, func(ctx context.Context) error { return request(ctx, once, "finished", "true") }},
	} {
		contenders = append(contenders, bench.Contender{Row: c.row, Run: func(ctx context.Context) error {
			return s.Alone(ctx, t, c.row, b.Time(time.Second), c.fn)
		}})
	}
	if err := b.InterleaveFinely(ctx, "idempotency, middleware", bench.PartsOfCalls, contenders); err != nil {
		return err
	}
	for _, c := range []struct{ row, floor, time, allocations string }{
		{freshly, floor.TwoScripts, freshlyTime, freshlyAllocations}, {replayed, floor.OneScript, replayedTime, replayedAllocations},
	} {
		b.Measured(c.time, (t.Value(c.row, "p50")-t.Value(bare, "p50"))/t.Value(c.floor, "p50"))
		b.Measured(c.allocations, t.Value(c.row, "allocations")-t.Value(bare, "allocations"))
	}
	return nil
}
