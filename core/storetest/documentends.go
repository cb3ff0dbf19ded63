package storetest

import (
	"context"
	"errors"
	"maps"
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

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
