package memstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// A full store refuses new keys rather than forget what an old one owes.
func TestFullOfBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithMaxBuckets(10))
		l, err := tokenbucket.New(s, "api", tokenbucket.Per(1, time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		ask := func(key int) (tokenbucket.Decision, error) { return l.Allow(t.Context(), fmt.Sprint(key)) }
		for key := range 10 {
			if d, err := ask(key); err != nil || !d.Allowed {
				t.Fatalf("key %d: %+v, %v", key, d, err)
			}
		}
		for range 3 {
			if _, err := ask(10); !errors.Is(err, core.ErrFull) || !errors.Is(err, core.ErrUnavailable) {
				t.Fatalf("an eleventh key: %v", err)
			}
		}
		for key := range 10 {
			if d, err := ask(key); err != nil || d.Allowed {
				t.Fatalf("key %d was forgotten: %+v, %v", key, d, err)
			}
		}
		if _, err := l.Peek(t.Context(), "10"); err != nil {
			t.Errorf("a question that keeps nothing: %v", err)
		}
		time.Sleep(time.Minute)
		for key := range 10 { // what is full again makes room
			if d, err := ask(key + 100); err != nil || !d.Allowed {
				t.Fatalf("new key %d: %+v, %v", key, d, err)
			}
		}
	})
}

// Keys that come once do not pile up, though nobody sweeps in the background.
func TestExpiredBucketsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithMaxBuckets(100))
		l, err := tokenbucket.New(s, "api", tokenbucket.Per(1, time.Millisecond))
		if err != nil {
			t.Fatal(err)
		}
		for key := range 10_000 {
			if _, err := l.Allow(t.Context(), fmt.Sprint(key)); err != nil {
				t.Fatalf("key %d: %v", key, err)
			}
			time.Sleep(50 * time.Microsecond) // about twenty are live at a time
		}
	})
}

func TestFullOfRecords(t *testing.T) {
	s := memstore.New(memstore.WithMaxRecordBytes(2048)) // four records without results
	begin := func(id string) (guard.BeginReply, error) {
		return s.BeginOperation(t.Context(), guard.BeginRequest{
			ID: id, Owner: "owner-" + id, Fingerprint: "f", Lease: time.Minute, Retention: time.Hour,
		})
	}
	settle := func(id string, data []byte) (bool, error) {
		return s.SettleOperation(t.Context(), guard.SettleRequest{
			ID: id, Owner: "owner-" + id, Fingerprint: "f", Number: 1, State: guard.Completed, Status: 201, Data: data, Retention: time.Hour,
		})
	}
	for _, id := range []string{"a", "b", "c"} {
		if reply, err := begin(id); err != nil || reply.Outcome != guard.Started {
			t.Fatalf("%s: %+v, %v", id, reply, err)
		}
	}
	if owned, err := settle("a", bytes.Repeat([]byte("x"), 300)); !owned || err != nil {
		t.Fatalf("a result that fits: %v, %v", owned, err)
	}
	// There is room for 212 bytes more: neither for a result of 300 nor for another record.
	if owned, err := settle("b", bytes.Repeat([]byte("x"), 300)); !owned || err != nil {
		t.Fatalf("a result that does not fit: %v, %v", owned, err)
	}
	if _, err := begin("d"); !errors.Is(err, core.ErrFull) {
		t.Fatalf("a fourth operation: %v", err)
	}
	for id, want := range map[string]guard.State{"a": guard.Completed, "b": guard.NotRetained} {
		reply, err := s.BeginOperation(t.Context(), guard.BeginRequest{
			ID: id, Owner: "another", Fingerprint: "f", Lease: time.Minute, Retention: time.Hour,
		})
		if err != nil || reply.Outcome != guard.Settled || reply.State != want || reply.Status != 201 {
			t.Errorf("%s: %+v, %v, want state %d", id, reply, err, want)
		}
	}
	if owned, err := s.AbandonOperation(t.Context(), "c", "owner-c"); !owned || err != nil {
		t.Fatalf("abandon: %v, %v", owned, err)
	}
	if reply, err := begin("d"); err != nil || reply.Outcome != guard.Started {
		t.Errorf("after room was made: %+v, %v", reply, err)
	}
}

// The bytes of results that are gone are free again.
func TestExpiredResultsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithMaxRecordBytes(8192))
		g, err := guard.New(s, "g", guard.WithRetention(time.Minute))
		if err != nil {
			t.Fatal(err)
		}
		for i := range 100 {
			op := guard.Operation{Key: fmt.Sprint(i)}
			a, _, err := g.Begin(t.Context(), op)
			if err != nil {
				t.Fatalf("operation %d: %v", i, err)
			}
			if err := a.Complete(t.Context(), guard.Result{Data: bytes.Repeat([]byte("x"), 1000)}); err != nil {
				t.Fatal(err)
			}
			if _, r, err := g.Begin(t.Context(), op); err != nil || len(r.Data) != 1000 {
				t.Fatalf("operation %d is not replayed: %v", i, err)
			}
			time.Sleep(20 * time.Second) // about three are kept at a time
		}
	})
}

func TestResultsAreCopies(t *testing.T) {
	g, err := guard.New(memstore.New(), "g")
	if err != nil {
		t.Fatal(err)
	}
	data := []byte("good")
	a, _, err := g.Begin(t.Context(), guard.Operation{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	if err := a.Complete(t.Context(), guard.Result{Data: data}); err != nil {
		t.Fatal(err)
	}
	copy(data, "evil")
	for range 2 {
		_, r, err := g.Begin(t.Context(), guard.Operation{Key: "k"})
		if err != nil || string(r.Data) != "good" {
			t.Fatalf("replayed %q, %v", r.Data, err)
		}
		copy(r.Data, "evil")
	}
}

func TestOptionsPanic(t *testing.T) {
	for want, build := range map[string]func(){
		"memstore: WithMaxBuckets: 0":       func() { memstore.WithMaxBuckets(0) },
		"memstore: WithMaxRecordBytes: 511": func() { memstore.WithMaxRecordBytes(511) },
		"memstore: WithMaxLocks: 0":         func() { memstore.WithMaxLocks(0) },
		"memstore: WithMaxPermits: 0":       func() { memstore.WithMaxPermits(0) },
		"memstore: WithMaxParticipants: 0":  func() { memstore.WithMaxParticipants(0) },
	} {
		func() {
			defer func() {
				if got, _ := recover().(string); !strings.HasPrefix(got, want) {
					t.Errorf("panicked with %q, want %q", got, want)
				}
			}()
			build()
		}()
	}
	if err := memstore.New(nil).Ping(t.Context()); err != nil {
		t.Errorf("a nil option: %v", err)
	}
}
