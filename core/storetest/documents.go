package storetest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
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

func replacedDocument(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	first := s.puts(s.request("a", "one", store.AnyVersion))
	second := s.puts(s.request("a", "another text", store.AnyVersion))
	s.has("a", "another text", second)
	third := s.puts(s.request("a", "", store.AnyVersion))
	s.has("a", "", third)
	if first >= second || second >= third {
		t.Errorf("versions %d, %d, %d", first, second, third)
	}
	h.Advance(20 * time.Millisecond)
	fourth := s.puts(s.request("a", "", store.AnyVersion)) // it is not a renewal
	if doc := s.has("a", "", fourth); fourth <= third || doc.Age > time.Minute {
		t.Errorf("version %d after %d, %v old", fourth, third, doc.Age)
	}
}

func newDocuments(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	version := s.puts(s.request("a", "one", store.NoDocument))
	s.refused(s.request("a", "two", store.NoDocument), version)
	s.has("a", "one", version)
	version = s.puts(s.request("a", "two", store.AnyVersion))
	s.refused(s.request("a", "two", store.NoDocument), version) // it is no repeat
	s.refused(s.request("a", "one", store.NoDocument), version)
	s.has("a", "two", version)
	s.removes("a", store.AnyVersion, true)
	s.has("a", "one", s.puts(s.request("a", "one", store.NoDocument)))
}

func comparedPut(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	s.refused(s.request("a", "one", 1), 0)
	s.refused(s.request("a", "one", 1<<62), 0)
	s.hasNo("a")
	first := s.puts(s.request("a", "one", store.AnyVersion))
	for _, version := range []int64{1, first - 1, first + 1, 1<<53 + 1, 1<<63 - 1} {
		s.refused(s.request("a", "two", version), first)
		s.refused(s.request("a", "one", version), first)
	}
	s.has("a", "one", first)
	second := s.puts(s.request("a", "two", first))
	if second <= first {
		t.Errorf("version %d after %d", second, first)
	}
	s.refused(s.request("a", "three", first), second)
	s.has("a", "two", second)
	s.has("a", "three", s.puts(s.request("a", "three", second)))

	inTime(t, 200*time.Millisecond, func(ttl time.Duration) (late bool) { // a refused put does not renew
		req := s.request("b", "one", store.AnyVersion)
		req.TTL = ttl
		s.puts(req)
		began := time.Now()
		_, ok, err := s.store.PutDocument(background(), s.request("b", "one", store.NoDocument))
		if err != nil || ok {
			if time.Since(began) >= ttl {
				return true
			}
			t.Fatalf("PutDocument: %t, %v", ok, err)
		}
		h.Advance(ttl + ttl/4)
		s.hasNo("b")
		return false
	})
}

func renewedDocument(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	inTime(t, 200*time.Millisecond, func(ttl time.Duration) (late bool) {
		req := s.request("a", "text", store.AnyVersion)
		req.TTL = ttl
		began := time.Now()
		version := s.puts(req)
		req.Version, req.TTL = version, time.Hour
		h.Advance(ttl / 4)
		renewed, ok, err := s.store.PutDocument(background(), req)
		if err != nil || expect(t, "a renewal's success", ok, true, began, ttl) {
			return true
		}
		if renewed != version {
			t.Fatalf("renewed as version %d, want %d", renewed, version)
		}
		h.Advance(ttl)
		doc := s.has("a", "text", version)
		if doc.Age < ttl || doc.Expires < time.Minute || doc.Expires > time.Hour {
			t.Errorf("it is %v old, and expires in %v", doc.Age, doc.Expires)
		}
		req.TTL = ttl // a renewal can shorten, too
		s.puts(req)
		if doc := s.has("a", "text", version); doc.Expires > ttl {
			t.Errorf("it expires in %v, want %v at most", doc.Expires, ttl)
		}
		h.Advance(ttl + ttl/4)
		s.hasNo("a")
		s.refused(req, 0)
		return false
	})
}

