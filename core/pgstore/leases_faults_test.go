package pgstore

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

// exclusive returns a request for the lock "jobs" of a key.
func exclusive(key string) store.LeaseRequest {
	return store.LeaseRequest{
		Name: store.LockKind + "jobs", Key: key, ID: rand.Text()[:22], Weight: store.MaxCapacity, Capacity: store.MaxCapacity,
		TTL: 30 * time.Second, Fences: 16, Label: "me",
	}
}

// takes acquires a lease at once.
func takes(t *testing.T, s *Store, req store.LeaseRequest) store.LeaseRef {
	t.Helper()
	reply, err := s.AcquireLease(t.Context(), req)
	if err != nil || reply.Outcome != store.Granted {
		t.Fatalf("%s: %+v, %v", req.Key, reply, err)
	}
	return req.Ref(reply.Fence)
}

// waitsFor queues a request, and returns the channel of its grant.
func waitsFor(t *testing.T, s *Store, req store.LeaseRequest) <-chan store.Grant {
	t.Helper()
	req.Queue = true
	reply, err := s.AcquireLease(t.Context(), req)
	if err != nil || reply.Outcome != store.Queued {
		t.Fatalf("%s: %+v, %v", req.Key, reply, err)
	}
	req.Place = reply.Place
	got := make(chan store.Grant, 1)
	ctx := t.Context()
	go func() {
		if grant, err := s.AwaitLease(ctx, req); err == nil {
			got <- grant
		}
	}()
	return got
}

// gets returns the grant that comes. It is Untaken if a push has brought it, and not a heartbeat.
func gets(t *testing.T, got <-chan store.Grant) store.Grant {
	t.Helper()
	select {
	case grant := <-got:
		return grant
	case <-time.After(patience):
		t.Fatalf("no grant after %v", patience)
		return store.Grant{}
	}
}

func ends(t *testing.T, s *Store, want store.ReleaseOutcome, refs ...store.LeaseRef) {
	t.Helper()
	outcomes, err := s.ReleaseLeases(t.Context(), refs)
	for _, outcome := range outcomes {
		if err != nil || outcome != want {
			t.Fatalf("release: %v, %v", outcomes, err)
		}
	}
}

func connect(t *testing.T, dsn string) *pgx.Conn {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.Background()) })
	return conn
}

func listening(t *testing.T, s *Store) {
	t.Helper()
	for began := time.Now(); !s.db.Listens(); <-time.After(time.Millisecond) {
		if time.Since(began) > patience {
			t.Fatal("the store does not listen")
		}
	}
}

// A release grants to a waiter of another store by a push, and to one of its own without.
func TestAPushIsAGrant(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	a, b := openTestStore(t, dsn), openTestStore(t, dsn)
	held, second, third := takes(t, a, exclusive("k")), exclusive("k"), exclusive("k")
	got := waitsFor(t, b, second)
	listening(t, b)
	ends(t, a, store.Released, held)
	grant := gets(t, got)
	if granted := time.UnixMicro(grant.Fence); grant.Sent.After(granted) || !grant.Untaken || grant.TTL > 2*time.Second || grant.Fence <= held.Fence || grant.Place == 0 {
		t.Errorf("pushed %+v", grant)
	}
	own := waitsFor(t, b, third)
	b.db.Silence()
	ends(t, b, store.Released, second.Ref(grant.Fence))
	if grant := gets(t, own); !grant.Untaken {
		t.Errorf("%+v was found by a heartbeat", grant)
	}
}

// A push that is lost, since its sender has died, costs a heartbeat.
func TestALostPush(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	a, b := openTestStore(t, dsn), openTestStore(t, dsn)
	held := takes(t, a, exclusive("k"))
	got := waitsFor(t, b, exclusive("k"))
	listening(t, b)
	a.db.Silence()
	ends(t, a, store.Released, held)
	if grant := gets(t, got); grant.Untaken {
		t.Errorf("%+v was pushed", grant)
	}
}

