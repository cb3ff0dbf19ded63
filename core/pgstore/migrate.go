package pgstore

import (
	"context"
	"embed"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/internal/option"
)

//go:embed schema/*.sql
var schemaFiles embed.FS

// parts are the files of the schema, in their order.
var parts = []string{"base", "leases", "buckets", "records", "latches"}

const (
	defaultSchema = "lk"
	// schemaVersion is the version of the schema that this release makes, and needs.
	schemaVersion = 1
	// compatibleWith is the version that the oldest release needs which works with this schema.
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
// it. Of the options only [WithSchema] and [LoggedBuckets] count. It may be called by every process
// at its start: one that finds the schema as new as itself, or newer, changes nothing. Processes of
// the release before can go on working beside those of this one.
func Migrate(ctx context.Context, db Beginner, opts ...Option) error {
	of, err := schemaOf(opts)
	if err != nil {
		return fmt.Errorf("pgstore: Migrate: %w", err)
	}
	tx, err := db.Begin(ctx)
	if err != nil {
		return fmt.Errorf("pgstore: Migrate: %w", explain(err, false))
	}
	defer func() { _ = tx.Rollback(context.WithoutCancel(ctx)) }()
	err = migrate(ctx, tx, of)
	switch {
	case isReadOnly(err):
		return fmt.Errorf("pgstore: Migrate: %w", explain(err, false))
	case isCode(err, "42501"):
		return fmt.Errorf("pgstore: Migrate: %w: it needs the right to create; or have the administrator run what pgstore.Schema returns", err)
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
	err := tx.QueryRow(ctx, "SELECT relpersistence = 'p' FROM pg_class WHERE oid = $1::regclass", quoted(of.schema)+".buckets").Scan(&logged)
	if err == nil && !logged {
		_, err = tx.Exec(ctx, inSchema(of.schema, "ALTER TABLE lk.buckets SET LOGGED"))
	}
	return err
}

func migrateTables(ctx context.Context, tx pgx.Tx, of config) error {
	// With one snapshot for all statements, it would not see what another migration has just made.
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
	if err := tx.QueryRow(ctx, "SELECT to_regclass($1) IS NOT NULL", quoted(of.schema)+".schema_version").Scan(&exists); err != nil {
		return err
	}
	if exists {
		var version int
		err := tx.QueryRow(ctx, inSchema(of.schema, "SELECT version FROM lk.schema_version")).Scan(&version)
		if err != nil && !errors.Is(err, pgx.ErrNoRows) || version >= schemaVersion {
			return err
		}
	}
	// The client sends a text with several statements in the first two only.
	for _, setting := range []string{"standard_conforming_strings = on", "client_encoding = 'UTF8'", "lock_timeout = 0"} {
		if _, err := tx.Exec(ctx, "SET LOCAL "+setting); err != nil {
			return err
		}
	}
	_, err := tx.Exec(ctx, schemaText(of), pgx.QueryExecModeSimpleProtocol)
	return err
}

// Schema returns the statements that Migrate runs, for those who run them otherwise: in one
// transaction. Of the options only [WithSchema] and [LoggedBuckets] count; it panics if the schema's
// name is not valid.
func Schema(opts ...Option) string {
	of, err := schemaOf(opts)
	if err != nil {
		panic("pgstore: Schema: " + err.Error())
	}
	return schemaText(of)
}

// Grants returns the statements that give a role the rights that a store's user needs, for an owner
// of the schema to run after Migrate: each migration may make further tables. Of the options only
// [WithSchema] counts; it panics if that is not valid.
func Grants(role string, opts ...Option) string {
	of, err := schemaOf(opts)
	if err != nil {
		panic("pgstore: Grants: " + err.Error())
	}
	to := " TO " + pgx.Identifier{role}.Sanitize() + ";\n"
	return "GRANT USAGE ON SCHEMA " + quoted(of.schema) + to +
		"GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA " + quoted(of.schema) + to +
		"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA " + quoted(of.schema) + to
}

func schemaOf(opts []Option) (config, error) {
	c := config{schema: defaultSchema, oldest: oldest, timeout: 1e9, connections: 1}
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
		"  ON CONFLICT (single) DO UPDATE SET version = excluded.version, compatible = excluded.compatible;\n", schemaVersion, compatibleWith)
	if of.loggedBuckets {
		text.WriteString("ALTER TABLE lk.buckets SET LOGGED;\n")
	}
	return inSchema(of.schema, text.String())
}

var qualified = regexp.MustCompile(`\blk\b(\.|;| AUTH| TO)`)

// inSchema puts a schema in the place of the default one.
func inSchema(schema, sql string) string {
	if schema == defaultSchema {
		return sql
	}
	sql = strings.ReplaceAll(sql, "'lk.operation'", "'"+schema+".operation'") // a setting, whose name has no quotes
	return qualified.ReplaceAllString(sql, quoted(schema)+"${1}")
}

// quoted returns the name of a schema as SQL has it: it may be a keyword.
func quoted(schema string) string { return `"` + schema + `"` }

// sql returns a constant text with the store's schema in the place of the default one.
func (s *Store) sql(text string) string {
	if s.config.schema == defaultSchema {
		return text
	}
	if known, ok := s.texts.Load(text); ok {
		return known.(string)
	}
	known, _ := s.texts.LoadOrStore(text, inSchema(s.config.schema, text))
	return known.(string)
}
