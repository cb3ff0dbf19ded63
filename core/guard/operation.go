package guard

import (
	"crypto/hmac"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"fmt"

	"github.com/lockkeeper/lockkeeper/internal/naming"
	"github.com/lockkeeper/lockkeeper/internal/parts"
)

// Operation names something that must happen at most once.
type Operation struct {
	// Scope is whose operation it is: the authenticated subject. The same key in two scopes names
	// two operations, and a scope never receives the result of another one. The records of a scope are
	// bounded ([WithMaxPerScope], [WithMaxScopeBytes]). It may be empty where there is only one scope,
	// which then has no bound of its own.
	Scope string
	// Key is the client's name for the operation, 1 to 1,024 bytes.
	Key string
	// Fingerprint is what the request asks for, of any length; only a digest of it is kept. A key
	// that returns with another fingerprint is refused with [ErrMismatch].
	Fingerprint []byte
}

func (op Operation) check() error {
	if err := naming.CheckKey(op.Key); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidOperation, err)
	}
	if len(op.Scope) > naming.MaxKey {
		return fmt.Errorf("%w: scope has %d bytes, at most %d are allowed", ErrInvalidOperation, len(op.Scope), naming.MaxKey)
	}
	return nil
}

// Result is what a finished operation leaves for those who ask again.
type Result struct {
	// Status is the result in one number, such as an HTTP status, 0 to 9999. It is kept even if
	// Data is not.
	Status int
	// Data is the result in full.
	Data []byte
	// Attempt is the number of the attempt that it comes from. Complete ignores it.
	Attempt int
}

// digester turns what users send into names of fixed length: nothing that a client chose reaches
// the store as it is.
type digester struct{ secret []byte }

func (d digester) sum(text []byte) [sha256.Size]byte {
	if len(d.secret) == 0 {
		return sha256.Sum256(text)
	}
	h := hmac.New(sha256.New, d.secret)
	h.Write(text)
	return [sha256.Size]byte(h.Sum(nil))
}

// id is the identity of an operation: its guard, scope and key.
func (d digester) id(guard string, op Operation) string {
	var most [256]byte
	sum := d.sum(parts.Append(most[:0], "operation", guard, op.Scope, op.Key))
	return encode(sum[:16])
}

// scope stands for an operation's scope: it is the same for all operations of a scope of this guard.
func (d digester) scope(guard string, op Operation) string {
	if op.Scope == "" {
		return ""
	}
	var most [256]byte
	sum := d.sum(parts.Append(most[:0], "scope", guard, op.Scope))
	return encode(sum[:16])
}

func (d digester) fingerprint(op Operation) string {
	var most [256]byte
	sum := d.sum(append(parts.Append(most[:0], "fingerprint"), op.Fingerprint...))
	return encode(sum[:])
}

func newOwner() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	return encode(b[:])
}

// encode writes up to 32 bytes as text.
func encode(b []byte) string {
	var text [43]byte
	n := base64.RawURLEncoding.EncodedLen(len(b))
	base64.RawURLEncoding.Encode(text[:n], b)
	return string(text[:n])
}
