// Package keys is the common part of the key functions of all frameworks. Requests of the same
// subject have the same key in each of them, so that handlers of several frameworks can share
// limits, locks and records.
package keys

import (
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

// Global is the key of every request under a limit for all.
const Global = "global"

// NonEmpty returns a key, or policy.ErrNoKey for an empty one.
func NonEmpty(value string) (string, error) {
	if value == "" {
		return "", policy.ErrNoKey
	}
	return value, nil
}

// Only returns the only one of several values, or policy.ErrNoKey: of two values, a proxy and the
// server may use different ones.
func Only(values []string) (string, error) {
	if len(values) != 1 {
		return "", policy.ErrNoKey
	}
	return NonEmpty(values[0])
}

// OfContext returns a function for the key of a value that other middleware put into a context
// under contextKey: a string, an integer or a fmt.Stringer. The zero value of its type, and an
// empty text, are no subject: the application did not provide one. The name is the framework's
// package.
func OfContext(name string, contextKey any) func(value any) (string, error) {
	missing := NotProvided("%s: ByContext: no value, or an empty one, for %#v in the context; the middleware that provides it must run before this one, and refuse requests without it", name, contextKey)
	return func(value any) (string, error) {
		key, ok := textOf(value)
		switch {
		case !ok:
			return "", Unusable("%s: ByContext: the value for %#v is a %T, want a string, an integer or a fmt.Stringer", name, contextKey, value)
		case key == "":
			return "", missing
		}
		return key, nil
	}
}

// textOf returns the text of a value, empty for nil and for zero values. It returns false for a
// type without a text.
func textOf(value any) (text string, ok bool) {
	switch v := value.(type) {
	case nil:
		return "", true
	case string:
		return v, true
	case fmt.Stringer:
		if reflect.ValueOf(v).IsZero() { // such as a nil pointer, which String would dereference
			return "", true
		}
		return v.String(), true
	case int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
		if reflect.ValueOf(v).IsZero() {
			return "", true
		}
		return fmt.Sprint(v), true
	}
	return "", false
}

// NotProvided returns an error that matches policy.ErrNotProvided and names the missing value.
func NotProvided(format string, args ...any) error {
	return fmt.Errorf("%w: %s", policy.ErrNotProvided, fmt.Sprintf(format, args...))
}

var errUnusable = fmt.Errorf("%w in a usable form", policy.ErrNotProvided)

// Unusable is NotProvided for a value in a form that is no key. FirstOf does not skip it, since the
// next key would hide the mistake.
func Unusable(format string, args ...any) error {
	return fmt.Errorf("%w: %s", errUnusable, fmt.Sprintf(format, args...))
}

// Join returns a function for several keys together. Each part has its length before it, so that no
// two lists of keys are joined to the same text. It panics, as a function of the package called
// name, if there are no keys or if one of them is nil.
func Join[K ~func(R) (string, error), R any](name string, parts []K) K {
	check(name+": Join", parts)
	return func(r R) (string, error) {
		var b strings.Builder
		for _, part := range parts {
			value, err := resolve(part, r)
			if err != nil {
				return "", err
			}
			b.WriteString(strconv.Itoa(len(value)))
			b.WriteByte(':')
			b.WriteString(value)
		}
		return b.String(), nil
	}
}

// FirstOf returns a function for the first key of several that a request has. Its position is part
// of the key, so that a client that chooses one value cannot pass for another client with the same
// value in another place. For a request without any, the error matches policy.ErrNoKey if the
// client could have sent one of them. It panics as Join does.
func FirstOf[K ~func(R) (string, error), R any](name string, choices []K) K {
	check(name+": FirstOf", choices)
	return func(r R) (string, error) {
		var unsent, missing error
		for i, choice := range choices {
			value, err := resolve(choice, r)
			switch {
			case err == nil:
				return strconv.Itoa(i) + ":" + value, nil
			case errors.Is(err, policy.ErrNoKey):
				unsent = err
			case errors.Is(err, policy.ErrNotProvided) && !errors.Is(err, errUnusable):
				if missing == nil {
					missing = err
				}
			default:
				return "", err
			}
		}
		if unsent != nil {
			return "", unsent
		}
		return "", missing
	}
}

func check[K ~func(R) (string, error), R any](name string, keys []K) {
	if len(keys) == 0 {
		panic(name + ": no keys")
	}
	for _, key := range keys {
		if key == nil {
			panic(name + ": nil key")
		}
	}
}

// resolve calls a user's function, for which an empty key is none.
func resolve[K ~func(R) (string, error), R any](key K, r R) (string, error) {
	value, err := key(r)
	if err != nil {
		return "", err
	}
	return NonEmpty(value)
}
