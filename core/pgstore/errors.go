package pgstore

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// settings are the codes, or their beginnings, by which a server says that it, or the client, is
// set up wrongly. It has carried nothing out. The advice, if there is one, is what to do.
var settings = []struct {
	code   string
	cause  store.Cause
	advice string
}{
	{"28", store.Authentication, ""},
	{"42501", store.Permission, "grant the store's user what pgstore.Grants lists"},
	{"25006", store.ReadOnly, "connect to the primary, and have default_transaction_read_only off"},
	{"08P01", store.WrongServer, poolerAdvice},
	{"26000", store.WrongServer, poolerAdvice},
	{"42P05", store.WrongServer, poolerAdvice},
	{"3D000", store.WrongServer, "create the database, or name another one in the DSN"},
	{"3F000", store.WrongServer, migrateAdvice},
	{"42P01", store.WrongServer, migrateAdvice},
	{"42883", store.WrongServer, migrateAdvice},
	{"42703", store.WrongServer, migrateAdvice},
}

const (
	migrateAdvice = "run pgstore.Migrate of this release, with the store's schema"
	poolerAdvice  = "through a pooler of transactions, use pgstore.WithTransactionPooler"
)

// explain returns an error of the client as one of a store: unavailable, with what else is known of
// it. It is unconfirmed if the statement may have been carried out.
func explain(err error, writes bool) error {
	if err == nil || errors.Is(err, store.ErrUnavailable) {
		return err
	}
	var answer *pgconn.PgError
	if errors.As(err, &answer) {
		// An error of a statement has rolled it back. One that ends the connection may have come behind
		// the commit.
		if writes = writes && !endsStatement(answer); writes {
			return unconfirmed(err)
		}
		for _, s := range settings {
			switch {
			case !strings.HasPrefix(answer.Code, s.code):
			case s.advice == "":
				return store.Misconfigured(s.cause, fmt.Errorf("postgresql: %w", err))
			default:
				return store.Misconfigured(s.cause, fmt.Errorf("postgresql: %w: %s", err, s.advice))
			}
		}
		if isFull(answer) {
			return fmt.Errorf("%w: postgresql: %w", store.ErrFull, err)
		}
	}
	if writes && !pgconn.SafeToRetry(err) {
		return unconfirmed(err)
	}
	return fmt.Errorf("%w: postgresql: %w", store.ErrUnavailable, err)
}

func unconfirmed(err error) error { return fmt.Errorf("%w: postgresql: %w", store.ErrUnconfirmed, err) }

// isFull reports whether the server has no room: on its disk, or in its memory.
func isFull(answer *pgconn.PgError) bool { return answer.Code == "53100" || answer.Code == "53200" }

func isMisconfigured(err error) bool { return errors.Is(err, store.ErrMisconfigured) }

// wasRolledBack reports whether the server has rolled a statement back for the sake of another
// transaction, so that it may be repeated.
func wasRolledBack(err error) bool { return isCode(err, "40001", "40P01") }

// endsStatement reports whether an error ends a statement, and not the connection. Its Severity is in
// the language of the server's messages.
func endsStatement(answer *pgconn.PgError) bool {
	return cmp.Or(answer.SeverityUnlocalized, answer.Severity) == "ERROR"
}

// isReadOnly reports whether the server said that it takes no writes.
func isReadOnly(err error) bool { return isCode(err, "25006") }

// isCode reports whether the server replied with an error of one of these codes.
func isCode(err error, codes ...string) bool {
	if err == nil { // of most calls: what follows allocates
		return false
	}
	var answer *pgconn.PgError
	return errors.As(err, &answer) && slices.Contains(codes, answer.Code)
}

// wrongServer returns an error of a server that the store does not work with.
func wrongServer(format string, args ...any) error {
	return store.Misconfigured(store.WrongServer, fmt.Errorf("pgstore: "+format, args...))
}

// isTimeout reports whether there was no reply in time.
func isTimeout(err error) bool {
	return errors.Is(err, context.DeadlineExceeded) || pgconn.Timeout(err)
}
