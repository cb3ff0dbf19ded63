package storetest

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// Documents is the contract of store.Documents.
func Documents[S store.Documents](t *testing.T, run Runner[S]) {
	runAll(t, run, []testCase[store.Documents]{
		{"a document is read as it was put", readDocument},
		{"names and data may have any bytes", oddDocuments},
		{"spaces with other names are separate", spacesApart},
		{"a put with any version replaces the document", replacedDocument},
		{"a put of a new document leaves an existing one", newDocuments},
		{"a put with a version replaces that version only", comparedPut},
		{"a put of the same data with its version renews the document", renewedDocument},
		{"a repeated put changes nothing", repeatedDocumentPut},
		{"a repeat after another put is refused", lateDocumentRepeat},
		{"one of many puts in the place of a version succeeds", concurrentDocumentPuts},
		{"one of many puts of a new document succeeds", concurrentNewDocuments},
		{"versions grow, also after a removal and an expiry", growingVersions},
		{"a document expires after its TTL", expiredDocument},
		{"a TTL of zero is the longest one", longestDocument},
		{"a remove with a version removes that version only", removedDocument},
		{"a repeated remove succeeds", repeatedRemove},
		{"a request out of its bounds is refused", invalidDocuments},
		{"a full space takes no further document", fullSpace},
		{"documents are listed once each", listedDocuments},
		{"a cancelled context is its error", cancelledDocuments},
		{"a store after shutdown refuses puts, and serves the rest", shutDownDocuments},
		{"a closed store is unavailable", closedDocuments},
	})
}

// spaceCase is a space of a test.
type spaceCase struct {
	t     *testing.T
	h     Harness[store.Documents]
	store store.Documents
	space string
}

func newSpace(t *testing.T, h Harness[store.Documents]) spaceCase {
	return spaceCase{t, h, h.Store, unique("space")}
}

func (s spaceCase) request(name, data string, version int64) store.DocumentRequest {
	return store.DocumentRequest{Space: s.space, Name: name, Data: []byte(data), TTL: time.Hour, Version: version}
}

// puts sends a put that must succeed, and returns the version.
func (s spaceCase) puts(req store.DocumentRequest) int64 {
	s.t.Helper()
	version, ok, err := s.store.PutDocument(background(), req)
	if err != nil || !ok || version <= 0 {
		s.t.Fatalf("PutDocument: %d, %t, %v", version, ok, err)
	}
	return version
}

// refused sends a put that must fail, since the document has another version.
func (s spaceCase) refused(req store.DocumentRequest, want int64) {
	s.t.Helper()
	version, ok, err := s.store.PutDocument(background(), req)
	if err != nil || ok || version != want {
		s.t.Fatalf("PutDocument: %d, %t, %v, want %d, false", version, ok, err, want)
	}
}

func (s spaceCase) get(name string) (store.Document, bool) {
	s.t.Helper()
	doc, found, err := s.store.GetDocument(background(), s.space, name)
	if err != nil {
		s.t.Fatalf("GetDocument: %v", err)
	}
	return doc, found
}

// has checks that the space has a document with this version and these data.
func (s spaceCase) has(name, data string, version int64) store.Document {
	s.t.Helper()
	doc, found := s.get(name)
	if !found || doc.Name != name || string(doc.Data) != data || doc.Version != version || doc.Age < 0 || doc.Expires <= 0 {
		s.t.Fatalf("GetDocument: %t, %q with %d bytes, version %d, age %v, expires in %v; want %d bytes, version %d",
			found, doc.Name, len(doc.Data), doc.Version, doc.Age, doc.Expires, len(data), version)
	}
	return doc
}

func (s spaceCase) hasNo(name string) {
	s.t.Helper()
	if doc, found := s.get(name); found {
		s.t.Fatalf("GetDocument: version %d, expires in %v, where there is none", doc.Version, doc.Expires)
	}
}

func (s spaceCase) removes(name string, version int64, want bool) {
	s.t.Helper()
	gone, err := s.store.RemoveDocument(background(), s.space, name, version)
	if err != nil || gone != want {
		s.t.Fatalf("RemoveDocument: %t, %v, want %t", gone, err, want)
	}
}

// list returns the documents of the space by name. Each must be listed once.
func (s spaceCase) list() map[string]store.Document {
	s.t.Helper()
	all := make(map[string]store.Document)
	for doc, err := range s.store.ListDocuments(background(), s.space) {
		if err != nil {
			s.t.Fatalf("ListDocuments: %v", err)
		}
		if _, twice := all[doc.Name]; twice {
			s.t.Errorf("%q is listed twice", doc.Name)
		}
		all[doc.Name] = doc
	}
	return all
}

