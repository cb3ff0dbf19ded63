package fence

import (
	"fmt"
	"strconv"
	"strings"
)

// Token identifies one grant of a lock.
type Token struct {
	// Number grows with every exclusive grant of a key. It is positive.
	Number int64
	// Shared is set for a shared grant. Its number identifies the grant, and excludes no other.
	Shared bool
}

// sharedSuffix is the end of a shared token's text.
const sharedSuffix = ";shared"

// String returns the token as text, as it goes over the wire: its number in decimal, and for a
// shared one ";shared" after it. [ParseToken] reads it.
func (t Token) String() string {
	text := strconv.FormatInt(t.Number, 10)
	if t.Shared {
		text += sharedSuffix
	}
	return text
}

// ParseToken returns the token of a text that [Token.String] has written. A number has one
// spelling, without a sign, a space or a leading zero, so that the text is unambiguous.
//
// An error matches [ErrInvalid]: String never writes such a text, or its number is not positive or
// too large.
func ParseToken(text string) (Token, error) {
	digits, shared := strings.CutSuffix(text, sharedSuffix)
	number, err := strconv.ParseInt(digits, 10, 64)
	t := Token{Number: number, Shared: shared}
	if err != nil || number <= 0 || t.String() != text {
		return Token{}, fmt.Errorf("%w: not the text of a token", ErrInvalid)
	}
	return t, nil
}
