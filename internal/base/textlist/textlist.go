// Package textlist joins texts for hashing, so that different lists never give the same bytes.
package textlist

import "encoding/binary"

// Append appends texts to b, each behind its length.
func Append(b []byte, texts ...string) []byte {
	for _, s := range texts {
		b = binary.BigEndian.AppendUint64(b, uint64(len(s)))
		b = append(b, s...)
	}
	return b
}
