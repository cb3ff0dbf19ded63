// Package encoding encodes the answers that guards keep: numbers are varints, and texts have their
// length before them.
package encoding

import "encoding/binary"

// AppendText appends a text to an encoding.
func AppendText(b []byte, s string) []byte {
	return append(binary.AppendUvarint(b, uint64(len(s))), s...)
}

// Reader reads an encoding from its beginning. Its results have no meaning once it has failed.
type Reader struct {
	Left   []byte
	Failed bool
}

// Number reads a number.
func (r *Reader) Number() uint64 {
	v, n := binary.Uvarint(r.Left)
	if n <= 0 {
		r.Failed = true
		return 0
	}
	r.Left = r.Left[n:]
	return v
}

// Text reads a text.
func (r *Reader) Text() string {
	length := r.Number()
	if r.Failed || length > uint64(len(r.Left)) {
		r.Failed = true
		return ""
	}
	text := string(r.Left[:length])
	r.Left = r.Left[length:]
	return text
}
