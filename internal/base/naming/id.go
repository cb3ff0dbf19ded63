package naming

import (
	"crypto/rand"
	"encoding/base64"
	"os"
	"strconv"
)

// NewID returns a random string of 22 characters: 128 bits, never returned again.
func NewID() string {
	var b [16]byte
	_, _ = rand.Read(b[:]) // never fails
	var text [22]byte
	base64.RawURLEncoding.Encode(text[:], b[:])
	return string(text[:]) // the only allocation
}

// maxHost bounds the host name, so that a long one does not make every request invalid.
const maxHost = 128

// Process returns a description of this process for people, its host's name and its ID, in less
// than 150 bytes.
func Process() string {
	host, _ := os.Hostname()
	return host[:min(len(host), maxHost)] + ":" + strconv.Itoa(os.Getpid())
}
