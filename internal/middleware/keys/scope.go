package keys

// Scope makes the scopes of a framework with requests of type R. The zero value is none.
type Scope[R any] struct {
	of func(R) (string, error)
}

// ScopeBy scopes by a key that stands for a subject. It panics, as a function of the package called
// name, if the key is nil.
func ScopeBy[K ~func(R) (string, error), R any](name string, key K) Scope[R] {
	if key == nil {
		panic(name + ": ScopeBy: nil key")
	}
	return Scope[R]{func(r R) (string, error) {
		subject, err := resolve(key, r)
		return "by:" + subject, err
	}}
}

// Unscoped puts all requests into the empty scope, which no subject has, and which guards do not
// bound.
func Unscoped[R any]() Scope[R] {
	return Scope[R]{func(R) (string, error) { return "", nil }}
}

// IsZero reports whether the scope is the zero value.
func (s Scope[R]) IsZero() bool { return s.of == nil }

// Of returns the scope of a request.
func (s Scope[R]) Of(r R) (string, error) { return s.of(r) }
