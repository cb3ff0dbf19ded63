package guides_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// newAPI is the code under test: it is given a store, and so runs on any of them.
func newAPI(st store.Buckets) (http.Handler, error) {
	limiter, err := tokenbucket.New(st, "api", tokenbucket.PerMinute(2))
	if err != nil {
		return nil, err
	}
	return ratelimit.New(limiter, nethttp.Global())(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusNoContent)
	})), nil
}

func statusOf(api http.Handler) (status int) {
	w := httptest.NewRecorder()
	api.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	return w.Code
}

// Time is faked in the bubble, that of a memory store too: the test takes no time.
func TestLimitComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer st.Close()
		api, err := newAPI(st)
		if err != nil {
			t.Fatal(err)
		}
		for i, want := range []int{204, 204, 429} {
			if got := statusOf(api); got != want {
				t.Errorf("request %d: %d, want %d", i+1, got, want)
			}
		}
		time.Sleep(30 * time.Second)
		if got := statusOf(api); got != 204 {
			t.Errorf("after half a minute: %d", got)
		}
	})
}

// A store that fails on command.
func TestOutageIs503(t *testing.T) {
	st := storetest.NewFaulty(memstore.New())
	defer func() { _ = st.Close() }()
	api, err := newAPI(st)
	if err != nil {
		t.Fatal(err)
	}
	st.Break(storetest.TakeTokens, storetest.Down)
	if got := statusOf(api); got != 503 {
		t.Errorf("while the store is down: %d", got)
	}
	st.Mend(storetest.TakeTokens)
	if got := statusOf(api); got != 204 {
		t.Errorf("when it is up again: %d", got)
	}
}

// The code under test: it stops when it loses the lock.
func importAll(ctx context.Context, imports *lock.Locker, step func(context.Context) error) error {
	return imports.Do(ctx, "catalogue", func(ctx context.Context) error {
		for ctx.Err() == nil {
			if err := step(ctx); err != nil {
				return err
			}
		}
		return context.Cause(ctx)
	})
}

// Renewals fail for longer than the lease, which ends on time, in fake time.
func TestImportStopsWhenItsLockIsLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := storetest.NewFaulty(memstore.New())
		defer func() { _ = st.Close() }()
		imports, err := lock.New(st, "imports", lock.WithTTL(30*time.Second))
		if err != nil {
			t.Fatal(err)
		}
		time.AfterFunc(time.Minute, func() { st.Break(storetest.RenewLeases, storetest.Down) })
		start := time.Now()
		err = importAll(t.Context(), imports, func(context.Context) error {
			time.Sleep(time.Second)
			return nil
		})
		if took := time.Since(start); !errors.Is(err, lock.ErrExpired) || took < time.Minute || took > 91*time.Second {
			t.Errorf("%v after %v", err, took)
		}
	})
}

// The effect happens, and the reply about its record is lost: the repeat has the result all the same.
func TestLostReply(t *testing.T) {
	st := storetest.NewFaulty(memstore.New())
	defer func() { _ = st.Close() }()
	orders, err := guard.New(st, "orders")
	if err != nil {
		t.Fatal(err)
	}
	runs := 0
	place := func() (int, bool, error) {
		return guard.Do(t.Context(), orders, guard.Operation{Key: "k"}, func(context.Context) (int, error) {
			runs++
			return 42, nil
		})
	}
	st.BreakNext(storetest.SettleOperation, storetest.LostReply, 1)
	if order, replayed, err := place(); order != 42 || replayed || err != nil {
		t.Errorf("%d, %v, %v", order, replayed, err)
	}
	if order, replayed, err := place(); order != 42 || !replayed || err != nil || runs != 1 {
		t.Errorf("again: %d, %v, %v, %d runs", order, replayed, err, runs)
	}
}

// The store on Redis without a server. Miniredis has a clock of its own, for expiries: FastForward.
func TestOnMiniredis(t *testing.T) {
	server := miniredis.RunT(t)
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer func() { _ = client.Close() }()
	st, err := redisstore.New(client, redisstore.WithTimeout(5*time.Second)) // a busy machine is no outage
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	api, err := newAPI(st)
	if err != nil {
		t.Fatal(err)
	}
	for i, want := range []int{204, 204, 429} {
		if got := statusOf(api); got != want {
			t.Errorf("request %d: %d, want %d", i+1, got, want)
		}
	}
}