// So it does while another process waits behind it, which gets the lease if it is not taken up.
func TestALostPushBeforeAnotherWaiter(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	// Later, the grant has run out.
	inTime(t, "the grant", 2*time.Second, func() time.Duration {
		a, b, c := openTestStore(t, dsn), openTestStore(t, dsn), openTestStore(t, dsn)
		key := rand.Text()
		held := takes(t, a, exclusive(key))
		got := waitsFor(t, b, exclusive(key))
		listening(t, b)
		behind := waitsFor(t, c, exclusive(key))
		a.db.Silence()
		ends(t, a, store.Released, held)
		began := time.Now()
		select {
		case <-got:
			return time.Since(began)
		case <-behind:
			return time.Hour // never
		case <-time.After(patience):
			t.Fatal("no grant")
			return 0
		}
	})
}

// A store that is closed at once after a release pushes nevertheless.
func TestAPushBeforeClose(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	b := openTestStore(t, dsn)
	for pushed, beaten := 0, 0; pushed < 10; {
		a := openTestStore(t, dsn)
		next := exclusive("k")
		held := takes(t, a, exclusive("k"))
		got := waitsFor(t, b, next)
		listening(t, b)
		ends(t, a, store.Released, held)
		must(t, a.Close())
		grant := gets(t, got)
		ends(t, b, store.Released, next.Ref(grant.Fence))
		if grant.Untaken {
			pushed++
		} else if beaten++; beaten > 3 { // a heartbeat may have been just before a push
			t.Fatalf("of %d grants, heartbeats have found %d", pushed+beaten, beaten)
		}
	}
}

// A transaction that has locked the row of one key keeps the steps of others from nothing.
func TestALockedRow(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	s := openTestStore(t, dsn, WithTimeout(brisk))
	var refs []store.LeaseRef
	for i := range 150 {
		refs = append(refs, takes(t, s, exclusive(fmt.Sprint(i))))
	}
	locker := connect(t, dsn)
	tx, err := locker.Begin(t.Context())
	must(t, err)
	_, err = tx.Exec(t.Context(), "SELECT FROM lk.leases WHERE id = $1 FOR UPDATE", s.leaseKey(store.LockKind+"jobs", "7"))
	must(t, err)
	held, err := s.RenewLeases(t.Context(), refs)
	for i := range held {
		if held[i] != (i != 7) {
			t.Errorf("renewal of %d: %v", i, held[i])
		}
	}
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("renewal: %v", err)
	}
	outcomes, err := s.ReleaseLeases(t.Context(), refs)
	for i, outcome := range outcomes {
		if (outcome == store.Released) != (i != 7) {
			t.Errorf("release of %d: %v", i, outcome)
		}
	}
	if !errors.Is(err, store.ErrUnavailable) {
		t.Errorf("release: %v", err)
	}
	// The caller of the release has left, perhaps a moment before the server ends it.
	eventually(t, "nothing waits for the row", func() bool { return !waitsForALock(t, s) })
	must(t, tx.Rollback(t.Context()))
	if held, err := s.RenewLeases(t.Context(), refs[7:8]); err != nil || !held[0] {
		t.Errorf("renewal of 7 after the transaction: %v, %v", held, err)
	}
	ends(t, s, store.Released, refs[7])
}

// An acquire whose caller has left, and that is carried out after its release, holds nothing.
func TestAnAcquireBehindItsRelease(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	s := openTestStore(t, dsn)
	for range 5 {
		ends(t, s, store.Released, takes(t, s, exclusive("k"))) // the row exists
		tx, err := connect(t, dsn).Begin(t.Context())
		must(t, err)
		_, err = tx.Exec(t.Context(), "SELECT FROM lk.leases FOR UPDATE")
		must(t, err)
		req := exclusive("k")
		ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
		if _, err := s.AcquireLease(ctx, req); !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("acquire of a locked row: %v", err)
		}
		cancel()
		released := make(chan error, 1)
		go func() {
			_, err := s.ReleaseLeases(context.Background(), []store.LeaseRef{req.Ref(0)})
			released <- err
		}()
		must(t, tx.Rollback(t.Context()))
		must(t, <-released)
		if reply, err := s.AcquireLease(t.Context(), req); err != nil || reply.Outcome != store.Withdrawn {
			t.Errorf("an acquire after its release: %+v, %v", reply, err)
		}
		ends(t, s, store.Released, takes(t, s, exclusive("k")))
	}
}

