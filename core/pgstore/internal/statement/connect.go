package statement

import (
	"context"
	"net"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// settings returns the settings of the client's pool.
func (db *Client) settings() *pgxpool.Config {
	of := db.config.Pool
	c := of.Copy()
	// Slots bound the calls. The pool has room for as many connections again: pgx keeps a dead
	// connection in the pool for a while, which must leave room for a new one. See drain.
	c.MaxConns, c.MinConns, c.MinIdleConns = 2*int32(db.config.Connections), 0, 0 //nolint:gosec // checked
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
		return db.prepareConnection(ctx, c)
	}
	c.PrepareConn = usable(of)
	c.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false } // it would be a round trip
	db.prepare(c.ConnConfig)
	// Without prepared statements, the types of arguments are still the ones that the server wants.
	if db.config.Pooled || c.ConnConfig.DefaultQueryExecMode != pgx.QueryExecModeCacheStatement {
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeCacheDescribe
	}
	if db.config.Pooled {
		return c
	}
	for _, setting := range db.session() {
		if setting.atStart {
			c.ConnConfig.RuntimeParams[setting.name] = setting.value
		}
	}
	return c
}

// usable returns the check of an idle connection: it has not ended, and the pool's own check
// accepts it.
func usable(of *pgxpool.Config) func(context.Context, *pgx.Conn) (bool, error) {
	own, before := of.PrepareConn, of.BeforeAcquire //nolint:staticcheck // deprecated, and still called
	return func(ctx context.Context, c *pgx.Conn) (bool, error) {
		switch quiet := isQuiet(c.PgConn().Conn()); {
		case quiet && own != nil:
			return own(ctx, c)
		case quiet && before != nil:
			return before(ctx, c), nil
		default:
			return quiet, nil
		}
	}
}

// setting is a setting of a session that the client relies on, whatever the setting of the server,
// the database or the user is.
type setting struct {
	name, value string
	atStart     bool // also a parameter of the connection, which RESET keeps, and poolers of transactions refuse
	since       int  // the first release that has it, if the store works with earlier ones
}

// session returns the settings of the client's sessions. Sessions through a pooler of transactions
// have none of them.
func (db *Client) session() []setting {
	// The server ends a statement a little before its caller leaves, so that the caller gets the
	// reason.
	timeout := strconv.FormatInt(max(db.config.Timeout*9/10, time.Millisecond).Milliseconds(), 10)
	return []setting{
		{name: "statement_timeout", value: timeout, atStart: true},
		{name: "idle_in_transaction_session_timeout", value: timeout, atStart: true},
		{name: "lock_timeout", value: "0"}, // statement_timeout bounds it
		{name: "idle_session_timeout", value: "0", since: 14},
		{name: "transaction_timeout", value: "0", since: 17},
		{name: "default_transaction_isolation", value: "read committed", atStart: true},
		{name: "plan_cache_mode", value: "force_generic_plan", atStart: true}, // to plan each call takes longer than the call
		// A plan lasts as long as the connection, and a sequential scan in it may have been chosen for an
		// empty table. If there is no other way, the server takes one nevertheless, at a cost so high
		// that it would compile the statement: hence jit.
		{name: "enable_seqscan", value: "off"},
		{name: "jit", value: "off"},
		{name: "search_path", value: "pg_catalog"},
		{name: "client_encoding", value: "UTF8"},
		{name: "extra_float_digits", value: "1"},
		{name: "plpgsql.extra_errors", value: "none"},
		{name: "plpgsql.extra_warnings", value: "none"},
	}
}

// set makes the client's settings of a session.
func (db *Client) set(ctx context.Context, c *pgx.Conn) error {
	var names, values []string
	var since []int
	for _, setting := range db.session() {
		names, values, since = append(names, setting.name), append(values, setting.value), append(since, setting.since*10000)
	}
	_, err := c.Exec(ctx, `SELECT set_config(s.name, s.value, false)
		FROM unnest($1::text[], $2::text[], $3::int[]) AS s (name, value, since)
		WHERE current_setting('server_version_num')::int >= s.since`, names, values, since)
	return err
}

// listenerSettings returns the settings of the connection that listens, which is idle.
func (db *Client) listenerSettings(of *pgx.ConnConfig) *pgx.ConnConfig {
	db.prepare(of)
	of.RuntimeParams["statement_timeout"] = "0"
	of.RuntimeParams["idle_session_timeout"] = "0"
	return of
}

// prepare makes the client's settings of a connection.
func (db *Client) prepare(c *pgx.ConnConfig) {
	c.ConnectTimeout = db.Unhurried() // a caller waits less, and a later one finds the connection
	if otherHosts(c) > 0 {
		c.ConnectTimeout = db.config.Timeout // for each server, so that a silent one does not delay the next
	}
	c.DialFunc = db.dialer(c.DialFunc)
	if c.RuntimeParams["application_name"] == "" {
		c.RuntimeParams["application_name"] = "lockkeeper"
	}
}

// otherHosts returns the number of further servers in the DSN, which are tried one by one.
func otherHosts(c *pgx.ConnConfig) int {
	all := map[string]bool{AddressOf(c): true}
	for _, other := range c.Fallbacks { // also the same server without TLS
		all[net.JoinHostPort(other.Host, strconv.Itoa(int(other.Port)))] = true
	}
	return len(all) - 1
}

// connect makes a connection beside the pool, in the same way: the pool's BeforeConnect may set the
// present password.
func (db *Client) connect(ctx context.Context, of *pgx.ConnConfig) (*pgx.Conn, error) {
	of = of.Copy()
	if before := db.pool.Config().BeforeConnect; before != nil {
		if err := before(ctx, of); err != nil {
			return nil, err
		}
	}
	return pgx.ConnectConfig(ctx, of)
}

// prepareConnection prepares a new connection, after the hook of the pool that the client has its
// settings of.
func (db *Client) prepareConnection(ctx context.Context, c *pgx.Conn) error {
	if after := db.config.Pool.AfterConnect; after != nil {
		if err := after(ctx, c); err != nil {
			return err
		}
	}
	if !db.config.Pooled {
		if err := db.set(ctx, c); err != nil {
			return err
		}
	}
	return db.config.CheckServer(ctx, c)
}
