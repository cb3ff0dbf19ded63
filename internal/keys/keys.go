// Package keys is what the key functions of all frameworks have in common. Requests of the same
// subject have the same key in each of them, so that handlers of several frameworks can share
// limits, locks and records.
package keys

import (
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

// Global is the key of every request that is keyed by nothing.
const Global = "global"

// NonEmpty returns a key, or policy.ErrNoKey for an empty one.
func NonEmpty(value string) (string, error) {
	if value == "" {
		return "", policy.ErrNoKey
	}
	return value, nil
}

// Only returns the only one of several values, or policy.ErrNoKey: where there are two, a proxy and
// the server may each mean another.
func Only(values []string) (string, error) {
	if len(values) != 1 {
		return "", policy.ErrNoKey
	}
	return NonEmpty(values[0])
}

// OfValue is the key for a value that some middleware put into a context: a string, an integer or a
// fmt.Stringer. The name is that of the framework's package.
func OfValue(name string, value any) (string, error) {
	switch v := value.(type) {
	case nil:
		return "", policy.ErrNoKey
	case string:
		return NonEmpty(v)
	case fmt.Stringer:
		return NonEmpty(v.String())
	case int, int8, int16, int32, int64, uint, uint8, uint16, uint32, uint64:
		return fmt.Sprint(v), nil
	default:
		return "", fmt.Errorf("%s: ByContext: the value has type %T, want a string, an integer or a fmt.Stringer", name, value)
	}
}

// Join returns a function for several keys together. Each part has its length before it, so that no
// two lists of keys are joined to the same text. It panics, as a function of the package called name,
// if there are no keys or if one of them is nil.
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
// of the key: a client that chooses one value must not pass for who has it in another place. It
// panics as Join does.
func FirstOf[K ~func(R) (string, error), R any](name string, choices []K) K {
	check(name+": FirstOf", choices)
	return func(r R) (string, error) {
		for i, choice := range choices {
			value, err := resolve(choice, r)
			if errors.Is(err, policy.ErrNoKey) {
				continue
			}
			if err != nil {
				return "", err
			}
			return strconv.Itoa(i) + ":" + value, nil
		}
		return "", policy.ErrNoKey
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
