// Package taskid names delayed tasks, for queues and for operators' tools.
package taskid

import (
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
)

// Of returns the ID of a task: a digest of its queue, its key and the ID of its put, of 22
// characters of base64url. Guards have it as a key, so it must not change.
func Of(queue, key, put string) string {
	text := binary.BigEndian.AppendUint64(nil, uint64(len(queue)))
	text = append(append(text, queue...), put...) // of fixed size
	sum := sha256.Sum256(append(text, key...))
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}
