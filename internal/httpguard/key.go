package httpguard

import (
	"errors"
	"net/http"

	"github.com/dunglas/httpsfv"
)

// headerName is that of draft-ietf-httpapi-idempotency-key-header.
const headerName = "Idempotency-Key"

// maxKey is the longest key, in characters.
const maxKey = 255

var (
	errNoHeader    = errors.New("the request has no Idempotency-Key")
	errSeveralKeys = errors.New("the request has several Idempotency-Key fields")
	errBadKey      = errors.New("the Idempotency-Key is not 1 to 255 printable ASCII characters, quoted or bare")
)

// readKey returns the request's idempotency key. The field is a structured-field String, so a key
// is quoted; most clients send it bare, which spells the same key. A bare key has no space, quote or
// comma: a comma is how proxies join two fields into one.
func readKey(h http.Header) (string, error) {
	values := h.Values(headerName)
	switch len(values) {
	case 0:
		return "", errNoHeader
	case 1:
	default:
		return "", errSeveralKeys
	}
	key := values[0]
	if len(key) > 0 && key[0] == '"' {
		item, err := httpsfv.UnmarshalItem(values)
		if err != nil {
			return "", errBadKey
		}
		quoted, ok := item.Value.(string)
		if !ok || len(item.Params.Names()) > 0 {
			return "", errBadKey
		}
		key = quoted
	} else {
		for i := range len(key) {
			if key[i] <= ' ' || key[i] == '"' || key[i] == ',' {
				return "", errBadKey
			}
		}
	}
	if key == "" || len(key) > maxKey {
		return "", errBadKey
	}
	for i := range len(key) {
		if key[i] < 0x20 || key[i] > 0x7e {
			return "", errBadKey
		}
	}
	return key, nil
}
