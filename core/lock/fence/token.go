package fence

import "strconv"

// Token identifies one grant of a lock.
type Token struct {
	// Number grows with every exclusive grant of a key. It is positive.
	Number int64
	// Shared says that the grant was a shared one: its number tells it from others, and no more.
	Shared bool
}

// String is the number in decimal.
func (t Token) String() string { return strconv.FormatInt(t.Number, 10) }
