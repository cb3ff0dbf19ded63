package pgstore

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

// parts are the files of the schema, in their order.
var parts = []string{"base", "leases", "buckets", "records", "latches", "tasks", "documents"}

const (
	// oldest is the oldest release of PostgreSQL that the store works with.
	oldest = 14
	// schemaVersion is the version of the schema that this release makes, and needs.
	schemaVersion = 3
	// compatibleWith is the schema version of the oldest release that works with this schema.
	compatibleWith = 1
	// migrationLock is the key of the advisory lock of migrations: "lockkeep" in ASCII.
	migrationLock = 0x6c6f636b6b656570
)

// Beginner begins transactions: a *pgx.Conn, a *pgxpool.Pool, or a pgx.Tx.
type Beginner interface {
	Begin(ctx context.Context) (pgx.Tx, error)
}

// Migrate creates the tables and functions of the store in their schema, or brings them to this
// release's version, in one transaction. It needs the right to create the schema, or to create in
// it. The only options that count are [WithSchema] and [LoggedBuckets].
//
// Every process may call it at its start. It changes nothing if the schema is of this release's
// version, or newer. Processes of the release before may run beside processes of this one.
func Migrate(ctx context.Context, db Beginner, opts ...Option) error {
	of, err := schemaOf(opts)
	if err != nil {
		return fmt.Errorf("pgstore: Migrate: %w", err)
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("pgstore: Migrate: %w", statement.Explain(err, false))
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	err = migrate(ctx, tx, of)
	switch {
	case statement.IsReadOnly(err):
		return fmt.Errorf("pgstore: Migrate: %w", statement.Explain(err, false))
	case statement.IsCode(err, "42501"):
		return fmt.Errorf("pgstore: Migrate: %w: it needs the right to create; "+
			"or have the administrator run what pgstore.Schema returns", err)
	case err != nil:
		return fmt.Errorf("pgstore: Migrate: %w", err)
	}
	if err := tx.Commit(ctx); err != nil {
		return fmt.Errorf("pgstore: Migrate: %w", err)
	}
	return nil
}

func migrate(ctx context.Context, tx pgx.Tx, of config) error {
	if err := migrateTables(ctx, tx, of); err != nil || !of.loggedBuckets {
		return err
	}
	var logged bool
	err := tx.QueryRow(ctx, "SELECT relpersistence = 'p' FROM pg_class WHERE oid = $1::regclass",
		statement.Quoted(of.schema)+".buckets").Scan(&logged)
	if err == nil && !logged {
		_, err = tx.Exec(ctx, statement.InSchema(of.schema, "ALTER TABLE lk.buckets SET LOGGED"))
	}
	return err
}

func migrateTables(ctx context.Context, tx pgx.Tx, of config) error {
	// With one snapshot for all statements, the transaction would not see the result of a migration
	// that was committed after its beginning.
	var isolation string
	var number int
	if err := tx.QueryRow(ctx, "SHOW transaction_isolation").Scan(&isolation); err != nil {
		return err
	}
	if isolation != "read committed" {
		if _, err := tx.Exec(ctx, "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"); err != nil {
			return err
		}
	}
	if err := tx.QueryRow(ctx, "SELECT current_setting('server_version_num')::int").Scan(&number); err != nil {
		return err
	}
	if number < of.oldest*10000 {
		return tooOld(number, of.oldest)
	}
	if _, err := tx.Exec(ctx, "SELECT pg_advisory_xact_lock($1)", int64(migrationLock)); err != nil {
		return err
	}
	var exists bool
	if err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", statement.Quoted(of.schema)+".schema_version").
		Scan(&exists); err != nil {
		return err
	}
	if exists {
		var version int
		err := tx.QueryRow(ctx, statement.InSchema(of.schema, "SELECT version FROM lk.schema_version")).Scan(&version)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) || version >= schemaVersion {
			return err
		}
	}
	// pgx sends a text with several statements only with the first two settings.
	for _, setting := range []string{"standard_conforming_strings = on", "client_encoding = 'UTF8'", "lock_timeout = 0"} {
		if _, err := tx.Exec(ctx, "SET LOCAL "+setting); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, schemaText(of), pgx.QueryExecModeSimpleProtocol)
	return err
}

