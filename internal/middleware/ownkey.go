package middleware

import (
	"context"
	"errors"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

const (
	noOwnKey  = "The request has no idempotency key."
	badOwnKey = "The idempotency key is not 1 to 255 printable ASCII characters."
)

// OwnKey returns the idempotency key that the application's function read, or the denial of a
// request without a proper one. It returns neither for a request that has none, and needs none.
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
