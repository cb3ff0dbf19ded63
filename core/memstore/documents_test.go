package memstore_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// A full store refuses further documents and larger ones, keeps its own, and has room again after a
// removal or an expiry.
func TestFullOfDocuments(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithMaxDocumentBytes(2048))
		put := func(name string, size int, ttl time.Duration) error {
			_, ok, err := s.PutDocument(t.Context(), store.DocumentRequest{Space: "s", Name: name, Data: make([]byte, size), TTL: ttl})
			if ok != (err == nil) {
				t.Errorf("%s: %t, %v", name, ok, err)
			}
			return err
		}
		ok(t, put("a", 510, time.Minute))
		ok(t, put("b", 507, 0))
		for range 3 {
			for name, size := range map[string]int{"c": 0, "a": 1000} {
				if err := put(name, size, 0); !errors.Is(err, store.ErrFull) {
					t.Errorf("%s: %v, want store.ErrFull", name, err)
				}
			}
		}
		ok(t, put("a", 510, time.Minute)) // of the same size
		ok(t, put("a", 100, time.Minute))
		time.Sleep(time.Minute)
		ok(t, put("c", 500, 0)) // in the place of the expired one
		if err := put("d", 500, 0); !errors.Is(err, store.ErrFull) {
			t.Errorf("d: %v, want store.ErrFull", err)
		}
		if gone, err := s.RemoveDocument(t.Context(), "s", "b", store.AnyVersion); !gone || err != nil {
			t.Errorf("remove: %t, %v", gone, err)
		}
		ok(t, put("d", 500, 0))
	})
}

// The counts of documents and of their bytes are exact after any sequence of calls.
func TestDocumentCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithMaxDocumentBytes(100 << 10))
		random := rand.New(rand.NewPCG(1, 2))
		for range 20_000 {
			space, name := fmt.Sprint("space", random.IntN(5)), fmt.Sprint("name", random.IntN(50))
			switch random.IntN(4) {
			case 0:
				_, err := s.RemoveDocument(t.Context(), space, name, store.AnyVersion)
				ok(t, err)
			case 1:
				time.Sleep(time.Duration(random.IntN(200)) * time.Millisecond)
			default:
				_, _, err := s.PutDocument(t.Context(), store.DocumentRequest{
					Space: space, Name: name, Data: make([]byte, random.IntN(2000)), TTL: time.Duration(1+random.IntN(60)) * time.Second,
				})
				if err != nil && !errors.Is(err, store.ErrFull) {
					t.Fatal(err)
				}
			}
			if used, counted := s.DocumentBytes(); used != counted || used > 100<<10 {
				t.Fatalf("%d bytes are counted, want %d", used, counted)
			}
		}
		time.Sleep(time.Minute)
		s.SweepDocuments()
		if used, counted := s.DocumentBytes(); used != 0 || counted != 0 {
			t.Errorf("without documents %d bytes are counted, want %d", used, counted)
		}
	})
}