func repeatedDocumentPut(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	created := s.request("a", "one", store.NoDocument)
	first := s.puts(created)
	seen := s.has("a", "one", first)
	created.TTL = time.Minute
	if again := s.puts(created); again != first {
		t.Errorf("the repeat has version %d, want %d", again, first)
	}
	replaced := s.request("a", "two", first)
	second := s.puts(replaced)
	for range 3 {
		if again := s.puts(replaced); again != second {
			t.Errorf("the repeat has version %d, want %d", again, second)
		}
	}
	h.Advance(20 * time.Millisecond)
	s.puts(replaced)
	if doc := s.has("a", "two", second); doc.Age < 20*time.Millisecond || seen.Expires < time.Hour/2 {
		t.Errorf("a repeat has written: it is %v old", doc.Age)
	}
	renewal := s.request("a", "two", second)
	s.puts(renewal)
	s.puts(renewal)
	s.puts(replaced) // also after a renewal
	s.has("a", "two", second)
	s.refused(created, second)
}

func lateDocumentRepeat(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	first := s.puts(s.request("a", "one", store.NoDocument))
	replaced := s.request("a", "two", first)
	second := s.puts(replaced)
	other := s.request("a", "two, by another", first)
	s.refused(other, second)
	third := s.puts(s.request("a", "three", second))
	s.refused(replaced, third)
	fourth := s.puts(s.request("a", "two", third)) // the same data, in the place of another version
	s.refused(replaced, fourth)
	s.removes("a", store.AnyVersion, true)
	s.refused(replaced, 0)
	s.hasNo("a")
}

