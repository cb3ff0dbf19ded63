package pgstore

import (
	"context"
	"encoding/json"
	"io"
	"maps"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgtype"

	"github.com/lockkeeper/lockkeeper/core/internal/waiting"
	"github.com/lockkeeper/lockkeeper/core/store"
)

type (
	sharedAcquire = sharer[store.LeaseRequest, waiting.Reply]
	sharedRelease = sharer[store.LeaseRef, string]
)

// together requests leases as callers do whose requests share a statement.
func together(t *testing.T, s *Store, reqs ...store.LeaseRequest) []*sharedAcquire {
	t.Helper()
	all := make([]*sharedAcquire, len(reqs))
	for i := range reqs {
		all[i] = &sharedAcquire{asked: &reqs[i], key: s.leaseKey(reqs[i].Name, reqs[i].Key)}
	}
	s.free.acquires.send(t.Context(), all)
	for _, a := range all {
		must(t, a.Failed())
	}
	return all
}

// togetherReleased releases as callers do whose releases share a statement, and returns the outcomes.
func togetherReleased(t *testing.T, s *Store, refs ...store.LeaseRef) (outcomes []string) {
	t.Helper()
	all := make([]*sharedRelease, len(refs))
	for i := range refs {
		all[i] = &sharedRelease{asked: &refs[i], key: s.leaseKey(refs[i].Name, refs[i].Key)}
	}
	s.free.releases.send(t.Context(), all)
	for _, r := range all {
		must(t, r.Failed())
		outcomes = append(outcomes, r.reply)
	}
	return outcomes
}

// rowOf returns what the row of a key has, without the times of its steps.
func rowOf(t *testing.T, s *Store, key string) map[string]any {
	t.Helper()
	var text []byte
	must(t, s.db.Pool().QueryRow(t.Context(), s.db.Text("SELECT to_json(l) FROM lk.leases l WHERE id = $1"), s.leaseKey(store.LockKind+"jobs", key)).Scan(&text))
	row := make(map[string]any)
	must(t, json.Unmarshal(text, &row))
	row["lasts"] = row["ends"].(float64) - row["since"].(float64)
	row["fences"] = row["last"].(float64) - row["first"].(float64)
	for _, name := range []string{"id", "holder", "released", "fence", "first", "last", "ends", "since", "released_fence"} {
		delete(row, name)
	}
	return row
}

// A statement for many keys leaves in a key's row what one for a single key leaves there, also for a
// key that was used before by another process, and for a new one.
func TestManyLeasesAsOne(t *testing.T) {
	t.Parallel()
	t.Run("with prepared statements", func(t *testing.T) { t.Parallel(); manyLeasesAsOne(t) })
	t.Run("as behind a pooler", func(t *testing.T) { t.Parallel(); manyLeasesAsOne(t, WithTransactionPooler("")) })
}

func manyLeasesAsOne(t *testing.T, opts ...Option) {
	dsn := migrated(t)
	s, other := openTestStore(t, dsn, opts...), openTestStore(t, dsn)
	request := func(key string) store.LeaseRequest {
		req := exclusive(key)
		req.Weight, req.TTL, req.Fences, req.Label = 7, 20*time.Second, 5, "somebody"
		return req
	}
	for _, key := range []string{"used 1", "used 2", "used 3"} {
		ends(t, s, store.Released, takes(t, s, exclusive(key)))
	}
	for _, key := range []string{"away 1", "away 2", "away 3"} {
		ends(t, other, store.Released, takes(t, other, exclusive(key)))
	}
	var many []store.LeaseRequest
	alone := make(map[string]store.LeaseRef)
	for _, kind := range []string{"used", "away", "new"} {
		alone[kind] = takes(t, s, request(kind+" 1"))
		many = append(many, request(kind+" 2"), request(kind+" 3"))
	}
	var refs []store.LeaseRef
	for i, a := range together(t, s, many...) {
		r := a.reply
		if !a.made || r.Outcome != store.Granted || r.TTL != 20*time.Second || r.LastFence != r.Fence+4 || r.Fence <= alone["used"].Fence || time.Since(r.Sent) > 10*time.Second {
			t.Errorf("%s: %+v", many[i].Key, a)
		}
		refs = append(refs, many[i].Ref(r.Fence))
		if held, err := s.VerifyLease(t.Context(), refs[i]); err != nil || !held {
			t.Errorf("%s is not held: %v", many[i].Key, err)
		}
	}
	same := func(when string) {
		for _, kind := range []string{"used", "away", "new"} {
			one := rowOf(t, s, kind+" 1")
			for _, key := range []string{kind + " 2", kind + " 3"} {
				if row := rowOf(t, s, key); !maps.Equal(row, one) {
					t.Errorf("%s, %s:\n%v, alone\n%v", when, key, row, one)
				}
			}
		}
	}
	same("acquired")
	for _, outcome := range togetherReleased(t, s, refs...) {
		if outcome != "yes" {
			t.Errorf("released: %q", outcome)
		}
	}
	for _, ref := range alone {
		ends(t, s, store.Released, ref)
	}
	same("released")
	var synchronous string
	must(t, s.db.Pool().QueryRow(t.Context(), "SHOW synchronous_commit").Scan(&synchronous))
	if synchronous != "on" {
		t.Errorf("synchronous_commit is %s after a release", synchronous)
	}
}

