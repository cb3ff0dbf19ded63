package nethttp_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/clientip"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

type user struct{}

func get(prepare ...func(*http.Request)) *http.Request {
	r := httptest.NewRequest(http.MethodGet, "/carts/42", nil)
	r.RemoteAddr = "[2001:db8:1:2:3::4]:1234"
	for _, f := range prepare {
		f(r)
	}
	return r
}

func header(name, value string) func(*http.Request) {
	return func(r *http.Request) { r.Header.Add(name, value) }
}

func routed(pattern string) func(*http.Request) {
	return func(r *http.Request) { r.Pattern = pattern }
}

func as(v any) func(*http.Request) {
	return func(r *http.Request) { *r = *r.WithContext(context.WithValue(r.Context(), user{}, v)) }
}

func fixed(value string) nethttp.KeyFunc {
	return func(*http.Request) (string, error) { return value, nil }
}

func failing(err error) nethttp.KeyFunc {
	return func(*http.Request) (string, error) { return "", err }
}

func TestKeyFuncs(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		key     nethttp.KeyFunc
		request *http.Request
		want    string
		err     error
	}{
		"header":                      {key: nethttp.ByHeader("x-api-key"), request: get(header("X-Api-Key", "k")), want: "k"},
		"no header":                   {key: nethttp.ByHeader("X-Api-Key"), request: get(), err: policy.ErrNoKey},
		"empty header":                {key: nethttp.ByHeader("X-Api-Key"), request: get(header("X-Api-Key", "")), err: policy.ErrNoKey},
		"two headers":                 {key: nethttp.ByHeader("X-Api-Key"), request: get(header("X-Api-Key", "a"), header("X-Api-Key", "b")), err: policy.ErrNoKey},
		"cookie":                      {key: nethttp.ByCookie("sid"), request: get(header("Cookie", "a=b; sid=c")), want: "c"},
		"no cookie":                   {key: nethttp.ByCookie("sid"), request: get(header("Cookie", "a=b")), err: policy.ErrNoKey},
		"empty cookie":                {key: nethttp.ByCookie("sid"), request: get(header("Cookie", "sid=")), err: policy.ErrNoKey},
		"two cookies":                 {key: nethttp.ByCookie("sid"), request: get(header("Cookie", "sid=a; sid=b")), err: policy.ErrNoKey},
		"address":                     {key: nethttp.ByClientIP(clientip.Direct()), request: get(), want: "2001:db8:1:2::/64"},
		"context string":              {key: nethttp.ByContext(user{}), request: get(as("alice")), want: "alice"},
		"context integer":             {key: nethttp.ByContext(user{}), request: get(as(uint64(7))), want: "7"},
		"context Stringer":            {key: nethttp.ByContext(user{}), request: get(as(time.Second)), want: "1s"},
		"context empty":               {key: nethttp.ByContext(user{}), request: get(as("")), err: policy.ErrNotProvided},
		"context unset":               {key: nethttp.ByContext(user{}), request: get(), err: policy.ErrNotProvided},
		"context nil pointer":         {key: nethttp.ByContext(user{}), request: get(as((*url.URL)(nil))), err: policy.ErrNotProvided},
		"context 0":                   {key: nethttp.ByContext(user{}), request: get(as(0)), err: policy.ErrNotProvided},
		"context uint64 0":            {key: nethttp.ByContext(user{}), request: get(as(uint64(0))), err: policy.ErrNotProvided},
		"context zero Stringer":       {key: nethttp.ByContext(user{}), request: get(as(netip.Addr{})), err: policy.ErrNotProvided},
		"context Stringer of nothing": {key: nethttp.ByContext(user{}), request: get(as(&url.URL{})), err: policy.ErrNotProvided},
		"first of, not provided":      {key: nethttp.FirstOf(nethttp.ByContext(user{}), fixed("a")), want: "1:a", request: get()},
		"first of, none provided":     {key: nethttp.FirstOf(nethttp.ByContext(user{}), failing(policy.ErrNotProvided)), err: policy.ErrNotProvided, request: get()},
		"first of, none sent":         {key: nethttp.FirstOf(nethttp.ByContext(user{}), failing(policy.ErrNoKey), failing(policy.ErrNotProvided)), err: policy.ErrNoKey, request: get()},
		"first of, unusable":          {key: nethttp.FirstOf(nethttp.ByContext(user{}), fixed("a")), request: get(as([]string{"a"})), err: policy.ErrNotProvided},
		"path, not routed":            {key: nethttp.ByPathValue("id"), request: get(), err: policy.ErrNotProvided},
		"path, empty":                 {key: nethttp.ByPathValue("id"), request: get(routed("/carts/{id...}")), err: policy.ErrNoKey},
		"path, another wildcard":      {key: nethttp.ByPathValue("id"), request: get(routed("/carts/{cart}")), err: policy.ErrNotProvided},
		"pattern, not routed":         {key: nethttp.ByPattern(), request: get(), err: policy.ErrNotProvided},
		"no address":                  {key: nethttp.ByClientIP(clientip.Direct()), request: get(func(r *http.Request) { r.RemoteAddr = "?" }), err: policy.ErrNotProvided},
		"global":                      {key: nethttp.Global(), request: get(), want: "global"},
		"join":                        {key: nethttp.Join(fixed("a"), fixed("b:")), request: get(), want: "1:a2:b:"},
		"join, one missing":           {key: nethttp.Join(fixed("a"), fixed("")), request: get(), err: policy.ErrNoKey},
		"join, one fails":             {key: nethttp.Join(fixed("a"), failing(boom)), request: get(), err: boom},
		"first of, second":            {key: nethttp.FirstOf(failing(policy.ErrNoKey), fixed("a")), request: get(), want: "1:a"},
		"first of, none":              {key: nethttp.FirstOf(fixed(""), fixed("")), request: get(), err: policy.ErrNoKey},
		"first of, first fails":       {key: nethttp.FirstOf(failing(boom), fixed("a")), request: get(), err: boom},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := c.key(c.request)
			if got != c.want || !errors.Is(err, c.err) {
				t.Errorf("got %q, %v; want %q, %v", got, err, c.want, c.err)
			}
		})
	}
	_, err := nethttp.ByContext(user{})(get(as([]string{"a"})))
	if err == nil || errors.Is(err, policy.ErrNoKey) {
		t.Errorf("a value of another type: %v, want an error of the server's", err)
	}
}

func TestScopes(t *testing.T) {
	if !(nethttp.ScopeFunc{}).IsZero() || nethttp.Unscoped().IsZero() || nethttp.ScopeBy(nethttp.Global()).IsZero() {
		t.Error("IsZero is wrong")
	}
	if none, err := nethttp.Unscoped().Of(get()); err != nil || none != "" {
		t.Errorf("no scope is %q, %v; want the empty one, which guards do not bound", none, err)
	}
	if _, err := nethttp.ScopeBy(fixed("")).Of(get()); !errors.Is(err, policy.ErrNoKey) {
		t.Errorf("an empty subject: %v", err)
	}
}
