package echotest

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

// found is the result of a key function.
type found struct {
	key string
	err error
}

// keyOf runs a key function on a prepared request to /carts/:id.
func keyOf[C Context, K ~func(C) (string, error), M any](v Version[C, K, M], key K, path string, prepare func(C)) found {
	a := found{err: errors.New("the key function was not called")}
	use := []M{v.Before(func(c C) {
		if prepare != nil {
			prepare(c)
		}
		a.key, a.err = key(c)
	})}
	send(v.Serve(App[C, M]{Route: "/carts/:id", Handler: func(C) error { return nil }, Use: use}), http.MethodPut, path)
	return a
}

type contextKey struct{}

func withValue[C Context](key, value any) func(C) {
	return func(c C) { c.SetRequest(c.Request().WithContext(context.WithValue(c.Request().Context(), key, value))) }
}

func keys[C Context, K ~func(C) (string, error), M any](t *testing.T, v Version[C, K, M]) {
	boom := errors.New("boom")
	fixed := func(value string) K { return func(C) (string, error) { return value, nil } }
	failing := func(err error) K { return func(C) (string, error) { return "", err } }
	set := func(value any) func(C) { return func(c C) { c.Set("user", value) } }
	for name, c := range map[string]struct {
		key     K
		path    string // /carts/42 if empty
		prepare func(C)
		want    string
		err     error
	}{
		"param":                       {key: v.ByParam("id"), want: "42"},
		"no such param":               {key: v.ByParam("user"), err: policy.ErrNotProvided},
		"param of no route":           {key: v.ByParam("id"), path: "/elsewhere", err: policy.ErrNoKey},
		"route":                       {key: v.ByRoute(), want: "PUT /carts/:id"},
		"no route":                    {key: v.ByRoute(), path: "/elsewhere", want: "PUT "},
		"context string":              {key: v.ByContext("user"), prepare: set("alice"), want: "alice"},
		"context integer":             {key: v.ByContext("user"), prepare: set(uint64(7)), want: "7"},
		"context Stringer":            {key: v.ByContext("user"), prepare: set(time.Second), want: "1s"},
		"context empty":               {key: v.ByContext("user"), prepare: set(""), err: policy.ErrNotProvided},
		"context nil pointer":         {key: v.ByContext("user"), prepare: set((*url.URL)(nil)), err: policy.ErrNotProvided},
		"context 0":                   {key: v.ByContext("user"), prepare: set(0), err: policy.ErrNotProvided},
		"context uint64 0":            {key: v.ByContext("user"), prepare: set(uint64(0)), err: policy.ErrNotProvided},
		"context zero Stringer":       {key: v.ByContext("user"), prepare: set(netip.Addr{}), err: policy.ErrNotProvided},
		"context Stringer of nothing": {key: v.ByContext("user"), prepare: set(&url.URL{}), err: policy.ErrNotProvided},
		"first of, not provided":      {key: v.FirstOf(v.ByContext("user"), fixed("a")), want: "1:a"},
		"first of, none provided":     {key: v.FirstOf(v.ByContext("user"), failing(policy.ErrNotProvided)), err: policy.ErrNotProvided},
		"first of, none sent":         {key: v.FirstOf(v.ByContext("user"), failing(policy.ErrNoKey), failing(policy.ErrNotProvided)), err: policy.ErrNoKey},
		"first of, unusable":          {key: v.FirstOf(v.ByContext("user"), fixed("a")), prepare: set([]string{"a"}), err: policy.ErrNotProvided},
		"context unset":               {key: v.ByContext("user"), err: policy.ErrNotProvided},
		"request's context":           {key: v.ByContext(contextKey{}), prepare: withValue[C](contextKey{}, "inner"), want: "inner"},
		"request's context, by name":  {key: v.ByContext("user"), prepare: withValue[C]("user", "inner"), want: "inner"},
		"join":                        {key: v.Join(fixed("a"), fixed("b:")), want: "1:a2:b:"},
		"join, one missing":           {key: v.Join(fixed("a"), fixed("")), err: policy.ErrNoKey},
		"join, one fails":             {key: v.Join(fixed("a"), failing(boom)), err: boom},
		"first of":                    {key: v.FirstOf(fixed("a"), fixed("b")), want: "0:a"},
		"first of, second":            {key: v.FirstOf(failing(policy.ErrNoKey), fixed("a")), want: "1:a"},
		"first of, none":              {key: v.FirstOf(fixed(""), fixed("")), err: policy.ErrNoKey},
		"first of, first fails":       {key: v.FirstOf(failing(boom), fixed("a")), err: boom},
		"first of, of the route":      {key: v.FirstOf(v.ByContext("user"), v.Join(v.ByRoute(), v.ByParam("id"))), want: "1:14:PUT /carts/:id2:42"},
	} {
		t.Run(name, func(t *testing.T) {
			path := c.path
			if path == "" {
				path = "/carts/42"
			}
			if a := keyOf(v, c.key, path, c.prepare); a.key != c.want || !errors.Is(a.err, c.err) {
				t.Errorf("got %q, %v; want %q, %v", a.key, a.err, c.want, c.err)
			}
		})
	}
	t.Run("a value of another type is the server's fault", func(t *testing.T) {
		if a := keyOf(v, v.ByContext("user"), "/carts/42", set([]string{"a"})); a.err == nil || errors.Is(a.err, policy.ErrNoKey) {
			t.Errorf("got %v", a.err)
		}
	})
}

// Every spelling of a path is the same cart.
func params[C Context, K ~func(C) (string, error), M any](t *testing.T, v Version[C, K, M]) {
	for sent, want := range map[string]string{
		"a-b":          "a-b",
		"a%2Db":        "a-b",
		"a%2db":        "a-b",
		"%61-b":        "a-b",
		"a%20b":        "a b",
		"a%2Fb":        "a/b",
		"a%2Db%20c":    "a-b c",
		"100%25":       "100%",
		"%31%30%30%25": "100%",
		"%2541":        "%41", // nothing is decoded twice
		"%2D%2541":     "-%41",
	} {
		t.Run(sent, func(t *testing.T) {
			if a := keyOf(v, v.ByParam("id"), "/carts/"+sent, nil); a.key != want || a.err != nil {
				t.Errorf("got %q, %v; want %q", a.key, a.err, want)
			}
		})
	}
}
