package statement

import (
	"errors"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// An error that ends the connection may come behind the commit of a statement, whatever its code and
// the language of the server's messages.
func TestErrorsOfStatements(t *testing.T) {
	for _, c := range []struct {
		answer      pgconn.PgError
		unconfirmed bool
	}{
		{pgconn.PgError{Severity: "ERROR", Code: "23505"}, false},
		{pgconn.PgError{Severity: "FEHLER", SeverityUnlocalized: "ERROR", Code: "55P03"}, false},
		{pgconn.PgError{Severity: "FATAL", SeverityUnlocalized: "FATAL", Code: "57P01"}, true},
		{pgconn.PgError{Severity: "FATAL", Code: "08P01", Message: "server conn crashed?"}, true},
		{pgconn.PgError{Severity: "ERROR", Code: "42883"}, false},
	} {
		for _, writes := range []bool{false, true} {
			err := Explain(&c.answer, writes)
			if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrUnconfirmed) != (c.unconfirmed && writes) {
				t.Errorf("writes: %v, %+v: %v", writes, c.answer, err)
			}
		}
	}
}

// What PgBouncer says is an outage, unless it is about what the client has sent.
func TestViolationsOfTheProtocol(t *testing.T) {
	for text, misuse := range map[string]bool{
		"server login has been failing, try again later (server_login_retry)": false,
		"server conn crashed?":                             false,
		"query_wait_timeout":                               false,
		"unsupported startup parameter: statement_timeout": true,
		"prepared statement \"lrupsc_1_0\" does not exist": true,
	} {
		err := Explain(&pgconn.PgError{Severity: "FATAL", Code: "08P01", Message: text}, false)
		if errors.Is(err, store.ErrMisconfigured) != misuse || store.Down(err) == misuse {
			t.Errorf("%q: %v", text, err)
		}
	}
}