func concurrentDocumentPuts(t *testing.T, h Harness[store.Documents]) {
	const writers, rounds = 8, 10
	s := newSpace(t, h)
	s.puts(s.request("a", "0", store.AnyVersion))
	var (
		wg   sync.WaitGroup
		mu   sync.Mutex
		wins = make(map[int64]int) // how often a version was replaced
	)
	for i := range writers {
		wg.Go(func() {
			for n := 0; n < rounds; {
				doc, found, err := s.store.GetDocument(background(), s.space, "a")
				if err != nil || !found {
					t.Errorf("GetDocument: %t, %v", found, err)
					return
				}
				count, _, _ := strings.Cut(string(doc.Data), " ")
				number, _ := strconv.Atoi(count)
				version, ok, err := s.store.PutDocument(background(), s.request("a", fmt.Sprint(number+1, " by ", i), doc.Version))
				if err != nil || version <= doc.Version {
					t.Errorf("PutDocument: %d, %t, %v", version, ok, err)
					return
				}
				if ok {
					n++
					mu.Lock()
					wins[doc.Version]++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	for version, n := range wins {
		if n != 1 {
			t.Errorf("%d puts in the place of version %d succeeded", n, version)
		}
	}
	doc, _ := s.get("a")
	if want := fmt.Sprint(writers * rounds); !strings.HasPrefix(string(doc.Data), want+" ") || len(wins) != writers*rounds {
		t.Errorf("after %d puts, of %d versions, the document counts %q", writers*rounds, len(wins), doc.Data)
	}
}

func concurrentNewDocuments(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	for round := range 5 {
		var (
			wg  sync.WaitGroup
			won atomic.Int64
		)
		name := fmt.Sprint("a", round)
		for i := range 8 {
			wg.Go(func() {
				version, ok, err := s.store.PutDocument(background(), s.request(name, fmt.Sprint("by ", i), store.NoDocument))
				if err != nil || version <= 0 {
					t.Errorf("PutDocument: %d, %t, %v", version, ok, err)
				}
				if ok {
					won.Add(1)
				}
			})
		}
		wg.Wait()
		if n := won.Load(); n != 1 {
			t.Errorf("%d puts of a new document succeeded", n)
		}
	}
}

func growingVersions(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	var last int64
	next := func() {
		t.Helper()
		req := s.request("a", "text", store.AnyVersion)
		req.TTL = shortLease
		version := s.puts(req)
		if version <= last {
			t.Fatalf("version %d after %d", version, last)
		}
		last = version
	}
	for range 20 {
		next()
	}
	for range 5 {
		s.removes("a", store.AnyVersion, true)
		next()
	}
	for range 2 {
		h.Advance(pastLease)
		s.hasNo("a")
		next()
		h.Advance(pastLease)
		s.list()
		s.puts(s.request("b", "text", store.AnyVersion)) // expired ones may go with these
		next()
	}
}

func expiredDocument(t *testing.T, h Harness[store.Documents]) {
	inTime(t, 200*time.Millisecond, func(ttl time.Duration) (late bool) {
		s := newSpace(t, h)
		req := s.request("a", "text", store.AnyVersion)
		req.TTL = ttl
		began := time.Now()
		first := s.puts(req)
		stays := s.puts(s.request("stays", "text", store.AnyVersion))
		h.Advance(ttl / 2)
		_, found := s.get("a")
		if expect(t, "GetDocument", found, true, began, ttl) || expect(t, "ListDocuments", len(s.list()), 2, began, ttl) {
			return true
		}
		h.Advance(ttl/2 + ttl/4)
		s.hasNo("a")
		if all := s.list(); len(all) != 1 {
			t.Errorf("%d documents are listed, want 1", len(all))
		}
		s.refused(s.request("a", "text", first), 0)
		s.removes("a", first, true)
		s.has("a", "new", s.puts(s.request("a", "new", store.NoDocument)))
		s.has("stays", "text", stays)
		return false
	})
}

func longestDocument(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	for _, ttl := range []time.Duration{0, store.MaxDocumentTTL} {
		req := s.request("a", "text", store.AnyVersion)
		req.TTL = ttl
		s.puts(req)
		if doc, found := s.get("a"); !found || doc.Expires > store.MaxDocumentTTL || doc.Expires < store.MaxDocumentTTL-time.Hour {
			t.Errorf("with a TTL of %v it expires in %v: %t", ttl, doc.Expires, found)
		}
	}
}

func removedDocument(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	first := s.puts(s.request("a", "one", store.AnyVersion))
	for _, version := range []int64{1, first - 1, first + 1, 1<<63 - 1} {
		s.removes("a", version, false)
	}
	s.has("a", "one", first)
	second := s.puts(s.request("a", "two", first))
	s.removes("a", first, false)
	s.has("a", "two", second)
	s.removes("a", second, true)
	s.hasNo("a")
	if all := s.list(); len(all) > 0 {
		t.Errorf("listed: %v", all)
	}
	s.puts(s.request("a", "three", store.NoDocument))
	s.removes("a", store.AnyVersion, true)
	s.hasNo("a")
}

func repeatedRemove(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	s.removes("a", store.AnyVersion, true)
	first := s.puts(s.request("a", "one", store.AnyVersion))
	s.removes("a", first, true)
	s.removes("a", first, true)
	second := s.puts(s.request("a", "one", store.NoDocument))
	s.removes("a", first, false) // the repeat does not remove what was put after it
	s.has("a", "one", second)
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
	for doc, err := range s.store.ListDocuments(background(), s.space) { // what is removed during the listing
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

// calls makes one call of each method, and returns the errors.
func (s spaceCase) calls(ctx context.Context) map[string]error {
	errs := make(map[string]error)
	_, _, errs["PutDocument"] = s.store.PutDocument(ctx, s.request("new", "text", store.AnyVersion))
	_, _, errs["GetDocument"] = s.store.GetDocument(ctx, s.space, "a")
	_, errs["RemoveDocument"] = s.store.RemoveDocument(ctx, s.space, "b", store.AnyVersion)
	for _, err := range s.store.ListDocuments(ctx, s.space) {
		errs["ListDocuments"] = err
		break
	}
	return errs
}

func cancelledDocuments(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	s.puts(s.request("a", "text", store.AnyVersion))
	s.puts(s.request("b", "text", store.AnyVersion))
	ctx, cancel := context.WithCancel(background())
	cancel()
	for method, err := range s.calls(ctx) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%s: %v", method, err)
		}
	}
	all := s.list()
	if names := slices.Sorted(maps.Keys(all)); !slices.Equal(names, []string{"a", "b"}) {
		t.Errorf("listed: %q", names)
	}
}

func shutDownDocuments(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	s.puts(s.request("a", "text", store.AnyVersion))
	shutsDown(t, h.Store)
	for method, err := range s.calls(background()) {
		switch {
		case method == "PutDocument":
			wantErrClosed(t, err)
		case err != nil:
			t.Errorf("%s: %v", method, err)
		}
	}
	s.removes("a", store.AnyVersion, true)
	s.hasNo("a")
}

func closedDocuments(t *testing.T, h Harness[store.Documents]) {
	s := newSpace(t, h)
	s.puts(s.request("a", "text", store.AnyVersion))
	closes(t, h.Store)
	for method, err := range s.calls(background()) {
		if err == nil {
			t.Errorf("%s succeeds", method)
		}
		wantErrClosed(t, err)
	}
}
