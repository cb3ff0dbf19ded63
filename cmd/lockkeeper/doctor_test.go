package main

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/pgstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// examine checks that the doctor finds what Check of the store does, with each remedy.
func examine(t *testing.T, o operator, found []store.Finding, texts ...string) {
	t.Helper()
	code := 0
	if len(texts) > 0 {
		code = 1
	}
	text, json := o.want(code, []string{"doctor"}, texts...), o.want(code, []string{"doctor", "-json"})
	if len(found) != len(texts) || strings.Count(text.out, "to do:") != len(found) {
		t.Errorf("%d findings, %d texts, of\n%s", len(found), len(texts), text.out)
	}
	for _, f := range found {
		for _, part := range []string{f.Found, f.Weakens, f.Remedy, string(f.Refused)} {
			if !strings.Contains(text.out, part) || !strings.Contains(json.out, part) {
				t.Errorf("no %q in\n%s\n%s", part, text.out, json.out)
			}
		}
	}
}

func TestDoctorOfRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t, "--appendonly", "yes", "--appendfsync", "always")
	o := operator{t: t, store: server.URL(), patient: true}
	golden(t, "doctor-well", o.want(0, []string{"doctor"}).out)
	set := func(setting, value string) { must(t, server.Client().ConfigSet(t.Context(), setting, value).Err()) }
	set("maxmemory-policy", "allkeys-lru")
	set("appendfsync", "everysec")
	golden(t, "doctor-redis", o.want(1, []string{"doctor"}, "noeviction", "appendfsync").out, server.Addr(), "ADDRESS")
	set("appendonly", "no")
	o.want(1, []string{"doctor"}, "keeps no append-only file", "Set appendonly to yes")
	// What is there can be looked at all the same.
	o.want(0, []string{"locks", "ls", "stock"}, "Nothing is in use.")
	must(t, server.Client().Do(t.Context(), "replicaof", "127.0.0.1", "1").Err())
	o.want(1, []string{"doctor"}, "takes no writes", "steps are refused")
	server.Stop()
	o.want(2, []string{"doctor"}, "lockkeeper doctor: ")
}

func TestDoctorOfPostgres(t *testing.T) {
	t.Parallel()
	if testing.Short() {
		t.Skip("starts PostgreSQL")
	}
	server := postgrestest.Start(t, "synchronous_commit=off", "autovacuum=off", "full_page_writes=off")
	o := operator{t: t, store: server.DSN(), patient: true}
	o.want(2, []string{"doctor"}, "lockkeeper doctor: ") // no schema
	conn, err := pgx.Connect(t.Context(), server.DSN())
	must(t, err)
	must(t, pgstore.Migrate(t.Context(), conn))
	must(t, conn.Close(t.Context()))
	st, err := pgstore.New(server.DSN(), pgstore.WithTimeout(testpace.Scale(5*time.Second)))
	must(t, err)
	defer func() { _ = st.Close() }()
	found, err := st.Check(t.Context())
	must(t, err)
	examine(t, o, found, "fsync is off", "full_page_writes is off", "synchronous_commit is off", "autovacuum is off",
		"UNLOGGED")
}
