package memstore_test

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// A full store that may evict no bucket refuses new keys, and keeps the debts of old ones.
func TestFullOfBuckets(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithMaxBuckets(10), memstore.RefuseNewBuckets())
		l := must(tokenbucket.New(s, "api", tokenbucket.Per(1, time.Minute)))
		allow := func(key int) (tokenbucket.Decision, error) { return l.Allow(t.Context(), fmt.Sprint(key)) }
		for key := range 10 {
			if d, err := allow(key); err != nil || !d.Allowed {
				t.Fatalf("key %d: %+v, %v", key, d, err)
			}
		}
		for range 3 {
			if _, err := allow(10); !errors.Is(err, store.ErrFull) || !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("an eleventh key: %v", err)
			}
		}
		for key := range 10 {
			if d, err := allow(key); err != nil || d.Allowed {
				t.Fatalf("key %d was forgotten: %+v, %v", key, d, err)
			}
		}
		if _, err := l.Peek(t.Context(), "10"); err != nil {
			t.Errorf("Peek, which keeps nothing: %v", err)
		}
		time.Sleep(time.Minute)
		for key := range 10 { // full buckets leave room
			if d, err := allow(key + 100); err != nil || !d.Allowed {
				t.Fatalf("new key %d: %+v, %v", key, d, err)
			}
		}
	})
}

// A flood of keys that are used once each displaces none that is at its limit: not one more request
// of those passes. The newest key is limited too.
func TestFloodOfNewKeys(t *testing.T) {
	t.Parallel()
	const (
		room    = 1000
		victims = 50
		burst   = 10
	)
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithMaxBuckets(room))
		l := must(tokenbucket.New(s, "api", tokenbucket.PerHour(burst)))
		pass := func(key string) bool {
			t.Helper()
			d, err := l.Allow(t.Context(), key)
			if err != nil {
				t.Fatalf("%s: %v", key, err)
			}
			return d.Allowed
		}
		passed := 0
		for i := range 30 * room {
			pass(fmt.Sprint("flood-", i))
			if victim := fmt.Sprint("victim-", i%victims); pass(victim) {
				passed++
			}
		}
		if passed != victims*burst {
			t.Errorf("%d requests of %d keys with a limit of %d passed", passed, victims, burst)
		}
		for range burst {
			if !pass("new") {
				t.Fatal("a new key is denied within its limit")
			}
		}
		if pass("new") {
			t.Error("a new key passes beyond its limit: a full store does not remember it")
		}
	})
}

// The cost of eviction: if a single request uses up a limit, a flood displaces all keys alike. A key
// then passes about once per as many new keys as the store holds.
func TestFloodOfKeysAtTheirLimit(t *testing.T) {
	const room, flood = 1000, 30_000
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithMaxBuckets(room))
		l := must(tokenbucket.New(s, "api", tokenbucket.PerHour(1)))
		passed := 0
		for i := range flood {
			for _, key := range []string{fmt.Sprint("flood-", i), "victim"} {
				d := must(l.Allow(t.Context(), key))
				if key == "victim" && d.Allowed {
					passed++
				}
			}
			time.Sleep(time.Microsecond)
		}
		t.Logf("the victim, with a limit of 1, passed %d times during %d new keys in a store of %d", passed, flood, room)
		if passed > 2*flood/room {
			t.Errorf("the victim passed %d times", passed)
		}
	})
}

// A store that has room for fewer buckets than a key has limits refuses the key, and does not
// panic.
func TestFewerBucketsThanLimits(t *testing.T) {
	s := memstore.New(memstore.WithMaxBuckets(1))
	l := must(tokenbucket.New(s, "api", tokenbucket.Limits{tokenbucket.PerHour(1), tokenbucket.PerMinute(1)}))
	for range 2 {
		if _, err := l.Allow(t.Context(), "k"); !errors.Is(err, store.ErrFull) {
			t.Errorf("got %v, want store.ErrFull", err)
		}
	}
}

