package pgstore

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

// wantFindings checks that Check finds these, in this order.
func wantFindings(t testing.TB, s *Store, texts ...string) []store.Finding {
	t.Helper()
	found, err := s.Check(t.Context())
	if err != nil || len(found) != len(texts) {
		t.Fatalf("found %v, %v; want %q", found, err, texts)
	}
	for i, text := range texts {
		if f := found[i]; !strings.Contains(f.String(), text) || f.Weakens == "" || f.Remedy == "" {
			t.Errorf("%v does not say %q", f, text)
		}
	}
	return found
}

// wantTasks checks that findings name what happens to tasks.
func wantTasks(t testing.TB, found []store.Finding) {
	t.Helper()
	for _, f := range found {
		if !strings.Contains(f.Weakens, "task") {
			t.Errorf("%v does not name tasks", f)
		}
	}
}

// logged makes all tables of the store LOGGED.
const logged = `DO $$ DECLARE t regclass; BEGIN
	FOR t IN SELECT oid FROM pg_class WHERE relnamespace = 'lk'::regnamespace AND relkind = 'r' AND relpersistence = 'u' LOOP
		EXECUTE format('ALTER TABLE %s SET LOGGED', t);
	END LOOP; END $$`

func TestCheck(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t, "fsync=on", "max_prepared_transactions=2")
	install(t, server.DSN())
	administer(t, server.DSN(), logged)
	set := func(sql ...string) { administer(t, server.DSN(), sql...) }
	open := func(opts ...Option) *Store { return openTestStore(t, server.DSN(), opts...) }
	wantFindings(t, open())

	set("CREATE UNLOGGED TABLE lk.fleeting ()")
	wantFindings(t, open(), "UNLOGGED: fleeting")
	set("DROP TABLE lk.fleeting", "ALTER ROLE postgres SET synchronous_commit = off")
	wantTasks(t, wantFindings(t, open(), "synchronous_commit is off"))
	set("ALTER ROLE postgres RESET synchronous_commit", "ALTER SYSTEM SET autovacuum = off", "ALTER SYSTEM SET full_page_writes = off", "SELECT pg_reload_conf()")
	eventually(t, "the settings are read", func() bool {
		found, err := open().Check(t.Context())
		return err == nil && len(found) == 2
	})
	wantFindings(t, open(), "full_page_writes is off", "autovacuum is off")
	set("ALTER SYSTEM RESET ALL", "SELECT pg_reload_conf()")
	eventually(t, "the settings are read", func() bool {
		found, err := open().Check(t.Context())
		return err == nil && len(found) == 0
	})
	wantFindings(t, open(WithTransactionPooler("")), "statement_timeout is 0", "listens to no pushes")

	set("ALTER ROLE postgres SET default_transaction_read_only = on")
	if found := wantFindings(t, open(), "transaction_read_only is on"); found[0].Refused != store.ReadOnly {
		t.Errorf("%v is no misconfiguration", found)
	}
	set("SET default_transaction_read_only = off", "ALTER ROLE postgres RESET default_transaction_read_only")

	replica := server.Replica()
	eventually(t, "the replica is connected", func() bool {
		found, err := open().Check(t.Context())
		return err == nil && len(found) == 1
	})
	wantTasks(t, wantFindings(t, open(), "has replicas"))
	if found, err := openTestStore(t, replica.DSN()).Check(t.Context()); err != nil || len(found) == 0 || found[0].Refused != store.ReadOnly {
		t.Errorf("of a replica: %v, %v", found, err)
	}
	replica.Kill()
	server.Kill()
	if found, err := open().Check(t.Context()); !store.Down(err) || found != nil {
		t.Errorf("without a server: %v, %v", found, err)
	}
}

// Old transactions are found, open and prepared ones, by users who may see them.
func TestCheckOldTransactions(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t, "max_prepared_transactions=2")
	install(t, server.DSN())
	administer(t, server.DSN(), logged, "CREATE ROLE app LOGIN", Grants("app"))
	s := openTestStore(t, server.DSN())
	s.config.old = 300 * time.Millisecond
	conn, err := pgx.Connect(t.Context(), server.DSN()+"&application_name=report")
	must(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	tx, err := conn.BeginTx(t.Context(), pgx.TxOptions{IsoLevel: pgx.RepeatableRead})
	must(t, err)
	_, err = tx.Exec(t.Context(), "SELECT 1")
	must(t, err)
	has := func(text string) bool {
		found, err := s.Check(t.Context())
		must(t, err)
		for _, f := range found {
			if strings.Contains(f.Found, text) {
				return true
			}
		}
		return false
	}
	eventually(t, "it is found", func() bool { return has("(report) has been open") })
	must(t, tx.Rollback(t.Context()))
	if has("has been open") {
		t.Error("it is found after its end")
	}
	for _, sql := range []string{"BEGIN", "UPDATE lk.counts SET n = 7 WHERE id = 7", "PREPARE TRANSACTION 'forgotten'"} {
		_, err := conn.Exec(t.Context(), sql)
		must(t, err)
	}
	eventually(t, "it is found", func() bool { return has("prepared as 'forgotten'") })
	_, err = conn.Exec(t.Context(), "ROLLBACK PREPARED 'forgotten'")
	must(t, err)
	_, err = openTestStore(t, strings.Replace(server.DSN(), "postgres@", "app@", 1)).Check(t.Context())
	must(t, err) // an ordinary user may call it
}

func TestCheckThroughATransactionPooler(t *testing.T) {
	t.Parallel()
	direct, pooled := throughPooler(t)
	administer(t, direct, logged)
	has := func(s *Store, text string) bool {
		found, err := s.Check(t.Context())
		must(t, err)
		for _, f := range found {
			if strings.Contains(f.String(), text) {
				return true
			}
		}
		return false
	}
	if s := openTestStore(t, pooled, WithTransactionPooler(direct)); has(s, "pushes") || has(s, "NOTIFY") || !has(s, "statement_timeout is 0") {
		t.Error("with a connection to listen")
	}
	deaf := openTestStore(t, pooled, WithTransactionPooler(pooled), WithTimeout(brisk))
	acceptable(deaf.listen)
	if !has(deaf, "NOTIFY does not arrive") {
		t.Error("with a pooler to listen through")
	}
}
