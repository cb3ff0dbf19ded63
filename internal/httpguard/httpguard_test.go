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
