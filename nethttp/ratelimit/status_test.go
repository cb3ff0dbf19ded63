package ratelimit_test

import (
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

// A handler outside that keeps answers back, as http.TimeoutHandler does, hides no status.
func TestStatusBehindAHandlerThatBuffers(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	limiter, err := tokenbucket.New(st, "login", tokenbucket.PerDay(3))
	if err != nil {
		t.Fatal(err)
	}
	login := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(r.Header.Get("X-Status"))
		w.WriteHeader(status)
	})
	limited := ratelimit.New(limiter, nethttp.Global(), policy.ChargeStatus(http.StatusUnauthorized))(login)
	for _, status := range []string{"401", "200", "401"} {
		r := httptest.NewRequest(http.MethodPost, "/", http.NoBody)
		r.Header.Set("X-Status", status)
		http.TimeoutHandler(limited, time.Minute, "").ServeHTTP(httptest.NewRecorder(), r)
	}
	d, err := limiter.Peek(t.Context(), "global")
	if n := d.Limits()[0].Remaining; n != 1 || err != nil {
		t.Errorf("%d tokens are left, %v", n, err)
	}
}
