package guard

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/base/textlist"
)

// Operation identifies an operation that must happen at most once.
type Operation struct {
	// Scope is the owner of the operation: the authenticated subject. The same key in two scopes
	// identifies two operations, and a scope never receives the result of another one. The records
	// of a scope are limited ([WithMaxPerScope], [WithMaxScopeBytes]). It may be empty if there is
	// only one scope, which then has no limit of its own.
	Scope string
	// Key is the client's name for the operation, 1 to 1,024 bytes.
	Key string
	// Fingerprint is the content of the request, of any length; only a digest of it is kept. A
	// repeat of the key with another fingerprint is refused with [ErrMismatch].
	Fingerprint []byte
	// Retention is how long its record is kept: 1 s to 366 days and no less than the lease. 0 stands
	// for [WithRetention].
	Retention time.Duration
	// Wait is how long [Guard.Begin] waits for the end of an attempt in flight: at most an hour.
	// Without it, Begin returns at once.
	Wait time.Duration
	// MaxWaiting is how many calls in this process may wait for the operation at a time: 16 if it is
	// 0.
	MaxWaiting int
}

const defaultMaxWaiting = 16

func (op Operation) check(c *config) error {
	if err := naming.CheckKey(op.Key); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidOperation, err)
	}
	if len(op.Scope) > naming.MaxKey {
		return fmt.Errorf("%w: scope has %d bytes, at most %d are allowed", ErrInvalidOperation, len(op.Scope), naming.MaxKey)
	}
	switch {
	case op.Retention != 0 && (op.Retention < max(c.ttl, minRetention) || op.Retention > maxRetention):
		return fmt.Errorf("%w: a retention of %v is not between %v and 366 days", ErrInvalidOperation, op.Retention, max(c.ttl, minRetention))
	case op.Wait < 0 || op.Wait > time.Hour:
		return fmt.Errorf("%w: a wait of %v is not between 0 and 1h", ErrInvalidOperation, op.Wait)
	case op.MaxWaiting < 0:
		return fmt.Errorf("%w: a maximum of %d waiters is negative", ErrInvalidOperation, op.MaxWaiting)
	}
	return nil
}

// Result is the result of a finished operation, for repeats.
type Result struct {
	// Status is a number such as an HTTP status, 0 to 9999. It is kept even if Data is not.
	Status int
	// Data is the full result.
	Data []byte
	// Attempt is the number of the attempt that produced it. Complete ignores it.
	Attempt int
}

// digester hashes texts of clients to a fixed length: none of them reaches the store.
type digester struct{ secret []byte }

func (d digester) sum(text []byte) [sha256.Size]byte {
	if len(d.secret) == 0 {
		return sha256.Sum256(text)
	}
	h := hmac.New(sha256.New, d.secret)
	h.Write([]byte(string(text))) // a copy, so that the arrays of callers stay on the stack
	return [sha256.Size]byte(h.Sum(nil))
}

// name returns two hashes: of an operation's scope, the same for all operations of the scope in
// this guard and empty if there is none, and of its guard, scope and key. They are parts of one
// string, which saves an allocation.
func (d digester) name(guard string, op Operation) (scope, id string) {
	var most [256]byte
	var text [2 * idSize]byte
	sum := d.sum(textlist.Append(most[:0], "operation", guard, op.Scope, op.Key))
	base64.RawURLEncoding.Encode(text[:idSize], sum[:16])
	if op.Scope == "" {
		return "", string(text[:idSize])
	}
	sum = d.sum(textlist.Append(most[:0], "scope", guard, op.Scope))
	base64.RawURLEncoding.Encode(text[idSize:], sum[:16])
	both := string(text[:])
	return both[idSize:], both[:idSize]
}

func (d digester) fingerprint(op Operation) string {
	var most [256]byte
	sum := d.sum(append(textlist.Append(most[:0], "fingerprint"), op.Fingerprint...))
	return encode(sum[:])
}

// encode encodes up to 32 bytes as text.
func encode(b []byte) string {
	var text [43]byte
	n := base64.RawURLEncoding.EncodedLen(len(b))
	base64.RawURLEncoding.Encode(text[:n], b)
	return string(text[:n])
}
