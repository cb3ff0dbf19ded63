package keys_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/middleware/keys"
)

// If a path does not match its pattern, no spelling of a value has its own key, and nothing panics.
func TestPathValueOfARewrittenPath(t *testing.T) {
	value := func(v string) func(string) string { return func(string) string { return v } }
	for _, pattern := range []keys.Pattern{nil, keys.Braced("/elsewhere/{id}"), keys.Braced("/{other}"), keys.Coloned("/x/:id"), keys.Braced("{"), keys.Braced("/{id")} {
		for _, v := range []string{"A", "%41", "%2541", "%25%34%31", "%252541"} {
			if got := keys.PathValue("id", value(v), &url.URL{Path: "/carts/A", RawPath: "/carts/%41"}, pattern); got != "A" {
				t.Errorf("%q is %q", v, got)
			}
		}
		for _, v := range []string{"%", "%%", "%z", "%4", "%4z", "%zz%41"} {
			for _, u := range []*url.URL{{}, {Path: "/" + v, RawPath: "/" + v}, {Path: "/x/" + v}, {Opaque: v}} {
				if got := keys.PathValue("id", value(v), u, pattern); got == "" {
					t.Errorf("%q has no key", v)
				}
			}
		}
	}
	long := strings.Repeat("%25", 300_000) + "41"
	if got := keys.PathValue("id", value(long), &url.URL{}, nil); len(got) != 300_000 {
		t.Errorf("%d bytes are left of a long value", len(got))
	}
}

func FuzzPathValue(f *testing.F) {
	f.Add("/carts/{id}", "/carts/4%32", "4%32")
	f.Add("/{id:[0-9]{2}}/*", "/%zz", "%zz")
	f.Add(`/a\:b/:id/*rest`, "/%", "%")
	f.Fuzz(func(t *testing.T, pattern, path, v string) {
		for _, p := range []keys.Pattern{keys.Braced(pattern), keys.Coloned(pattern)} {
			for _, u := range []*url.URL{{Path: path}, {Path: v, RawPath: path}} {
				if got := keys.PathValue("id", func(string) string { return v }, u, p); (got == "") != (v == "") {
					t.Fatalf("%q is %q", v, got)
				}
			}
		}
	})
}