func readDocument(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	s.hasNo("a")
	if all := s.list(); len(all) > 0 {
		t.Errorf("an empty space lists %v", all)
	}
	before := time.Now()
	data := []byte("one text")
	req := s.request("a", "", store.AnyVersion)
	req.Data = data
	version := s.puts(req)
	copy(data, "changed!") // the caller's
	h.Advance(20 * time.Millisecond)
	doc := s.has("a", "one text", version)
	if past := time.Since(before) + clocks; doc.Age < 20*time.Millisecond || doc.Age > past || doc.Expires > time.Hour || doc.Expires < time.Hour-past {
		t.Errorf("after %v its age is %v, and it expires in %v", past, doc.Age, doc.Expires)
	}
	copy(doc.Data, "changed!") // a copy
	s.has("a", "one text", version)
	if listed := s.list()["a"]; string(listed.Data) != "one text" || listed.Version != version || listed.Age < doc.Age || listed.Expires > doc.Expires {
		t.Errorf("listed: %+v", listed)
	}
}

func oddDocuments(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	want := make(map[string]string)
	for i, name := range []string{
		"a", "A", "a ", " ", "\x00", "ü\xff", "{}", "1", "01", "v", "d", "-inf", "(a", "[", strings.Repeat("\xff", store.MaxDocumentName),
	} {
		data := []string{"", "\x00\xff\n{}", strings.Repeat("\x00\x01\r\n\xff", 1<<12), "1 2 3 4", "0"}[i%5]
		s.has(name, data, s.puts(s.request(name, data, store.NoDocument)))
		want[name] = data
	}
	large := strings.Repeat("x", store.MaxDocumentSize)
	version := s.puts(s.request("large", large, store.AnyVersion))
	want["large"] = large
	s.has("large", large, version)
	s.refused(s.request("large", large[1:], version-1), version)
	all := s.list()
	for name, data := range want {
		if string(all[name].Data) != data {
			t.Errorf("%.20q is listed with %d bytes, want %d", name, len(all[name].Data), len(data))
		}
	}
	if len(all) != len(want) {
		t.Errorf("%d documents are listed, want %d", len(all), len(want))
	}
	for name := range want {
		s.removes(name, all[name].Version, true)
		s.hasNo(name)
	}
	s.space = strings.Repeat("\xff\x00", store.MaxDocumentName/2-16) + s.space[:16]
	s.has("a", "text", s.puts(s.request("a", "text", store.AnyVersion)))
	if all := s.list(); len(all) != 1 {
		t.Errorf("%d documents are listed, want 1", len(all))
	}
}

func spacesApart(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	version := s.puts(s.request("a", "text", store.AnyVersion))
	for _, name := range []string{s.space + "a", s.space + "-", s.space[1:], s.space[:len(s.space)-1]} {
		other := s
		other.space = name
		other.hasNo("a")
		other.removes("a", store.AnyVersion, true)
		other.puts(s.request("other", "text", store.AnyVersion))
		other.puts(other.request("a", "other text", store.NoDocument))
		if all := other.list(); len(all) != 1 || string(all["a"].Data) != "other text" {
			t.Errorf("listed: %v", all)
		}
	}
	s.has("a", "text", version)
}

