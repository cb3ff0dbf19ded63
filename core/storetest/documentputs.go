package storetest

import (
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

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
		began := time.Now()
		s.puts(req)
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
