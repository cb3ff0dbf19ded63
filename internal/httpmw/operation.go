package httpmw

import (
	"net/http"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/middleware"
)

// operation returns the operation of a request, or its denial. The operation has no key if the
// request is not guarded.
func (x *guardExchange[C]) operation() (op guard.Operation, denial *policy.Denial) {
	key, denial := x.key()
	if denial != nil || !x.m.decider.Guards(key) {
		return op, denial
	}
	scope, err := x.scopeOf()
	if err != nil {
		d := x.m.decider.NoKey(x.request.Context(), err)
		return op, &d
	}
	if err := x.body.of(scope); err != nil {
		return op, x.denial(err)
	}
	fingerprint, denial := x.fingerprint()
	if denial != nil {
		return op, denial
	}
	return x.m.decider.Operation(scope, key, fingerprint), nil
}

// key returns the key of a request, or a denial if it is missing or malformed. It returns neither
// if there is no key and none is required. The application's own function can read the body.
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
	x.show(func() { key, err = x.hooks.Key(x.c) })
	return x.m.decider.OwnKey(x.request.Context(), key, err, required)
}

// scopeOf returns the scope of a request, whose body may have been read for its key.
func (x *guardExchange[C]) scopeOf() (scope string, err error) {
	if x.hooks.Key == nil {
		return x.keyOf(x.c, x.m.scope.Of)
	}
	x.show(func() { scope, err = x.m.scope.Of(x.c) })
	return scope, err
}

// show calls a function that uses x.c, with a request that has a copy of the body.
func (x *guardExchange[C]) show(f func()) {
	show(x.request, &x.body, func(r *http.Request) {
		c := x.c
		defer func() { x.c = x.WithRequest(c, x.request) }()
		x.c = x.WithRequest(c, r)
		f()
	})
}

// passed returns the request of a handler that runs unguarded. If its body was read, it can be read
// again.
func (x *guardExchange[C]) passed() *http.Request {
	if x.hooks.Key == nil {
		return x.request
	}
	return withBody(x.request.Context(), x.request, &x.body)
}

// fingerprint returns the fingerprint of a request. It reads the body, unless the key function has.
func (x *guardExchange[C]) fingerprint() ([]byte, *policy.Denial) {
	if x.hooks.Key == nil {
		if denial := x.readBody(); denial != nil {
			return nil, denial
		}
	}
	sum, err := fingerprint(x.request, &x.body, &x.m.settings)
	if err != nil {
		return nil, x.denial(err)
	}
	return sum, nil
}

func (x *guardExchange[C]) readBody() *policy.Denial {
	err := x.body.read(x.request, x.m.settings.MaxBody)
	if err == nil {
		return nil
	}
	return x.denial(err)
}

// denial returns the denial for an error of a body, or of the application's fingerprint of it.
func (x *guardExchange[C]) denial(err error) *policy.Denial {
	d := x.unreadable(x.c, err)
	return &d
}