func invalidDocuments(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	long := strings.Repeat("x", store.MaxDocumentName+1)
	version := s.puts(s.request("a", "text", store.AnyVersion))
	check := func(what string, err error) {
		t.Helper()
		if !errors.Is(err, store.ErrInvalidDocument) || errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v, want store.ErrInvalidDocument", what, err)
		}
	}
	for what, change := range map[string]func(*store.DocumentRequest){
		"an empty space":     func(r *store.DocumentRequest) { r.Space = "" },
		"a long space":       func(r *store.DocumentRequest) { r.Space = long },
		"an empty name":      func(r *store.DocumentRequest) { r.Name = "" },
		"a long name":        func(r *store.DocumentRequest) { r.Name = long },
		"large data":         func(r *store.DocumentRequest) { r.Data = bytes.Repeat([]byte("x"), store.MaxDocumentSize+1) },
		"a negative TTL":     func(r *store.DocumentRequest) { r.TTL = -1 },
		"a long TTL":         func(r *store.DocumentRequest) { r.TTL = store.MaxDocumentTTL + 1 },
		"a negative version": func(r *store.DocumentRequest) { r.Version = -2 },
	} {
		req := s.request("a", "other", store.AnyVersion)
		change(&req)
		_, ok, err := s.store.PutDocument(background(), req)
		check("a put with "+what, err)
		if ok {
			t.Errorf("a put with %s succeeded", what)
		}
	}
	for what, name := range map[string][2]string{
		"an empty space": {"", "a"}, "a long space": {long, "a"}, "an empty name": {s.space, ""}, "a long name": {s.space, long},
	} {
		_, _, err := s.store.GetDocument(background(), name[0], name[1])
		check("a get with "+what, err)
		_, err = s.store.RemoveDocument(background(), name[0], name[1], store.AnyVersion)
		check("a remove with "+what, err)
	}
	_, err := s.store.RemoveDocument(background(), s.space, "a", store.NoDocument)
	check("a remove with a negative version", err)
	for _, space := range []string{"", long} {
		listed := 0
		for _, err := range s.store.ListDocuments(background(), space) {
			check(fmt.Sprintf("a listing of a space of %d bytes", len(space)), err)
			listed++
		}
		if listed != 1 {
			t.Errorf("a listing yields %d errors", listed)
		}
	}
	s.has("a", "text", version)
}

func fullSpace(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	var wg sync.WaitGroup
	for i := range 16 {
		wg.Go(func() {
			for n := i; n < store.MaxDocuments; n += 16 {
				if _, ok, err := s.store.PutDocument(background(), s.request(fmt.Sprint("k", n), fmt.Sprint("of ", n), store.AnyVersion)); !ok || err != nil {
					t.Errorf("PutDocument of document %d: %t, %v", n, ok, err)
					return
				}
			}
		})
	}
	wg.Wait()
	full := func() {
		t.Helper()
		for _, version := range []int64{store.AnyVersion, store.NoDocument} {
			if _, ok, err := s.store.PutDocument(background(), s.request("further", "text", version)); ok || !errors.Is(err, store.ErrFull) {
				t.Fatalf("PutDocument of a further document: %t, %v, want store.ErrFull", ok, err)
			}
		}
	}
	full()
	s.hasNo("further")
	all := s.list()
	for n := range store.MaxDocuments {
		if want := fmt.Sprint("of ", n); string(all[fmt.Sprint("k", n)].Data) != want {
			t.Fatalf("%q is listed as %q", want, all[fmt.Sprint("k", n)].Data)
		}
	}
	if len(all) != store.MaxDocuments {
		t.Errorf("%d documents are listed, want %d", len(all), store.MaxDocuments)
	}
	version := s.puts(s.request("k1", "other", store.AnyVersion)) // the ones that it has
	s.puts(s.request("k1", "third", version))
	full()
	s.removes("k1", store.AnyVersion, true)
	short := s.request("short", "text", store.NoDocument)
	short.TTL = shortLease
	s.puts(short)
	h.Advance(pastLease)
	s.puts(s.request("further", "text", store.NoDocument))
	s.puts(s.request("further", "other", store.AnyVersion))
	s.refused(s.request("short", "text", 1), 0)
}

func listedDocuments(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	large := strings.Repeat("x", 300<<10) // several pages
	want := make(map[string]int64)
	for i := range 12 {
		name := fmt.Sprint("k", i)
		want[name] = s.puts(s.request(name, large+name, store.AnyVersion))
	}
	all := s.list()
	for name, version := range want {
		if doc := all[name]; doc.Version != version || string(doc.Data) != large+name || doc.Age < 0 || doc.Expires <= 0 || doc.Expires > time.Hour {
			t.Errorf("%s is listed as version %d, with %d bytes, %v old, until %v", name, doc.Version, len(doc.Data), doc.Age, doc.Expires)
		}
	}
	if len(all) != len(want) {
		t.Errorf("%d documents are listed, want %d", len(all), len(want))
	}
	seen := 0
	for doc, err := range s.store.ListDocuments(background(), s.space) { // documents that are removed during the listing
		if err != nil {
			t.Fatalf("ListDocuments: %v", err)
		}
		if seen++; seen == 1 {
			for name := range want {
				if name != doc.Name {
					s.removes(name, store.AnyVersion, true)
				}
			}
		}
	}
	if seen < 1 || seen > len(want) {
		t.Errorf("%d documents were listed", seen)
	}
	for _, err := range s.store.ListDocuments(background(), s.space) {
		if err != nil {
			t.Errorf("ListDocuments: %v", err)
		}
		break
	}
}