// A crash of the server loses no hold, and no place in a queue.
func TestLeasesSurviveACrash(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	migrateIn(t, server.DSN())
	a, b := openTestStore(t, server.DSN()), openTestStore(t, server.DSN())
	for range 3 {
		first, second := exclusive("k"), exclusive("k")
		eventually(t, "both stores work", func() bool { // the breaker of one may have been open for longer
			_, err := a.InspectLease(t.Context(), first.Name, "k")
			_, other := b.InspectLease(t.Context(), first.Name, "k")
			return err == nil && other == nil
		})
		held := takes(t, a, first)
		second.Queue = true
		reply, err := b.AcquireLease(t.Context(), second)
		must(t, err)
		server.Kill() // at once: the place is lost, perhaps
		second.Place = reply.Place
		got := make(chan store.Grant, 1)
		go func() {
			if grant, err := b.AwaitLease(context.Background(), second); err == nil {
				got <- grant
			}
		}()
		server.Restart()
		for began := time.Now(); ; <-time.After(20 * time.Millisecond) {
			renewed, err := a.RenewLeases(t.Context(), []store.LeaseRef{held})
			if err == nil && renewed[0] {
				break
			}
			if err == nil || time.Since(began) > patience {
				t.Fatalf("renewed after a crash: %v, %v", renewed, err)
			}
		}
		for began := time.Now(); ; <-time.After(20 * time.Millisecond) {
			state, err := a.InspectLease(t.Context(), first.Name, "k")
			if err == nil && state.Waiting == 1 {
				break
			}
			if time.Since(began) > patience {
				t.Fatalf("after a crash: %+v, %v", state, err)
			}
		}
		ends(t, a, store.Released, held)
		grant := gets(t, got)
		if grant.Place != reply.Place || grant.Fence <= held.Fence {
			t.Errorf("granted %+v after fence %d, with place %d", grant, held.Fence, reply.Place)
		}
		ends(t, b, store.Released, second.Ref(grant.Fence))
	}
}

// A step of the server's clock to an earlier time extends nothing, and fences grow nevertheless.
func TestTheClockStepsBack(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	conn := connect(t, dsn)
	step := func(by time.Duration) {
		_, err := conn.Exec(t.Context(), "UPDATE lk.clock SET us = us + $1", by.Microseconds())
		must(t, err)
	}
	_, err := conn.Exec(t.Context(), `CREATE TABLE lk.clock AS SELECT 0::bigint AS us;
		CREATE OR REPLACE FUNCTION lk.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS
		$$ SELECT (extract(epoch FROM clock_timestamp()) * 1000000)::bigint + us FROM lk.clock $$`, pgx.QueryExecModeSimpleProtocol)
	must(t, err)
	a, b := openTestStore(t, dsn), openTestStore(t, dsn)
	must(t, b.Ping(t.Context()))
	short := func(key string, weight int) store.LeaseRequest {
		req := exclusive(key)
		req.TTL, req.Weight = 5*time.Second, weight
		return req
	}
	alone := takes(t, a, short("alone", store.MaxCapacity))
	waits := []<-chan store.Grant{waitsFor(t, b, exclusive("alone"))}
	takes(t, a, short("beside", 1))
	beside := takes(t, a, short("beside", 1))
	waits = append(waits, waitsFor(t, b, exclusive("beside")))
	listening(t, b)
	step(-time.Hour)
	for i, fence := range []int64{alone.Fence, beside.Fence} {
		if grant := gets(t, waits[i]); grant.Fence <= fence {
			t.Errorf("fence %d after %d", grant.Fence, fence)
		}
	}
	for _, key := range []string{"statement", "function"} {
		idle := takes(t, a, exclusive(key))
		ends(t, a, store.Released, idle)
		step(-time.Hour)
		a.busy.set(a.leaseKey(idle.Name, key), key == "function")
		if again := takes(t, a, exclusive(key)); again.Fence <= idle.Fence {
			t.Errorf("by the %s: fence %d after %d", key, again.Fence, idle.Fence)
		}
	}
}