// A shared statement leaves these keys to a step: keys that are held, queued for, bound or have
// tombstones, and keys that another transaction has locked, for which it does not wait.
func TestManyLeasesLeaveTheRest(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	s, other := openTestStore(t, dsn), openTestStore(t, dsn)
	held := takes(t, other, exclusive("held"))
	takes(t, other, exclusive("queued"))
	waitsFor(t, other, exclusive("queued"))
	for _, key := range []string{"late", "bound", "locked", "ahead", "free"} {
		ends(t, other, store.Released, takes(t, other, exclusive(key)))
	}
	key := func(name string) leaseKey { return s.leaseKey(store.LockKind+"jobs", name) }
	change := func(name, set string) {
		tag, err := s.db.Pool().Exec(t.Context(), s.db.Text("UPDATE lk.leases SET "+set+" WHERE id = $1"), key(name))
		if must(t, err); tag.RowsAffected() != 1 {
			t.Fatal(tag)
		}
	}
	change("late", "late = lk.now_us() + 60000000")
	change("bound", "bound = true")
	change("ahead", "fence = lk.now_us() + 1000000")
	tx, err := connect(t, dsn).Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), s.db.Text("SELECT FROM lk.leases WHERE id = $1 FOR UPDATE"), key("locked"))
	must(t, err)

	names := []string{"held", "queued", "late", "bound", "locked", "ahead", "free", "new"}
	var reqs []store.LeaseRequest
	for _, name := range names {
		reqs = append(reqs, exclusive(name))
	}
	got := together(t, s, reqs...)
	for i, name := range names {
		if want := i >= 5; got[i].made != want {
			t.Errorf("%s is made: %v, want %v", name, got[i].made, want)
		}
	}
	if r := got[5].reply; r.Fence != r.LastFence || r.Fence <= time.Now().UnixMicro() {
		t.Errorf("the fences of a lock whose fences are ahead of the clock: %d to %d", r.Fence, r.LastFence)
	}
	refs := []store.LeaseRef{held, reqs[0].Ref(0), reqs[1].Ref(0), reqs[6].Ref(got[6].reply.Fence), reqs[7].Ref(1)}
	wrong := held
	wrong.Fence++
	if outcomes := togetherReleased(t, s, wrong, refs[3], refs[4]); !slices.Equal(outcomes, []string{"", "yes", ""}) {
		t.Errorf("released: %q", outcomes)
	}
	if outcomes := togetherReleased(t, s, refs[1], refs[2]); !slices.Equal(outcomes, []string{"", ""}) {
		t.Errorf("released: %q", outcomes)
	}
	if outcomes := togetherReleased(t, s, refs[0], refs[2]); !slices.Equal(outcomes, []string{"yes", ""}) {
		t.Errorf("released: %q", outcomes)
	}
	if outcomes := togetherReleased(t, s, reqs[5].Ref(0), reqs[7].Ref(0)); !slices.Equal(outcomes, []string{"yes", "yes"}) {
		t.Errorf("released without a fence: %q", outcomes)
	}
	must(t, tx.Rollback(t.Context()))
}

// Requests that share a statement read few pages beside an old transaction, with and without a place.
func TestManyLeasesBesideAnOldTransaction(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	end := openOldTransaction(t, s)
	for range 1500 {
		ends(t, s, store.Released, takes(t, s, exclusive("hot")))
	}
	key := s.leaseKey(store.LockKind+"jobs", "hot")
	for _, at := range []pgtype.TID{s.rows.get(key), {}} {
		keys, places := uuids([][16]byte{key}), []pgtype.TID{at}
		n := pages(t, s, acquireMany, "process", keys, []string{"id"}, []int64{1e6}, []int32{1}, [][]byte{nil}, []int64{1}, places, [][]byte{{}}, [][]byte{nil})
		if n > 25 {
			t.Errorf("an acquire reads %d pages", n)
		}
		takes(t, s, exclusive("hot"))
		var id string
		must(t, s.db.Pool().QueryRow(t.Context(), s.db.Text("SELECT holder FROM lk.leases WHERE id = $1 AND holder IS NOT NULL"), key).Scan(&id))
		if n := pages(t, s, releaseMany, keys, []string{id}, []int64{0}, places); n > 25 {
			t.Errorf("a release reads %d pages", n)
		}
		req := exclusive("hot")
		ref := req.Ref(0)
		ref.ID = id
		ends(t, s, store.Released, ref)
	}
	end()
}

