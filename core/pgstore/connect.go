package pgstore

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

// oldest is the oldest release of PostgreSQL that the store works with.
const oldest = 14

// settings returns the settings of the store's pool.
func (s *Store) settings(of *pgxpool.Config) *pgxpool.Config {
	c := of.Copy()
	c.MaxConns, c.MinConns = int32(s.config.connections), 0 //nolint:gosec // checked
	c.AfterRelease = nil
	before := c.BeforeConnect
	c.BeforeConnect = func(ctx context.Context, c *pgx.ConnConfig) error {
		if before != nil {
			if err := before(ctx, c); err != nil {
				return err
			}
		}
		return cancelsNothing(ctx, c)
	}
	c.AfterConnect = func(ctx context.Context, c *pgx.Conn) error {
		connected(c.PgConn())
		return s.checkServer(ctx, c)
	}
	c.PrepareConn = func(_ context.Context, c *pgx.Conn) (bool, error) { return isQuiet(c.PgConn().Conn()), nil }
	c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // it would be a round trip
	s.prepare(c.ConnConfig)
	// Without prepared statements, the types of arguments are still those that the server wants.
	if s.config.pooled || c.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	if s.config.pooled {
		return c
	}
	// The server ends a statement, too, that takes longer than the store waits; and steps need READ
	// COMMITTED, whatever the server's default.
	timeout := strconv.FormatInt(s.config.timeout.Milliseconds(), 10)
	c.ConnConfig.RuntimeParams["statement_timeout"] = timeout
	c.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = timeout
	c.ConnConfig.RuntimeParams["default_transaction_isolation"] = "read committed"
	c.ConnConfig.RuntimeParams["plan_cache_mode"] = "force_generic_plan" // to plan each call takes longer than the call
	return c
}

// listenerSettings returns the settings of the connection that listens, which is idle.
func (s *Store) listenerSettings(of *pgx.ConnConfig) *pgx.ConnConfig {
	s.prepare(of)
	of.RuntimeParams["statement_timeout"] = "0"
	return of
}

// prepare makes the settings of a connection the store's.
func (s *Store) prepare(c *pgx.ConnConfig) {
	c.ConnectTimeout = s.unhurried() // a caller waits less, and a later one finds the connection
	if otherHosts(c) > 0 {
		c.ConnectTimeout = s.config.timeout // each: one that does not reply must not keep the next one waiting
	}
	c.DialFunc = s.dialer(c.DialFunc)
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "lockkeeper"
	}
}

// otherHosts returns the number of further servers that the DSN names, to be tried one by one.
func otherHosts(c *pgx.ConnConfig) int {
	all := map[string]bool{addressOf(c): true}
	for _, other := range c.Fallbacks { // also the same server without TLS
		all[net.JoinHostPort(other.Host, strconv.Itoa(int(other.Port)))] = true
	}
	return len(all) - 1
}

// connect makes a connection beside the pool, as the pool would: its BeforeConnect may know the
// present password.
func (s *Store) connect(ctx context.Context, of *pgx.ConnConfig) (*pgx.Conn, error) {
	of = of.Copy()
	if before := s.pool.Config().BeforeConnect; before != nil {
		if err := before(ctx, of); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, of)
}

// checkServer checks, on each new connection, that the store works with the server and its schema.
func (s *Store) checkServer(ctx context.Context, c *pgx.Conn) error {
	var number int
	var isolation string
	set := "NULL, NULL"
	if !s.config.pooled {
		// A plan lasts as long as the connection, and a sequential scan in it may have been chosen for
		// an empty table. Where there is no other way, the server takes one nevertheless, as one so
		// expensive that it would compile the statement. Poolers refuse these as parameters.
		set = "set_config('enable_seqscan', 'off', false), set_config('jit', 'off', false)"
	}
	if err := c.QueryRow(ctx, "SELECT current_setting('server_version_num')::int, current_setting('transaction_isolation'), "+set).
		Scan(&number, &isolation, nil, nil); err != nil {
		return err
	}
	switch {
	case number < s.config.oldest*10000:
		return tooOld(number, s.config.oldest)
	case isolation != "read committed":
		return wrongServer("transactions of this connection are %s: set default_transaction_isolation to 'read committed' for the store's user (ALTER ROLE)", isolation)
	}
	var version, compatible int
	err := c.QueryRow(ctx, s.sql("SELECT version, compatible FROM lk.schema_version WHERE single")).Scan(&version, &compatible)
	var answer *pgconn.PgError
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return wrongServer("schema %s has no version: %s", s.config.schema, migrateAdvice)
	case errors.As(err, &answer):
		return fmt.Errorf("schema %s: %w", s.config.schema, err)
	case err != nil:
		return err
	case version < schemaVersion:
		return wrongServer("schema %s is of version %d, and this release needs %d: %s", s.config.schema, version, schemaVersion, migrateAdvice)
	case compatible > schemaVersion:
		return wrongServer("schema %s is of version %d, which this release (%d) does not know: use a newer release", s.config.schema, version, schemaVersion)
	}
	return nil
}

// tooOld returns the error of a server that is too old, by its number.
func tooOld(number, oldest int) error {
	return wrongServer("PostgreSQL %d is too old: use %d or later", number/10000, oldest)
}

// digest returns what stands for these texts in the database, none of which can be taken for
// another list of texts.
func (s *Store) digest(texts ...string) [16]byte {
	var room [256]byte
	b := room[:0]
	for _, text := range texts {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	if len(s.config.secret) == 0 {
		sum := sha256.Sum256(b)
		return [16]byte(sum[:])
	}
	mac := hmac.New(sha256.New, s.config.secret)
	mac.Write(b)
	return [16]byte(mac.Sum(room[:0]))
}
