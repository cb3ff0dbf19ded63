package middleware

import (
	"context"
	"errors"

	"github.com/dunglas/httpsfv"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

// maxKey is the longest idempotency key, in characters.
const maxKey = 255

const (
	noKey       = "Send an Idempotency-Key."
	severalKeys = "The request has several Idempotency-Key fields."
	badKey      = "The Idempotency-Key is not 1 to 255 printable ASCII characters; one with a space, a comma or a quotation mark must be quoted."
)

// IdempotencyKey returns the key in the values of a request's Idempotency-Key field
// (draft-ietf-httpapi-idempotency-key-header), or a denial if it is missing or malformed. It
// returns neither if there is no key and none is required.
//
// The field is a structured-field String, so a key is quoted; most clients send it bare, which
// spells the same key. A bare key has no space, quote or comma, since proxies join two fields into
// one with a comma.
func IdempotencyKey(values []string, required bool) (string, *policy.Denial) {
	switch {
	case len(values) == 0 && required:
		return "", &policy.Denial{Reason: policy.KeyMissing, Detail: noKey}
	case len(values) == 0:
		return "", nil
	case len(values) > 1:
		return "", &policy.Denial{Reason: policy.KeyMalformed, Detail: severalKeys}
	}
	key := values[0]
	if len(key) > 0 && key[0] == '"' {
		item, err := httpsfv.UnmarshalItem(values)
		if err != nil || len(item.Params.Names()) > 0 {
			return "", malformed()
		}
		quoted, ok := item.Value.(string)
		if !ok {
			return "", malformed()
		}
		key = quoted
	} else {
		for i := range len(key) {
			if key[i] <= ' ' || key[i] == '"' || key[i] == ',' {
				return "", malformed()
			}
		}
	}
	return CheckIdempotencyKey(key)
}

// CheckIdempotencyKey returns a key that did not come in a field, or a denial if it is malformed.
func CheckIdempotencyKey(key string) (string, *policy.Denial) {
	if key == "" || len(key) > maxKey {
		return "", malformed()
	}
	for i := range len(key) {
		if key[i] < 0x20 || key[i] > 0x7e {
			return "", malformed()
		}
	}
	return key, nil
}

func malformed() *policy.Denial {
	return &policy.Denial{Reason: policy.KeyMalformed, Detail: badKey}
}

const (
	noOwnKey  = "The request has no idempotency key."
	badOwnKey = "The idempotency key is not 1 to 255 printable ASCII characters."
)

// OwnKey returns the idempotency key that the application's function read, or a denial if it is
// missing or malformed. It returns neither if there is no key and none is required.
func (w *Watch) OwnKey(ctx context.Context, key string, err error, required bool) (string, *policy.Denial) {
	none := err == nil && key == "" || errors.Is(err, policy.ErrNoKey)
	switch {
	case none && required:
		return "", &policy.Denial{Reason: policy.KeyMissing, Detail: noOwnKey}
	case none:
		return "", nil
	case err != nil:
		d := w.NoKey(ctx, err)
		return "", &d
	}
	key, denial := CheckIdempotencyKey(key)
	if denial != nil {
		denial.Detail = badOwnKey
	}
	return key, denial
}
