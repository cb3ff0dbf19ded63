package httpguard

import (
	"errors"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
)

// key returns the key of a request, or the denial of one without a proper key. It returns neither for a
// request that has none, and needs none. The application's own function is shown the body. The answer has
// the header h.
func (m *Middleware) key(h http.Header, r *http.Request, b *body, x Exchange) (string, *policy.Denial) {
	if m.settings.Key == nil {
		return middleware.IdempotencyKey(r.Header.Values(keyHeader), m.settings.Required)
	}
	if denial := m.read(h, r, b, x); denial != nil {
		return "", denial
	}
	var (
		key string
		err error
	)
	show(r, b, func(r *http.Request) { key, err = x.Key(r) })
	return m.decider.OwnKey(r.Context(), key, err, m.settings.Required)
}

// fingerprint returns the fingerprint of a request whose body is read now, unless its key was in it.
func (m *Middleware) fingerprint(h http.Header, r *http.Request, b *body, x Exchange) ([]byte, *policy.Denial) {
	if m.settings.Key == nil {
		if denial := m.read(h, r, b, x); denial != nil {
			return nil, denial
		}
	}
	sum, err := fingerprint(r, b, &m.settings)
	if err != nil {
		return nil, unreadable(err, x)
	}
	return sum, nil
}

func (m *Middleware) read(h http.Header, r *http.Request, b *body, x Exchange) *policy.Denial {
	err := b.read(r, m.settings.MaxBody)
	if err == nil {
		return nil
	}
	if errors.Is(err, errNoRoom) && r.ProtoMajor == 1 {
		// Or the server would read the rest of the body first, however slowly it comes.
		h.Set("Connection", "close")
	}
	return unreadable(err, x)
}

// unreadable is the denial for a body that cannot be read, or not by the application's function.
func unreadable(err error, x Exchange) *policy.Denial {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, errNoRoom):
		return &policy.Denial{Reason: policy.ReducedCapacity, RetryAfter: time.Second, Err: err}
	case errors.Is(err, errBodyTooLarge), errors.As(err, &tooLarge), x.StatusOf(err) == http.StatusRequestEntityTooLarge:
		return &policy.Denial{Reason: policy.BodyTooLarge}
	default:
		return &policy.Denial{Reason: policy.BodyUnreadable, Err: err}
	}
}
