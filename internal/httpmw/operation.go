package httpmw

import (
	"errors"
	"net/http"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
)

// operation returns the operation that a request asks for, or why the request is refused. It has no
// key if the request is not guarded.
func (x *guardExchange[C]) operation() (op guard.Operation, denial *policy.Denial) {
	key, denial := x.key()
	if denial != nil || !x.m.decider.Guards(key) {
		return op, denial
	}
	scope, err := x.m.scope.Of(x.c)
	if err != nil {
		d := x.m.decider.NoKey(x.request.Context(), err)
		return op, &d
	}
	fingerprint, denial := x.fingerprint()
	if denial != nil {
		return op, denial
	}
	return x.m.decider.Operation(scope, key, fingerprint), nil
}

// key returns the key of a request, or the denial of one without a proper key. It returns neither
// for a request that has none, and needs none. The application's own function can read the body.
func (x *guardExchange[C]) key() (string, *policy.Denial) {
	required := x.m.settings.Required
	if x.hooks.Key == nil {
		return middleware.IdempotencyKey(x.request.Header.Values(keyHeader), required)
	}
	if denial := x.readBody(); denial != nil {
		return "", denial
	}
	var (
		key string
		err error
	)
	show(x.request, &x.body, func(r *http.Request) {
		defer x.WithRequest(x.c, x.request)
		key, err = x.hooks.Key(x.WithRequest(x.c, r))
	})
	return x.m.decider.OwnKey(x.request.Context(), key, err, required)
}

// passed returns the request of a handler that runs unguarded, with its body again if that has been
// read.
func (x *guardExchange[C]) passed() *http.Request {
	if x.hooks.Key == nil {
		return x.request
	}
	return withBody(x.request.Context(), x.request, &x.body)
}

// fingerprint returns the fingerprint of a request whose body is read now, unless its key was in
// it.
func (x *guardExchange[C]) fingerprint() ([]byte, *policy.Denial) {
	if x.hooks.Key == nil {
		if denial := x.readBody(); denial != nil {
			return nil, denial
		}
	}
	sum, err := fingerprint(x.request, &x.body, &x.m.settings)
	if err != nil {
		return nil, x.unreadable(err)
	}
	return sum, nil
}

func (x *guardExchange[C]) readBody() *policy.Denial {
	err := x.body.read(x.request, x.m.settings.MaxBody)
	if err == nil {
		return nil
	}
	if errors.Is(err, errNoRoom) && x.request.ProtoMajor == 1 {
		// Or the server would read the rest of the body first, however slowly it comes.
		x.Header(x.c).Set("Connection", "close")
	}
	return x.unreadable(err)
}

// unreadable is the denial for a body that cannot be read, or not by the application's function.
func (x *guardExchange[C]) unreadable(err error) *policy.Denial {
	var tooLarge *http.MaxBytesError
	switch {
	case errors.Is(err, errNoRoom):
		return &policy.Denial{Reason: policy.ReducedCapacity, RetryAfter: time.Second, Err: err}
	case errors.Is(err, errBodyTooLarge), errors.As(err, &tooLarge),
		x.errors != nil && x.errors.StatusOf(err) == http.StatusRequestEntityTooLarge:
		return &policy.Denial{Reason: policy.BodyTooLarge}
	default:
		return &policy.Denial{Reason: policy.BodyUnreadable, Err: err}
	}
}