// Many callers with keys of their own share statements, and each lease is its caller's.
func TestCallersShareStatements(t *testing.T) {
	t.Parallel()
	s := openTestStore(t, migrated(t), WithConnections(3))
	var calls, shared atomic.Int64
	acquires, releases := s.free.acquires.batcher.Send, s.free.releases.batcher.Send
	s.free.acquires.batcher.Send = func(ctx context.Context, all []*sharedAcquire) bool {
		calls.Add(1)
		shared.Add(int64(len(all)))
		return acquires(ctx, all)
	}
	s.free.releases.batcher.Send = func(ctx context.Context, all []*sharedRelease) bool {
		calls.Add(1)
		shared.Add(int64(len(all)))
		return releases(ctx, all)
	}
	const goroutines, times = 64, 20
	var wg sync.WaitGroup
	for g := range goroutines {
		wg.Go(func() {
			fence := int64(0)
			for range times {
				req := exclusive(strconv.Itoa(g))
				reply, err := s.AcquireLease(t.Context(), req)
				if err != nil || reply.Outcome != store.Granted || reply.Fence <= fence {
					t.Errorf("%+v, %v after fence %d", reply, err, fence)
					return
				}
				fence = reply.LastFence
				outcomes, err := s.ReleaseLeases(t.Context(), []store.LeaseRef{req.Ref(reply.Fence)})
				if err != nil || outcomes[0] != store.Released {
					t.Errorf("%v, %v", outcomes, err)
				}
			}
		})
	}
	wg.Wait()
	if steps := int64(2 * goroutines * times); shared.Load() != steps || calls.Load() > steps/4 {
		t.Errorf("%d statements for %d of %d steps", calls.Load(), shared.Load(), steps)
	}
}

// A release whose shared statement was sent twice says so in the step that follows: whether it held is
// not known if another one has held the lock since.
func TestASharedReleaseThatIsRepeated(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	s, other := openTestStore(t, dsn), openTestStore(t, dsn)
	reqs := []store.LeaseRequest{exclusive("a"), exclusive("b")}
	var all []*sharedRelease
	for i := range reqs {
		ref := takes(t, s, reqs[i])
		all = append(all, &sharedRelease{asked: &ref, key: s.leaseKey(ref.Name, ref.Key)})
	}
	many, times := s.free.releases.many, 0
	s.free.releases.many = func(ctx context.Context, c *pgx.Conn, all []*sharedRelease) (map[leaseKey]string, error) {
		outcomes, err := many(ctx, c, all)
		if times++; times > 1 {
			return outcomes, err
		}
		ends(t, other, store.Released, takes(t, other, exclusive("a")))
		_ = c.Close(ctx)
		return nil, io.ErrUnexpectedEOF
	}
	s.free.releases.send(t.Context(), all)
	for _, r := range all {
		if r.made || !r.maybe || r.Failed() != nil || times != 2 {
			t.Fatalf("%+v after %d statements", r, times)
		}
	}
	s.free.releases.batcher.Send = func(_ context.Context, sent []*sharedRelease) bool {
		for _, r := range sent {
			r.maybe = true
		}
		return true
	}
	ends(t, s, store.ReleaseUnknown, *all[0].asked)
	ends(t, s, store.Released, *all[1].asked)
}

// The reply of a shared acquire is lost, and it is sent again: the step that follows finds the hold that it
// made.
func TestASharedAcquireThatIsRepeated(t *testing.T) {
	t.Parallel()
	s := openTestStore(t, migrated(t))
	many, times := s.free.acquires.many, 0
	s.free.acquires.many = func(ctx context.Context, c *pgx.Conn, all []*sharedAcquire) (map[leaseKey]waiting.Reply, error) {
		replies, err := many(ctx, c, all)
		if times++; times > 1 || err != nil {
			return replies, err
		}
		if len(replies) != len(all) {
			t.Errorf("%d of %d are made", len(replies), len(all))
		}
		_ = c.Close(ctx)
		return nil, io.ErrUnexpectedEOF
	}
	reqs := []store.LeaseRequest{exclusive("a"), exclusive("b")}
	for i, a := range together(t, s, reqs...) {
		if a.made || !a.maybe || times != 2 {
			t.Fatalf("%+v after %d statements", a, times)
		}
		reply, err := s.AcquireLease(t.Context(), reqs[i])
		if err != nil || reply.Outcome != store.Granted {
			t.Fatalf("%+v, %v", reply, err)
		}
		ends(t, s, store.Released, reqs[i].Ref(reply.Fence))
		ends(t, s, store.Released, takes(t, s, exclusive(reqs[i].Key)))
	}
}