// Schema returns the statements of Migrate, to be run by other means in one transaction. The only
// options that count are [WithSchema] and [LoggedBuckets]. It panics if the schema's name is not
// valid.
func Schema(opts ...Option) string {
	of, err := schemaOf(opts)
	if err != nil {
		panic("pgstore: Schema: " + err.Error())
	}
	return schemaText(of)
}

// Grants returns the statements that give a role the rights of a store's user. An owner of the
// schema runs them after each Migrate, since a migration may make further tables. The only option
// that counts is [WithSchema]. It panics if the schema's name is not valid.
func Grants(role string, opts ...Option) string {
	of, err := schemaOf(opts)
	if err != nil {
		panic("pgstore: Grants: " + err.Error())
	}
	to := " TO " + pgx.Identifier{role}.Sanitize() + ";\n"
	return "GRANT USAGE ON SCHEMA " + statement.Quoted(of.schema) + to +
		"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA " + statement.Quoted(of.schema) + to +
		"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA " + statement.Quoted(of.schema) + to
}

func schemaOf(opts []Option) (config, error) {
	c := config{schema: statement.DefaultSchema, oldest: oldest, timeout: 1e9, connections: 1}
	option.Apply(&c, opts)
	return c, c.checkSchema()
}

func schemaText(of config) string {
	var text strings.Builder
	text.WriteString("SET LOCAL plpgsql.extra_errors = 'none'; -- stricter checks are for the authors of functions\n\n")
	for _, part := range parts {
		file, err := schemaFiles.ReadFile("schema/" + part + ".sql")
		if err == nil {
			text.Write(file)
			text.WriteByte('\n')
		}
	}
	fmt.Fprintf(&text, "INSERT INTO lk.schema_version AS v (version, compatible) VALUES (%d, %d)\n"+
		"  ON CONFLICT (single) DO UPDATE SET version = excluded.version, compatible = excluded.compatible;\n",
		schemaVersion, compatibleWith)
	if of.loggedBuckets {
		text.WriteString("ALTER TABLE lk.buckets SET LOGGED;\n")
	}
	return statement.InSchema(of.schema, text.String())
}

// checkServer checks that the store works with the server and its schema.
func (s *Store) checkServer(ctx context.Context, c *pgx.Conn) error {
	var number int
	var isolation string
	if err := c.QueryRow(ctx,
		"SELECT current_setting('server_version_num')::int, current_setting('transaction_isolation')").
		Scan(&number, &isolation); err != nil {
		return err
	}
	switch {
	case number < s.config.oldest*10000:
		return tooOld(number, s.config.oldest)
	case isolation != "read committed":
		return statement.WrongServer("transactions of this connection are %s: set default_transaction_isolation "+
			"to 'read committed' for the store's user (ALTER ROLE)", isolation)
	}
	var version, compatible int
	err := c.QueryRow(ctx, s.db.Text("SELECT version, compatible FROM lk.schema_version WHERE single")).
		Scan(&version, &compatible)
	var answer *pgconn.PgError
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return statement.WrongServer("schema %s has no version: %s", s.config.schema, statement.MigrateAdvice)
	case errors.As(err, &answer):
		return fmt.Errorf("schema %s: %w", s.config.schema, err)
	case err != nil:
		return err
	case version < schemaVersion:
		return statement.WrongServer("schema %s is of version %d, and this release needs %d: %s",
			s.config.schema, version, schemaVersion, statement.MigrateAdvice)
	case compatible > schemaVersion:
		return statement.WrongServer(
			"schema %s is of version %d, which this release (%d) does not know: use a newer release",
			s.config.schema, version, schemaVersion)
	}
	return nil
}

// tooOld returns the error of a server that is too old, by its number.
func tooOld(number, oldest int) error {
	return statement.WrongServer("PostgreSQL %d is too old: use %d or later", number/10000, oldest)
}