// Expired buckets leave room without a sweep in the background.
func TestExpiredBucketsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithMaxBuckets(100))
		l := must(tokenbucket.New(s, "api", tokenbucket.Per(1, time.Millisecond)))
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
	ref := func(id string) store.AttemptRef {
		return store.AttemptRef{OperationRef: store.OperationRef{ID: id}, Owner: "owner-" + id}
	}
	begin := func(id string) (store.BeginReply, error) {
		return s.BeginOperation(t.Context(), store.BeginRequest{
			AttemptRef: ref(id), Fingerprint: "f", Lease: time.Minute, Retention: time.Hour,
		})
	}
	settle := func(id string, data []byte) (bool, error) {
		return s.SettleOperation(t.Context(), store.SettleRequest{
			AttemptRef: ref(id), Fingerprint: "f", Number: 1, State: store.Completed, Status: 201, Data: data, Retention: time.Hour,
		})
	}
	wantState := func(id string, want store.RecordState) {
		t.Helper()
		reply, err := s.BeginOperation(t.Context(), store.BeginRequest{
			AttemptRef: store.AttemptRef{OperationRef: store.OperationRef{ID: id}, Owner: "another"}, Fingerprint: "f", Lease: time.Minute, Retention: time.Hour,
		})
		if err != nil || reply.Outcome != store.Settled || reply.State != want || reply.Status != 201 {
			t.Errorf("%s: %+v, %v, want state %d", id, reply, err, want)
		}
	}
	for _, id := range []string{"a", "b", "c"} {
		if reply, err := begin(id); err != nil || reply.Outcome != store.Started {
			t.Fatalf("%s: %+v, %v", id, reply, err)
		}
	}
	if owned, err := settle("a", bytes.Repeat([]byte("x"), 300)); !owned || err != nil {
		t.Fatalf("a result that fits: %v, %v", owned, err)
	}
	// The free 212 bytes are too few for a result of 300, which evicts no other of its size.
	if owned, err := settle("b", bytes.Repeat([]byte("x"), 300)); !owned || err != nil {
		t.Fatalf("a result that does not fit: %v, %v", owned, err)
	}
	wantState("a", store.Completed)
	wantState("b", store.NotRetained)
	// A new operation evicts a result, and no operation that has run.
	if reply, err := begin("d"); err != nil || reply.Outcome != store.Started {
		t.Fatalf("a fourth operation: %+v, %v", reply, err)
	}
	for range 3 {
		if _, err := begin("e"); !errors.Is(err, store.ErrFull) {
			t.Fatalf("a fifth operation: %v", err)
		}
		wantState("a", store.NotRetained)
		wantState("b", store.NotRetained)
		if reply, err := s.BeginOperation(t.Context(), store.BeginRequest{
			AttemptRef: store.AttemptRef{OperationRef: store.OperationRef{ID: "c"}, Owner: "another"}, Fingerprint: "f", Lease: time.Minute, Retention: time.Hour,
		}); err != nil || reply.Outcome != store.Busy {
			t.Errorf("an attempt in flight: %+v, %v", reply, err)
		}
	}
	if owned, err := settle("d", nil); !owned || err != nil {
		t.Errorf("settle: %v, %v", owned, err)
	}
	if owned, err := s.AbandonOperation(t.Context(), ref("c")); !owned || err != nil {
		t.Fatalf("abandon: %v, %v", owned, err)
	}
	if reply, err := begin("e"); err != nil || reply.Outcome != store.Started {
		t.Errorf("after room was made: %+v, %v", reply, err)
	}
}

// noise has bytes that a guard does not compress.
var noise = func() []byte {
	b := make([]byte, 65<<10)
	_, _ = rand.NewChaCha8([32]byte{}).Read(b)
	return b
}()

// A scope with many large results does not block others, and its own operations do not run again.
func TestLargeScope(t *testing.T) {
	t.Parallel()
	for name, attacker := range map[string]string{"a scope": "mallory", "no scope": ""} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := memstore.New(memstore.WithMaxRecordBytes(32 << 20))
			g := must(guard.New(s, "g", guard.WithMaxResult(1<<20), guard.WithMaxScopeBytes(1<<30)))
			run := func(op guard.Operation, size int) {
				t.Helper()
				a, _, err := g.Begin(t.Context(), op)
				if err == nil {
					err = a.Complete(t.Context(), guard.Result{Status: 201, Data: noise[:size]})
				}
				if err != nil {
					t.Fatalf("%v: %v", op, err)
				}
			}
			attack := func(i int) guard.Operation { return guard.Operation{Scope: attacker, Key: fmt.Sprint(i)} }
			victim := func(i int) guard.Operation { return guard.Operation{Scope: fmt.Sprint("user", i), Key: "k"} }
			for i := range 100 { // earlier users
				run(victim(i), 1000)
			}
			for i := range 1000 {
				run(attack(i), 65<<10)
			}
			for i := range 10_000 { // the rest, in small results
				if a, _, err := g.Begin(t.Context(), attack(1000+i)); err == nil {
					_ = a.Complete(t.Context(), guard.Result{Data: []byte("x")})
				}
			}
			for i := range 200 {
				if i >= 100 {
					run(victim(i), 1000)
				}
				if _, r, err := g.Begin(t.Context(), victim(i)); err != nil || len(r.Data) != 1000 {
					t.Fatalf("the result of user %d: %v", i, err)
				}
			}
			kept := 0
			for i := range 1000 {
				a, r, err := g.Begin(t.Context(), attack(i))
				if a != nil || r == nil && !errors.Is(err, guard.ErrNotRetained) {
					t.Fatalf("operation %d would run again: %v", i, err)
				}
				if r != nil {
					kept++
				}
			}
			if kept == 0 {
				t.Error("no result was kept")
			}
		})
	}
}

