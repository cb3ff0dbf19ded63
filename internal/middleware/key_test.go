package middleware

import (
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

func TestIdempotencyKey(t *testing.T) {
	for _, c := range []struct {
		values []string
		key    string
		detail string
	}{
		{[]string{"8e03978e-40d5-43dd-bc93-6894a57f9324"}, "8e03978e-40d5-43dd-bc93-6894a57f9324", ""},
		{[]string{`"8e03978e-40d5-43dd-bc93-6894a57f9324"`}, "8e03978e-40d5-43dd-bc93-6894a57f9324", ""},
		{[]string{`"a b, \"c\" \\ d"`}, `a b, "c" \ d`, ""},
		{[]string{"a;b=c/d+e="}, "a;b=c/d+e=", ""},
		{[]string{"?1"}, "?1", ""}, // not a Boolean: a bare key is taken as it is
		{[]string{"a", "b"}, "", severalKeys},
		{[]string{"a b"}, "", badKey},
		{[]string{""}, "", badKey},
		{[]string{`""`}, "", badKey},
		{[]string{"a, b"}, "", badKey},
		{[]string{"a\tb"}, "", badKey},
		{[]string{"kéy"}, "", badKey},
		{[]string{`"k`}, "", badKey},
		{[]string{`"k";p=1`}, "", badKey},
		{[]string{`"a", "b"`}, "", badKey},
		{[]string{strings.Repeat("k", 256)}, "", badKey},
		{[]string{`"` + strings.Repeat("k", 256) + `"`}, "", badKey},
		{[]string{strings.Repeat("k", 255)}, strings.Repeat("k", 255), ""},
		{[]string{`a"b`}, "", badKey},
		{[]string{`"a" x`}, "", badKey},
		{[]string{"a\x7fb"}, "", badKey},
		{[]string{`"a\x"`}, "", badKey},
	} {
		key, denial := IdempotencyKey(c.values, false)
		if key != c.key || (denial == nil) != (c.detail == "") || denial != nil && (denial.Detail != c.detail || denial.Reason != policy.KeyMalformed) {
			t.Errorf("IdempotencyKey(%q) = %q, %v; want %q, %q", c.values, key, denial, c.key, c.detail)
		}
	}
	if key, denial := IdempotencyKey(nil, false); key != "" || denial != nil {
		t.Errorf("without a field: %q, %v", key, denial)
	}
	if key, denial := IdempotencyKey(nil, true); key != "" || denial == nil || denial.Reason != policy.KeyMissing {
		t.Errorf("without a required field: %q, %v", key, denial)
	}
}

func FuzzIdempotencyKey(f *testing.F) {
	for _, s := range []string{"", "k", `"k"`, `"a\"b"`, `"a";p`, "a,b", "\x00", strings.Repeat("k", 300)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, denial := IdempotencyKey([]string{s}, false)
		if (denial == nil) != (key != "") {
			t.Fatalf("IdempotencyKey(%q) = %q, %v", s, key, denial)
		}
		for i := range len(key) {
			if key[i] < 0x20 || key[i] > 0x7e || len(key) > maxKey {
				t.Fatalf("IdempotencyKey(%q) let %q through", s, key)
			}
		}
	})
}
