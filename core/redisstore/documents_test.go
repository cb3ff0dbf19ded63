package redisstore_test

import (
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// aDocument returns the put of a document of the space "s".
func aDocument(name, data string, version int64) store.DocumentRequest {
	return store.DocumentRequest{Space: "s", Name: name, Data: []byte(data), TTL: time.Hour, Version: version}
}

func putsDocument(t testing.TB, s *redisstore.Store, req store.DocumentRequest) int64 {
	t.Helper()
	version, ok, err := s.PutDocument(ctx(), req)
	if err != nil || !ok {
		t.Fatalf("%d, %t, %v", version, ok, err)
	}
	return version
}

func listsDocuments(t testing.TB, s *redisstore.Store) (names []string) {
	t.Helper()
	for doc, err := range s.ListDocuments(ctx(), "s") {
		must(t, err)
		names = append(names, doc.Name)
	}
	return names
}

// A space is in one slot, whatever its name is.
func TestDocumentsInACluster(t *testing.T) {
	t.Parallel()
	client := redistest.StartCluster(t).Client()
	storetest.Documents(t, func(t *testing.T, test func(*testing.T, storetest.Harness[*redisstore.Store])) {
		t.Parallel()
		test(t, storetest.Harness[*redisstore.Store]{Store: newStore(t, client), Advance: time.Sleep})
	})
}

// Damaged documents are none, and are replaced. They fail nothing else.
func TestDamagedDocuments(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	s := newStore(t, client)
	versions := make(map[string]int64)
	names := []string{"whole", "absent", "no expiry", "layout", "short", "number", "replaced"}
	for _, name := range names {
		versions[name] = putsDocument(t, s, aDocument(name, "text", store.AnyVersion))
	}
	keys, err := client.Keys(ctx(), "lk:n:{*}").Result()
	must(t, err)
	documents := keys[0]
	whole, err := client.HGet(ctx(), documents, "dnumber").Result()
	must(t, err)
	must(t, client.HDel(ctx(), documents, "dabsent").Err())
	must(t, client.ZRem(ctx(), documents+"e", "no expiry").Err())
	must(t, client.HSet(ctx(), documents, "dlayout", "2"+whole[1:], "dshort", whole[:48], "dnumber", whole[:5]+"x"+whole[6:],
		"dreplaced", whole[:17]+"+"+whole[18:]).Err())
	if listed := listsDocuments(t, s); len(listed) != 1 || listed[0] != "whole" {
		t.Errorf("listed: %q", listed)
	}
	for _, name := range names[1:] {
		if doc, found, err := s.GetDocument(ctx(), "s", name); found || err != nil {
			t.Errorf("%s: %+v, %v", name, doc, err)
		}
		if version, ok, err := s.PutDocument(ctx(), aDocument(name, "other", versions[name])); ok || version != 0 || err != nil {
			t.Errorf("%s: %d, %t, %v", name, version, ok, err)
		}
		if version := putsDocument(t, s, aDocument(name, "new", store.NoDocument)); version <= versions["replaced"] {
			t.Errorf("%s: version %d after %d", name, version, versions["replaced"])
		}
	}
	if listed := listsDocuments(t, s); len(listed) != len(names) {
		t.Errorf("listed: %q", listed)
	}
	must(t, client.Del(ctx(), documents).Err())
	must(t, client.Set(ctx(), documents, "what is this", time.Hour).Err())
	_, _, err = s.PutDocument(ctx(), aDocument("whole", "text", store.AnyVersion))
	wantUnavailable(t, err, false)
}

// The keys of a space expire after its documents, and a remove or a shorter document shortens them.
// What has expired is removed by the next step.
func TestKeysOfDocumentsExpire(t *testing.T) {
	t.Parallel()
	client := redistest.Start(t).Client()
	s := newStore(t, client)
	check := func(least, most time.Duration, documents int64) {
		t.Helper()
		keys, err := client.Keys(ctx(), "lk:*").Result()
		must(t, err)
		if len(keys) == 0 || len(keys) > 2 {
			t.Fatalf("keys: %q", keys)
		}
		for _, key := range keys {
			if left := client.PTTL(ctx(), key).Val(); left < least || left > most {
				t.Errorf("%s expires in %v, want %v to %v", key, left, least, most)
			}
			if strings.HasSuffix(key, "e") {
				if n := client.ZCard(ctx(), key).Val(); n != documents {
					t.Errorf("%d documents have an expiry, want %d", n, documents)
				}
			} else if n := client.HLen(ctx(), key).Val(); n != documents+1 {
				t.Errorf("%d fields, want %d", n, documents+1)
			}
		}
	}
	forever := aDocument("a", "text", store.AnyVersion)
	forever.TTL = 0
	putsDocument(t, s, forever)
	check(store.MaxDocumentTTL, store.MaxDocumentTTL+time.Hour, 1)
	putsDocument(t, s, aDocument("b", "text", store.AnyVersion))
	check(store.MaxDocumentTTL, store.MaxDocumentTTL+time.Hour, 2)
	_, err := s.RemoveDocument(ctx(), "s", "a", store.AnyVersion)
	must(t, err)
	check(time.Hour, 2*time.Hour, 1)
	short := aDocument("c", "text", store.AnyVersion)
	for range 3 {
		short.TTL = 10 * time.Millisecond
		putsDocument(t, s, short)
		<-time.After(2 * short.TTL)
		if listed := listsDocuments(t, s); len(listed) != 1 {
			t.Errorf("listed: %q", listed)
		}
		check(time.Hour, 2*time.Hour, 1)
	}
	_, err = s.RemoveDocument(ctx(), "s", "b", store.AnyVersion)
	must(t, err)
	check(59*time.Minute, time.Hour, 0)
}

// The repeat of a call whose reply is lost has the reply of the first.
func TestDocumentsAfterLostReplies(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	s := newStore(t, dial(t, proxy.Addr(), time.Second))
	version := putsDocument(t, s, aDocument("a", "0", store.AnyVersion))
	for n := range 5 {
		proxy.LoseReplies("evalsha", 1, redistest.Cut)
		next := putsDocument(t, s, aDocument("a", fmt.Sprint(n+1), version))
		if doc, found, err := s.GetDocument(ctx(), "s", "a"); err != nil || !found || doc.Version != next || next <= version {
			t.Fatalf("version %d after %d, and found %+v, %v", next, version, doc, err)
		}
		version = next
	}
	proxy.LoseReplies("evalsha", 1, redistest.Cut)
	if gone, err := s.RemoveDocument(ctx(), "s", "a", version); !gone || err != nil {
		t.Errorf("%t, %v", gone, err)
	}
	proxy.LoseReplies("evalsha", 1, redistest.Cut)
	putsDocument(t, s, aDocument("a", "new", store.NoDocument))
}

// A server whose memory is full takes no document, and still reads and removes its own.
func TestDocumentsOfAFullServer(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	client := server.Client()
	s := newStore(t, client)
	version := putsDocument(t, s, aDocument("a", "text", store.AnyVersion))
	configure(t, client, "maxmemory", "1")
	if _, ok, err := s.PutDocument(ctx(), aDocument("b", "text", store.AnyVersion)); ok || !errors.Is(err, store.ErrFull) {
		t.Errorf("%t, %v, want store.ErrFull", ok, err)
	}
	if doc, found, err := s.GetDocument(ctx(), "s", "a"); err != nil || !found || doc.Version != version {
		t.Errorf("%+v, %v", doc, err)
	}
	if listed := listsDocuments(t, s); len(listed) != 1 {
		t.Errorf("listed: %q", listed)
	}
	if gone, err := s.RemoveDocument(ctx(), "s", "a", version); !gone || err != nil {
		t.Errorf("%t, %v", gone, err)
	}
}

// Puts and removes beside listings: none is listed twice, and the ones that stay are listed.
func TestListingsBesidePuts(t *testing.T) {
	t.Parallel()
	s := newStore(t, redistest.Start(t).Client())
	for i := range 1200 { // several calls
		putsDocument(t, s, aDocument(fmt.Sprint("stays", i), "text", store.AnyVersion))
	}
	var wg sync.WaitGroup
	stop := make(chan struct{})
	for i := range 2 {
		wg.Go(func() {
			for n := 0; ; n++ {
				select {
				case <-stop:
					return
				default:
				}
				name := fmt.Sprint("moves", i, " ", n%50)
				_, _, err := s.PutDocument(ctx(), aDocument(name, "text", store.AnyVersion))
				if err == nil && n%3 == 0 {
					_, err = s.RemoveDocument(ctx(), "s", name, store.AnyVersion)
				}
				if err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	for range 5 {
		seen, stays := make(map[string]bool), 0
		for _, name := range listsDocuments(t, s) {
			if seen[name] {
				t.Errorf("%s is listed twice", name)
			}
			seen[name] = true
			if strings.HasPrefix(name, "stays") {
				stays++
			}
		}
		if stays != 1200 {
			t.Errorf("%d documents that stay are listed, want 1200", stays)
		}
	}
	close(stop)
	wg.Wait()
}
