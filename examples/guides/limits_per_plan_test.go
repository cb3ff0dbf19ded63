package guides_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

const limitsOfTenant = `SELECT per_hour, per_month FROM plans JOIN tenants ON tenants.plan = plans.name WHERE tenants.id = $1`

// boughtLimits returns the limits that a tenant has bought.
func boughtLimits(db *sql.DB) tokenbucket.PlanFunc {
	return func(ctx context.Context, tenant string) (tokenbucket.Plan, error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		var perHour, perMonth int64
		err := db.QueryRowContext(ctx, limitsOfTenant, tenant).Scan(&perHour, &perMonth)
		switch {
		case errors.Is(err, sql.ErrNoRows):
			return nil, fmt.Errorf("no tenant %q", tenant)
		case err != nil: // cached limits stay in use
			return nil, fmt.Errorf("%w: %w", store.ErrUnavailable, err)
		}
		return tokenbucket.Limits{
			tokenbucket.PerHour(perHour).Named("hour"), // the names are those of all plans
			tokenbucket.Monthly(perMonth).Named("month"),
		}, nil
	}
}

type tenantKey struct{}

func TestLimitsPerPlan(t *testing.T) {
	server := postgrestest.Start(t)
	pool, err := pgxpool.New(t.Context(), server.DSN())
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db := stdlib.OpenDBFromPool(pool)
	defer func() { _ = db.Close() }()
	exec := func(statement string) {
		t.Helper()
		if _, err := db.ExecContext(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	exec(`CREATE TABLE plans (name text PRIMARY KEY, per_hour bigint, per_month bigint)`)
	exec(`CREATE TABLE tenants (id text PRIMARY KEY, plan text REFERENCES plans)`)
	exec(`INSERT INTO plans VALUES ('free', 2, 1000), ('pro', 100, 50000)`)
	exec(`INSERT INTO tenants VALUES ('acme', 'free'), ('zenith', 'free')`)

	st := memstore.New()
	defer st.Close()
	plans := tokenbucket.Cached(boughtLimits(db), time.Minute, 10_000)
	limiter, err := tokenbucket.New(st, "api", plans)
	if err != nil {
		t.Fatal(err)
	}
	limit := ratelimit.New(limiter, nethttp.ByContext(tenantKey{})) // behind authentication, which sets it
	h := limit(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	want := func(what, tenant string, status int, left ...string) {
		t.Helper()
		r, w := httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder()
		h.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), tenantKey{}, tenant)))
		if w.Code != status {
			t.Errorf("%s: %d %s, want %d", what, w.Code, w.Body, status)
		}
		for _, l := range left {
			if d, err := limiter.Peek(t.Context(), tenant); err != nil || l != remaining(d) {
				t.Errorf("%s: %s remain, %v, want %s", what, remaining(d), err, l)
			}
		}
	}

	want("the first of two", "acme", http.StatusOK)
	want("the second", "acme", http.StatusOK)
	want("over the plan", "acme", http.StatusTooManyRequests, "hour 0, month 998")
	exec(`UPDATE tenants SET plan = 'pro' WHERE id = 'acme'`)
	want("an upgrade that the cache does not have", "acme", http.StatusTooManyRequests)
	if err := limiter.SetPlan(plans); err != nil {
		t.Fatal(err)
	}
	want("with an empty cache", "acme", http.StatusOK, "hour 97, month 49997")
	exec(`UPDATE plans SET per_hour = 1 WHERE name = 'pro'`)
	if err := limiter.SetPlan(plans); err != nil {
		t.Fatal(err)
	}
	want("a smaller plan", "acme", http.StatusTooManyRequests, "hour 0, month 49997")
	exec(`INSERT INTO plans VALUES ('broken', 0, 0)`)
	exec(`INSERT INTO tenants VALUES ('newco', 'broken')`)
	want("a plan of nothing", "newco", http.StatusInternalServerError)
	want("an unknown tenant", "nobody", http.StatusInternalServerError)

	if err := limiter.SetPlan(tokenbucket.Cached(boughtLimits(db), time.Nanosecond, 10_000)); err != nil {
		t.Fatal(err)
	}
	want("before the outage", "acme", http.StatusTooManyRequests)
	server.Kill()
	pool.Reset() // the process of a connection may survive the server for a moment
	want("from the cache in an outage", "acme", http.StatusTooManyRequests)
	want("in an outage without a cache", "zenith", http.StatusServiceUnavailable)
}

// remaining returns what is left of each limit.
func remaining(d tokenbucket.Decision) (text string) {
	for i, l := range d.Limits() {
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprint(l.Name, " ", l.Remaining)
	}
	return text
}