// What is idle is removed, and nothing else.
func TestLeaseSweeps(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	s, conn := openTestStore(t, dsn), connect(t, dsn)
	count := func() (n [5]int) {
		for i, table := range []string{"leases", "lease_holds", "lease_places", "lease_processes", "lease_tombstones"} {
			must(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM lk."+table).Scan(&n[i]))
		}
		return n
	}
	// Two hours ago:
	ends(t, s, store.Released, takes(t, s, exclusive("idle")))
	takes(t, s, exclusive("expired"))
	for range 2 {
		req := exclusive("several")
		req.Weight = 1
		takes(t, s, req)
	}
	queued := exclusive("several")
	queued.Queue = true
	_, err := s.AcquireLease(t.Context(), queued)
	must(t, err)
	s.waiting.Late("late")
	_, err = s.ReleaseLeases(t.Context(), []store.LeaseRef{{Name: store.LockKind + "jobs", Key: "late", ID: "late"}})
	must(t, err)
	if n := count(); n != [5]int{4, 2, 1, 1, 1} {
		t.Fatalf("%v rows", n)
	}
	s.sweepOnce(t.Context())
	if n := count(); n != [5]int{4, 2, 1, 1, 1} {
		t.Fatalf("%v rows are left of what is in use", n)
	}
	const ago = 7200e6
	for _, change := range []string{
		"leases SET ends = ends - $1, fence = fence - $1, number = number - $1, late = late - $1, soonest = soonest - $1, seen = seen - $1",
		"lease_holds SET ends = ends - $1, since = since - $1", "lease_places SET since = since - $1",
		"lease_processes SET beat = beat - $1, till = till - $1", "lease_tombstones SET until = until - $1",
	} {
		_, err := conn.Exec(t.Context(), "UPDATE lk."+change, int64(ago))
		must(t, err)
	}
	held := takes(t, s, exclusive("held"))
	s.sweepOnce(t.Context())
	s.sweepOnce(t.Context())
	if n := count(); n != [5]int{1, 0, 0, 0, 0} {
		t.Errorf("%v rows are left", n)
	}
	ends(t, s, store.Released, held)
}

// With a secret, the database has the keys as hashes only.
func TestSecretKeys(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	s := openTestStore(t, dsn, WithSecret([]byte("secret")))
	takes(t, s, exclusive("alice"))
	for state, err := range s.ListLeases(t.Context(), store.LockKind+"jobs") {
		if err != nil || strings.Contains(state.Key, "alice") || len(state.Key) != 22 {
			t.Errorf("listed %+v, %v", state, err)
		}
	}
	var text string
	must(t, connect(t, dsn).QueryRow(t.Context(), "SELECT l::text FROM lk.leases l").Scan(&text))
	if strings.Contains(text, "616c696365") {
		t.Error(text)
	}
	other := openTestStore(t, dsn)
	takes(t, other, exclusive("alice"))
}

// Listings have pages.
func TestListManyLeases(t *testing.T) {
	t.Parallel()
	s := openTestStore(t, migrated(t))
	const n = listPage + 7
	for i := range n {
		takes(t, s, exclusive(fmt.Sprint(i)))
	}
	seen := make(map[string]bool)
	for state, err := range s.ListLeases(t.Context(), store.LockKind+"jobs") {
		must(t, err)
		seen[state.Key] = true
	}
	if len(seen) != n {
		t.Errorf("%d keys of %d are listed", len(seen), n)
	}
}

// A store with one connection does all that others do.
func TestOneConnection(t *testing.T) {
	t.Parallel()
	dsn := migrated(t)
	a, b := openTestStore(t, dsn, WithConnections(1)), openTestStore(t, dsn, WithConnections(1))
	ref := takes(t, a, exclusive("k"))
	for i := range 20 {
		req := exclusive("k")
		s, before := a, a
		if i%2 == 0 {
			s = b
		} else {
			before = b
		}
		got := waitsFor(t, s, req)
		ends(t, before, store.Released, ref)
		ref = req.Ref(gets(t, got).Fence)
	}
}