// The count of bytes is exact after any sequence of calls.
func TestRecordBytes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithMaxRecordBytes(200 << 10))
		g, err := guard.New(s, "g", guard.WithRetention(time.Minute), guard.WithRerun(), guard.WithTTL(time.Second),
			guard.WithMaxPerScope(50), guard.WithMaxScopeBytes(40<<10))
		if err != nil {
			t.Fatal(err)
		}
		random := rand.New(rand.NewPCG(1, 2))
		began := 0
		for range 20_000 {
			op := guard.Operation{Scope: fmt.Sprint(random.IntN(20)), Key: fmt.Sprint(random.IntN(30))}
			if random.IntN(5) == 0 {
				op.Scope = ""
			}
			a, _, err := g.Begin(t.Context(), op)
			if a == nil {
				if err != nil && !errors.Is(err, store.ErrFull) && !errors.Is(err, guard.ErrNotRetained) && !errors.Is(err, guard.ErrInFlight) &&
					!errors.Is(err, guard.ErrScopeFull) {
					t.Fatal(err)
				}
				continue
			}
			began++
			switch random.IntN(5) {
			case 0:
				err = a.Abandon(t.Context())
			case 1:
				err = a.CompleteUnknown(t.Context())
			case 2:
				err = a.CompleteNotRetained(t.Context(), 200)
			default:
				err = a.Complete(t.Context(), guard.Result{Data: noise[:random.IntN(8<<10)]})
			}
			if err != nil {
				t.Fatal(err)
			}
			if random.IntN(10) == 0 {
				time.Sleep(time.Duration(random.IntN(1000)) * time.Millisecond)
			}
			if used, counted := s.RecordBytes(); used != counted || used > 200<<10 {
				t.Fatalf("after %d attempts %d bytes are counted, want %d", began, used, counted)
			}
		}
		time.Sleep(time.Minute)
		s.SweepRecords()
		if used, counted := s.RecordBytes(); used != 0 || counted != 0 {
			t.Errorf("without records %d bytes are counted, want %d", used, counted)
		}
	})
}

// Expired results leave their bytes free.
func TestExpiredResultsMakeRoom(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := memstore.New(memstore.WithMaxRecordBytes(8192))
		g := must(guard.New(s, "g", guard.WithRetention(time.Minute)))
		for i := range 100 {
			op := guard.Operation{Key: fmt.Sprint(i)}
			a, _, err := g.Begin(t.Context(), op)
			if err != nil {
				t.Fatalf("operation %d: %v", i, err)
			}
			ok(t, a.Complete(t.Context(), guard.Result{Data: bytes.Repeat([]byte("x"), 1000)}))
			if _, r, err := g.Begin(t.Context(), op); err != nil || len(r.Data) != 1000 {
				t.Fatalf("operation %d is not replayed: %v", i, err)
			}
			time.Sleep(20 * time.Second) // about three are kept at a time
		}
	})
}

func TestResultsAreCopies(t *testing.T) {
	g := must(guard.New(memstore.New(), "g"))
	data := []byte("good")
	a, _, err := g.Begin(t.Context(), guard.Operation{Key: "k"})
	if err != nil {
		t.Fatal(err)
	}
	ok(t, a.Complete(t.Context(), guard.Result{Data: data}))
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
		"memstore: WithMaxLeases: 0":        func() { memstore.WithMaxLeases(0) },
		"memstore: WithMaxParticipants: 0":  func() { memstore.WithMaxParticipants(0) },
		"memstore: WithMaxDocumentBytes: 5": func() { memstore.WithMaxDocumentBytes(511) },
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
