package ginmw_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

// keyOf runs a key function on a request to GET /carts/42.
func keyOf(t *testing.T, key ginmw.KeyFunc, prepare func(*gin.Context)) (string, error) {
	t.Helper()
	gin.SetMode(gin.TestMode)
	var (
		value string
		err   error
	)
	r := gin.New()
	r.GET("/carts/:id", func(c *gin.Context) {
		if prepare != nil {
			prepare(c)
		}
		value, err = key(c)
	})
	r.NoRoute(func(c *gin.Context) { value, err = key(c) })
	req := httptest.NewRequest("GET", "/carts/42", nil)
	req.RemoteAddr = "[2001:db8:1:2:3::4]:1234"
	r.ServeHTTP(httptest.NewRecorder(), req)
	return value, err
}

func fixed(value string) ginmw.KeyFunc {
	return func(*gin.Context) (string, error) { return value, nil }
}

func failing(err error) ginmw.KeyFunc {
	return func(*gin.Context) (string, error) { return "", err }
}

type ctxKey struct{}

func TestKeyFuncs(t *testing.T) {
	boom := errors.New("boom")
	set := func(v any) func(*gin.Context) { return func(c *gin.Context) { c.Set("user", v) } }
	for name, c := range map[string]struct {
		key     ginmw.KeyFunc
		prepare func(*gin.Context)
		want    string
		err     error
	}{
		"param":                       {key: ginmw.ByParam("id"), want: "42"},
		"route":                       {key: ginmw.ByRoute(), want: "GET /carts/:id"},
		"address":                     {key: ginmw.ByClientIP(clientip.Direct()), want: "2001:db8:1:2::/64"},
		"context string":              {key: ginmw.ByContext("user"), prepare: set("alice"), want: "alice"},
		"context integer":             {key: ginmw.ByContext("user"), prepare: set(uint64(7)), want: "7"},
		"context Stringer":            {key: ginmw.ByContext("user"), prepare: set(time.Second), want: "1s"},
		"context empty":               {key: ginmw.ByContext("user"), prepare: set(""), err: policy.ErrNotProvided},
		"context unset":               {key: ginmw.ByContext("user"), err: policy.ErrNotProvided},
		"context nil pointer":         {key: ginmw.ByContext("user"), prepare: set((*url.URL)(nil)), err: policy.ErrNotProvided},
		"context 0":                   {key: ginmw.ByContext("user"), prepare: set(0), err: policy.ErrNotProvided},
		"context uint64 0":            {key: ginmw.ByContext("user"), prepare: set(uint64(0)), err: policy.ErrNotProvided},
		"context zero Stringer":       {key: ginmw.ByContext("user"), prepare: set(netip.Addr{}), err: policy.ErrNotProvided},
		"context Stringer of nothing": {key: ginmw.ByContext("user"), prepare: set(&url.URL{}), err: policy.ErrNotProvided},
		"first of, not provided":      {key: ginmw.FirstOf(ginmw.ByContext("user"), fixed("a")), want: "1:a"},
		"first of, none provided":     {key: ginmw.FirstOf(ginmw.ByContext("user"), failing(policy.ErrNotProvided)), err: policy.ErrNotProvided},
		"first of, none sent":         {key: ginmw.FirstOf(ginmw.ByContext("user"), failing(policy.ErrNoKey), failing(policy.ErrNotProvided)), err: policy.ErrNoKey},
		"first of, unusable":          {key: ginmw.FirstOf(ginmw.ByContext("user"), fixed("a")), prepare: set([]string{"a"}), err: policy.ErrNotProvided},
		"context of another type":     {key: ginmw.ByContext("user"), prepare: set([]string{"a"}), err: policy.ErrNotProvided},
		"no such param":               {key: ginmw.ByParam("cart"), err: policy.ErrNotProvided},
		"context of request":          {key: ginmw.ByContext(ctxKey{}), prepare: withValue, want: "inner"},
		"join":                        {key: ginmw.Join(fixed("a"), fixed("b:")), want: "1:a2:b:"},
		"join, one missing":           {key: ginmw.Join(fixed("a"), fixed("")), err: policy.ErrNoKey},
		"join, one fails":             {key: ginmw.Join(fixed("a"), failing(boom)), err: boom},
		"first of":                    {key: ginmw.FirstOf(fixed("a"), fixed("b")), want: "0:a"},
		"first of, second":            {key: ginmw.FirstOf(failing(policy.ErrNoKey), fixed("a")), want: "1:a"},
		"first of, none":              {key: ginmw.FirstOf(fixed(""), fixed("")), err: policy.ErrNoKey},
		"first of, first fails":       {key: ginmw.FirstOf(failing(boom), fixed("a")), err: boom},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := keyOf(t, c.key, c.prepare)
			if got != c.want || !errors.Is(err, c.err) {
				t.Errorf("got %q, %v; want %q, %v", got, err, c.want, c.err)
			}
		})
	}
}

func withValue(c *gin.Context) {
	c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), ctxKey{}, "inner"))
}

func TestScopes(t *testing.T) {
	if !(ginmw.ScopeFunc{}).IsZero() || ginmw.Unscoped().IsZero() || ginmw.ScopeBy(ginmw.Global()).IsZero() {
		t.Error("IsZero is wrong")
	}
	of := func(s ginmw.ScopeFunc) (string, error) { return keyOf(t, s.Of, nil) }
	if none, err := of(ginmw.Unscoped()); err != nil || none != "" {
		t.Errorf("no scope is %q, %v; want the empty one, which guards do not bound", none, err)
	}
	if _, err := of(ginmw.ScopeBy(fixed(""))); !errors.Is(err, policy.ErrNoKey) {
		t.Errorf("an empty subject: %v", err)
	}
}

// A request that matches no route has no parameters, and does not pass: NoRoute may have a handler.
func TestParamWithoutARoute(t *testing.T) {
	r := gin.New()
	r.HandleMethodNotAllowed = true
	var errs []error
	r.Use(func(c *gin.Context) {
		_, err := ginmw.ByParam("id")(c)
		errs = append(errs, err)
	})
	r.GET("/carts/:id", func(*gin.Context) {})
	r.GET("/carts/:id/items/:item", func(*gin.Context) {})
	r.GET("/users/:user", func(*gin.Context) {})
	for _, c := range []struct {
		method, path string
		want         error
	}{
		{http.MethodGet, "/carts/42", nil}, {http.MethodGet, "/carts//items/7", policy.ErrNoKey}, {http.MethodGet, "/elsewhere", policy.ErrNoKey},
		{http.MethodPost, "/carts/42", policy.ErrNoKey}, {http.MethodGet, "/users/7", policy.ErrNotProvided},
	} {
		errs = nil
		r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(c.method, c.path, nil))
		if len(errs) != 1 || !errors.Is(errs[0], c.want) {
			t.Errorf("%s %s: %v, want %v", c.method, c.path, errs, c.want)
		}
	}
}
