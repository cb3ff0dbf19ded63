package httpmw

import (
	"bytes"
	"maps"
	"net/http"
	"net/http/httptest"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/guard"
)

func TestResponseRoundTrip(t *testing.T) {
	for _, r := range []response{
		{},
		{header: []change{{name: "Content-Type"}, {name: "X-Gone", deleted: true}, {name: "X-Multi", values: []string{"a, b", "", "c"}}}, body: []byte("body\x00")},
		{header: []change{{name: "X", values: []string{strings.Repeat("v", 300)}}}, body: bytes.Repeat([]byte{0xff}, 1000)},
		{header: []change{{name: "Trailer", values: []string{"X-Sum"}}}, trailer: []change{{name: "X-Sum", values: []string{"4"}}}},
	} {
		got, err := decodeResponse(r.encode(fields{}))
		if err != nil || !reflect.DeepEqual(got.header, r.header) || !reflect.DeepEqual(got.trailer, r.trailer) || !bytes.Equal(got.body, r.body) {
			t.Errorf("%v was decoded as %v, %v", r, got, err)
		}
	}
}

// A record is replayed, or refused as damaged, and never panics.
func FuzzReplay(f *testing.F) {
	f.Add(200, []byte(nil))
	f.Add(0, response{}.encode(fields{}))
	f.Add(200, []byte{1, 0}) // of an earlier version
	f.Add(201, response{
		header:  []change{{name: "A", values: []string{"b"}}, {name: "Content-Length", values: []string{"1"}}, {name: "D", deleted: true}},
		trailer: []change{{name: "Trailer:T", values: []string{"t"}}},
		body:    []byte("body"),
	}.encode(fields{}))
	f.Add(200, []byte{responseVersion, 0xff, 0xff, 0xff, 0xff, 0x0f})
	f.Add(200, []byte{responseVersion, 1, 1, 'a', 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1})
	f.Fuzz(func(t *testing.T, status int, b []byte) {
		w := httptest.NewRecorder()
		x := &guardExchange[pair]{exchange: exchange[pair]{base: &base[pair]{Adapter: netHTTP{}}}, w: w}
		if err := x.Replay(&guard.Result{Status: status, Data: b}); err != nil {
			if !reflect.DeepEqual(w, httptest.NewRecorder()) {
				t.Fatalf("%v, and yet it is answered: %v", err, w)
			}
			return
		}
		r := must(decodeResponse(b))
		kept := response{fields{}.lasting(r.header), fields{}.lasting(r.trailer), r.body}
		again, err := decodeResponse(r.encode(fields{}))
		if err != nil || !bytes.Equal(again.body, r.body) ||
			!slices.EqualFunc(again.header, kept.header, sameChange) || !slices.EqualFunc(again.trailer, kept.trailer, sameChange) {
			t.Fatalf("%x decodes to %v, which encodes to something else: %v, %v", b, r, again, err)
		}
	})
}

func sameChange(a, b change) bool {
	return a.name == b.name && a.deleted == b.deleted && slices.Equal(a.values, b.values)
}

// policy.KeepHeaders and policy.DropHeaders are about trailers too, and about names as handlers
// spell them.
func TestChosenFields(t *testing.T) {
	list := changes(http.Header{"X-Gone": {"1"}}, http.Header{
		"Content-Type": {"text/plain"}, "Trailer": {"X-Sum"}, "x-secret": {"1"}, "X-Secret": {"2"}, "X-Kept": {"3"}, "X-Other": {"4"},
		"Trailer:X-Secret": {"5"}, "Trailer:X-Kept": {"6"}, "X-None": nil,
	})
	set := func(names ...string) map[string]bool {
		m := map[string]bool{}
		for _, name := range names {
			m[name] = true
		}
		return m
	}
	for want, f := range map[string]fields{
		"Content-Type Trailer Trailer:X-Kept X-Gone X-Kept X-None":                                            {keep: set("X-Kept")},
		"Content-Type Trailer Trailer:X-Kept X-Gone X-Kept X-None X-Other":                                    {drop: set("X-Secret")},
		"Content-Type Trailer:X-Kept X-Gone X-Kept X-None":                                                    {keep: set("X-Kept"), drop: set("Trailer")},
		"Content-Type Trailer X-Gone X-None":                                                                  {keep: set("X-Kept"), drop: set("X-Kept")},
		"Content-Type Trailer Trailer:X-Kept Trailer:X-Secret X-Gone X-Kept X-None X-Other X-Secret x-secret": {},
	} {
		var names []string
		for _, c := range f.lasting(list) {
			names = append(names, c.name)
		}
		if got := strings.Join(names, " "); got != want {
			t.Errorf("%+v: recorded %s, want %s", f, got, want)
		}
	}
}

func TestAnswersThatAreRefused(t *testing.T) {
	for _, status := range []int{-1, 0, 103, 199, 600} {
		func() {
			defer func() {
				if text, _ := recover().(string); !strings.HasPrefix(text, "idempotency: Answer: ") {
					t.Errorf("status %d: panicked with %q", status, text)
				}
			}()
			Answer(status, nil, nil)
		}()
	}
}

func TestWhatIsRecorded(t *testing.T) {
	before := http.Header{
		"X-Request-Id": {"1"}, "Vary": {"Origin"}, "X-Outer": {"1"}, "Set-Cookie": {"outer=1"}, "Date": {"now"},
	}
	after := http.Header{
		"X-Request-Id": {"1"}, "Vary": {"Origin", "Accept"}, "Etag": {`"v1"`}, "Set-Cookie": {"outer=1", "a=b"},
		"Connection": {"x-hop, close"}, "X-Hop": {"1"}, "Trailer:X-Sum": {"9"}, "Content-Length": {"3"},
		"Content-Type": nil, "Date": nil, "Trailer": {"Server-Timing"}, "Trailer:Set-Cookie": {"a=b"},
	}
	got := http.Header{}
	var deleted []string
	for _, c := range (fields{}).lasting(changes(before, after)) {
		if c.deleted {
			deleted = append(deleted, c.name)
		} else {
			got[c.name] = c.values
		}
	}
	want := http.Header{
		"Vary": {"Origin", "Accept"}, "Etag": {`"v1"`}, "Trailer:X-Sum": {"9"}, "Content-Length": {"3"}, "Content-Type": nil, "Date": nil,
		"Trailer": {"Server-Timing"},
	}
	if !maps.EqualFunc(got, want, slices.Equal) || !slices.Equal(deleted, []string{"X-Outer"}) {
		t.Errorf("recorded %v, and without %v; want %v, and without X-Outer", got, deleted, want)
	}
}
