package httpguard

import (
	"bytes"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"testing"
)

func TestReadKey(t *testing.T) {
	for _, c := range []struct {
		values []string
		key    string
		err    error
	}{
		{nil, "", errNoHeader},
		{[]string{"8e03978e-40d5-43dd-bc93-6894a57f9324"}, "8e03978e-40d5-43dd-bc93-6894a57f9324", nil},
		{[]string{`"8e03978e-40d5-43dd-bc93-6894a57f9324"`}, "8e03978e-40d5-43dd-bc93-6894a57f9324", nil},
		{[]string{`"a b, \"c\" \\ d"`}, `a b, "c" \ d`, nil},
		{[]string{"a;b=c/d+e="}, "a;b=c/d+e=", nil},
		{[]string{"?1"}, "?1", nil}, // not a Boolean: a bare key is taken as it is
		{[]string{"a", "b"}, "", errSeveralKeys},
		{[]string{"a b"}, "", errBadKey},
		{[]string{`a"b`}, "", errBadKey},
		{[]string{`"a" x`}, "", errBadKey},
		{[]string{"a\x7fb"}, "", errBadKey},
		{[]string{`"a\x"`}, "", errBadKey},
	} {
		key, err := readKey(http.Header{"Idempotency-Key": c.values})
		if key != c.key || err != c.err {
			t.Errorf("readKey(%q) = %q, %v; want %q, %v", c.values, key, err, c.key, c.err)
		}
	}
}

func FuzzReadKey(f *testing.F) {
	for _, s := range []string{"", "k", `"k"`, `"a\"b"`, `"a";p`, "a,b", "\x00", strings.Repeat("k", 300)} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		key, err := readKey(http.Header{"Idempotency-Key": {s}})
		if (err == nil) != (key != "") {
			t.Fatalf("readKey(%q) = %q, %v", s, key, err)
		}
		for i := range len(key) {
			if key[i] < 0x20 || key[i] > 0x7e || len(key) > maxKey {
				t.Fatalf("readKey(%q) let %q through", s, key)
			}
		}
	})
}

func TestResponseRoundTrip(t *testing.T) {
	for _, r := range []response{
		{http.Header{}, nil},
		{http.Header{"Content-Type": {"text/plain"}, "X-Multi": {"a, b", "", "c"}}, []byte("body\x00")},
		{http.Header{"X": {strings.Repeat("v", 300)}}, bytes.Repeat([]byte{0xff}, 1000)},
	} {
		got, err := decodeResponse(r.encode())
		if err != nil || !reflect.DeepEqual(got.header, r.header) || !bytes.Equal(got.body, r.body) {
			t.Errorf("%v came back as %v, %v", r, got, err)
		}
	}
}

func FuzzDecodeResponse(f *testing.F) {
	f.Add([]byte(nil))
	f.Add(response{http.Header{"A": {"b"}}, []byte("c")}.encode())
	f.Add([]byte{responseVersion, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := decodeResponse(b)
		if err != nil {
			return
		}
		again, err := decodeResponse(r.encode())
		if err != nil || !bytes.Equal(again.body, r.body) || !maps.EqualFunc(again.header, r.header, slices.Equal) {
			t.Fatalf("%x decoded to %v, which encodes to something else: %v, %v", b, r, again, err)
		}
	})
}

func TestRecordedHeader(t *testing.T) {
	before := http.Header{"X-Request-Id": {"1"}, "Vary": {"Origin"}}
	after := http.Header{
		"X-Request-Id": {"1"}, "Vary": {"Origin", "Accept"}, "Etag": {`"v1"`}, "Set-Cookie": {"a=b"},
		"Connection": {"x-hop, close"}, "X-Hop": {"1"}, "Trailer:X-Sum": {"9"}, "Content-Length": {"3"},
	}
	want := http.Header{"Vary": {"Origin", "Accept"}, "Etag": {`"v1"`}}
	if got := recorded(before, after); !reflect.DeepEqual(got, want) {
		t.Errorf("recorded %v, want %v", got, want)
	}
}
