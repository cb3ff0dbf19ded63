package statement

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// meaning is the meaning of an error of the server.
type meaning int

const (
	outage        meaning = iota // the server cannot work now
	disconnected                 // the connection has ended; the next one tells whether the server works
	overloaded                   // the call has reached a bound, and the server works
	full                         // the server has no room: on its disk, or in its memory
	misconfigured                // the server, or the client, is set up wrongly; nothing was carried out
)

// answer is an error of the server, and its meaning.
type answer struct {
	code   string
	means  meaning
	cause  store.Cause // of a misconfiguration
	advice string      // what to do; "" if the server's text says enough
}

// answers are the meanings of the server's errors, by the beginnings of their codes. The first
// entry that fits counts. An error of a statement without an entry does not end by itself, and is
// no outage either.
var answers = []answer{
	{"28", misconfigured, store.Authentication, ""},
	{"42501", misconfigured, store.Permission, "grant the store's user what pgstore.Grants lists"},
	{readOnly, misconfigured, store.ReadOnly, readOnlyAdvice},
	{"26000", misconfigured, store.WrongServer, poolerAdvice},
	{"42P05", misconfigured, store.WrongServer, poolerAdvice},
	{"3D000", misconfigured, store.WrongServer, "create the database, or name another one in the DSN"},
	{"3F000", misconfigured, store.WrongServer, MigrateAdvice},
	{"42P01", misconfigured, store.WrongServer, MigrateAdvice},
	{"42883", misconfigured, store.WrongServer, MigrateAdvice},
	{"42703", misconfigured, store.WrongServer, MigrateAdvice},
	{"53100", full, "", ""},
	{"53200", full, "", ""},
	{"40", overloaded, "", ""},             // rolled back for the sake of others, again and again
	{LockNotAvailable, overloaded, "", ""}, // lock_timeout
	{"57014", overloaded, "", ""},          // statement_timeout
	{"25P03", overloaded, "", ""},          // idle_in_transaction_session_timeout
	{"25P04", overloaded, "", ""},          // transaction_timeout
	{"57P01", disconnected, "", ""},
	{"57P02", disconnected, "", ""},
	{"57P05", disconnected, "", ""},
	{"08", outage, "", ""},
	{"53", outage, "", ""}, // 53300: it takes no more connections
	{"57", outage, "", ""}, // 57P03: it starts, or shuts down
	{"58", outage, "", ""}, // of its machine
}

// meaningOf returns the meaning of an error of the server.
func meaningOf(err *pgconn.PgError) answer {
	if err.Code == "08P01" && isMisuse(err) {
		return answer{err.Code, misconfigured, store.WrongServer, poolerAdvice}
	}
	for _, a := range answers {
		if strings.HasPrefix(err.Code, a.code) {
			return a
		}
	}
	if EndsStatement(err) {
		return answer{err.Code, misconfigured, store.OtherCause, ""}
	}
	return answer{code: err.Code, means: outage}
}

// isMisuse reports whether a violation of the protocol is the client's. PgBouncer has the same code
// for all errors of its own, also if the server behind it is down.
func isMisuse(err *pgconn.PgError) bool {
	return EndsStatement(err) ||
		strings.Contains(err.Message, "prepared statement") || strings.Contains(err.Message, "startup parameter")
}

// MigrateAdvice is the advice for a schema that is missing, or old.
const MigrateAdvice = "run pgstore.Migrate of this release, with the store's schema"

const (
	readOnlyAdvice = "connect to the primary, and have default_transaction_read_only off"
	poolerAdvice   = "through a pooler of transactions, use pgstore.WithTransactionPooler"
)

// Explain returns an error of pgx as one of package store: unavailable, with its cause if that is
// known. It is unconfirmed if the statement may have been carried out.
func Explain(err error, writes bool) error {
	if err == nil || errors.Is(err, store.ErrUnavailable) {
		return err
	}
	var reply *pgconn.PgError
	if errors.As(err, &reply) {
		// An error of a statement has rolled it back. An error that ends the connection may have come
		// after the commit.
		writes = writes && !EndsStatement(reply)
		switch a := meaningOf(reply); {
		case a.means == overloaded:
			return overload(err, writes)
		case writes:
			return unconfirmed(err)
		case a.means == full:
			return fmt.Errorf("%w: postgresql: %w", store.ErrFull, err)
		case a.means == misconfigured && a.advice == "":
			return store.Misconfigured(a.cause, fmt.Errorf("postgresql: %w", err))
		case a.means == misconfigured:
			return store.Misconfigured(a.cause, fmt.Errorf("postgresql: %w: %s", err, a.advice))
		}
	}
	if writes && !pgconn.SafeToRetry(err) {
		return unconfirmed(err)
	}
	return fmt.Errorf("%w: postgresql: %w", store.ErrUnavailable, err)
}

// Explain is the function of this name, with the client's record of the server: if the server has
// taken writes, and is read-only now, it has been demoted, or is being moved.
func (db *Client) Explain(err error, writes bool) error {
	if IsReadOnly(err) && db.written.Load() {
		return store.Unavailable(store.ReadOnly, fmt.Sprintf("postgresql: %v: it took writes before", err))
	}
	return Explain(err, writes)
}

// explainLate explains the error of a call that began then and got no reply in time. If the server
// has replied to other calls since then, it is overloaded, and not down.
func (db *Client) explainLate(err error, began time.Time, writes bool) error {
	explained := db.Explain(err, writes)
	if isTimeout(err) && store.Down(explained) && db.repliedSince(began) {
		return overload(err, errors.Is(explained, store.ErrUnconfirmed))
	}
	return explained
}

// overload returns the error of a call that has reached a bound.
func overload(err error, maybe bool) error {
	if maybe {
		return fmt.Errorf("%w: %w", store.ErrOverloaded, unconfirmed(err))
	}
	return fmt.Errorf("%w: postgresql: %w", store.ErrOverloaded, err)
}

func unconfirmed(err error) error { return fmt.Errorf("%w: postgresql: %w", store.ErrUnconfirmed, err) }

func isMisconfigured(err error) bool { return errors.Is(err, store.ErrMisconfigured) }

// WasRolledBack reports whether the server has rolled a statement back for the sake of another
// transaction, so that it may be repeated.
func WasRolledBack(err error) bool { return IsCode(err, "40001", "40P01") }

// EndsStatement reports whether an error ends a statement, and not the connection. Its Severity is
// in the language of the server's messages.
func EndsStatement(reply *pgconn.PgError) bool {
	return cmp.Or(reply.SeverityUnlocalized, reply.Severity) == "ERROR"
}

const (
	// readOnly is the code of the error of a server, or a transaction, that takes no writes.
	readOnly = "25006"
	// LockNotAvailable is the code of the error of a statement that has waited for a lock in vain.
	LockNotAvailable = "55P03"
)

// IsReadOnly reports whether a server, or a transaction, takes no writes.
func IsReadOnly(err error) bool { return IsCode(err, readOnly) }

// IsCode reports whether the server replied with an error of one of these codes.
func IsCode(err error, codes ...string) bool {
	if err == nil { // as for most calls: the rest allocates
		return false
	}
	var reply *pgconn.PgError
	return errors.As(err, &reply) && slices.Contains(codes, reply.Code)
}

// WrongServer returns an error of a server that the store does not work with.
func WrongServer(format string, args ...any) error {
	return store.Misconfigured(store.WrongServer, fmt.Errorf("pgstore: "+format, args...))
}

// isTimeout reports whether there was no reply in time.
func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err)
}
