package pgstore

import (
	"context"
	"maps"
	"strconv"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/bucketmodel"
)

func TestBuckets(t *testing.T) {
	t.Parallel()
	for name, of := range map[string]struct {
		mode string // of pgx: those without prepared statements are for poolers
		opts []Option
	}{
		"by default":                  {"cache_statement", nil},
		"with one connection":         {"cache_statement", []Option{WithConnections(1)}},
		"without prepared statements": {"exec", nil},
		"with the simple protocol":    {"simple_protocol", []Option{WithSecret([]byte("secret")), WithSchema("another")}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if testing.Short() && name != "by default" {
				t.Skip("takes as long as the contract by default again")
			}
			dsn := migrated(t, of.opts...) + "&default_query_exec_mode=" + of.mode
			storetest.Buckets(t, runner(dsn, of.opts...))
		})
	}
}

// testClock is a server's clock that a test sets.
type testClock struct {
	s   *Store
	now time.Time
}

// newTestClock makes a store's functions read a clock that stands still.
func newTestClock(t testing.TB, s *Store) *testClock {
	t.Helper()
	c := &testClock{s, time.Now().Truncate(time.Microsecond)}
	for _, statement := range []string{
		"CREATE TABLE lk.test_clock (us bigint)", "INSERT INTO lk.test_clock VALUES (0)",
		"CREATE OR REPLACE FUNCTION lk.now_us() RETURNS bigint LANGUAGE sql VOLATILE AS 'SELECT us FROM lk.test_clock'",
	} {
		if _, err := s.db.Pool().Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	c.pass(t, 0)
	return c
}

func (c *testClock) pass(t rapid.TB, d time.Duration) {
	c.now = c.now.Add(d)
	if _, err := c.s.db.Pool().Exec(context.Background(), "UPDATE lk.test_clock SET us = $1", c.now.UnixMicro()); err != nil {
		t.Fatal(err)
	}
}

// looking makes decisions with a look first, as about keys that were denied lately.
type looking struct{ *Store }

func (s looking) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	return s.takeTokens(ctx, max(r.AtMost, 1), true, &r, more)
}

// crowded makes each decision in a batch with others about other keys.
type crowded struct {
	*Store
	t *rapid.T
}

func (s *crowded) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	d := &decision{times: max(r.AtMost, 1)}
	s.ask(d, &r)
	for i := range more {
		s.ask(d, &more[i])
	}
	batch := []*decision{d}
	for i := range rapid.SampledFrom([]int{0, 1, 20}).Draw(s.t, "decisions about other keys") {
		other := r
		other.Key = strconv.Itoa(i % 15) // the last ones about some again
		also := &decision{times: d.times, mayFail: i%3 == 0}
		s.ask(also, &other)
		batch = append(batch, also)
	}
	s.decide(ctx, rapid.Permutation(batch).Draw(s.t, "order"))
	if r.AtMost == 0 {
		d.reply.Taken = 0
	}
	return d.reply, d.Failed()
}

// Decisions are those of exact fractions, but for a nanosecond each token, and debts are exact.
func TestBucketsAgainstModels(t *testing.T) {
	t.Parallel()
	for name, deciding := range map[string]func(s *Store, t *rapid.T) store.Buckets{
		"":                func(s *Store, _ *rapid.T) store.Buckets { return s },
		", looking first": func(s *Store, _ *rapid.T) store.Buckets { return looking{s} },
		", in batches":    func(s *Store, t *rapid.T) store.Buckets { return &crowded{s, t} },
	} {
		for model, check := range map[string]func(t *rapid.T, buckets store.Buckets, now time.Time, pass func(time.Duration)){
			"tokens": func(t *rapid.T, buckets store.Buckets, _ time.Time, pass func(time.Duration)) {
				bucketmodel.Check(t, buckets, pass, time.Microsecond)
			},
			"limiter": func(t *rapid.T, buckets store.Buckets, _ time.Time, pass func(time.Duration)) {
				bucketmodel.CheckLimiter(t, buckets, pass, time.Microsecond)
			},
			"debts": func(t *rapid.T, buckets store.Buckets, now time.Time, pass func(time.Duration)) {
				bucketmodel.CheckDebts(t, buckets, now, pass, time.Microsecond, true)
			},
		} {
			t.Run(model+name, func(t *testing.T) {
				t.Parallel()
				s := newTestStore(t, WithoutDenialCache())
				clock := newTestClock(t, s)
				rapid.Check(t, func(t *rapid.T) {
					if _, err := s.db.Pool().Exec(t.Context(), "TRUNCATE lk.buckets"); err != nil {
						t.Fatal(err)
					}
					clock.now = time.Now().Truncate(time.Microsecond)
					clock.pass(t, 0)
					check(t, deciding(s, t), clock.now, func(d time.Duration) { clock.pass(t, d) })
				})
			})
		}
	}
}

// The decisions of a batch are as if they had been made one after the other.
func TestABatchOfDecisions(t *testing.T) {
	t.Parallel()
	s := newTestStore(t, WithoutDenialCache())
	newTestClock(t, s)
	names := []string{"a", "b", "c"}
	rapid.Check(t, func(t *rapid.T) {
		if _, err := s.db.Pool().Exec(t.Context(), "TRUNCATE lk.buckets"); err != nil {
			t.Fatal(err)
		}
		const capacity = 20
		charge := func(bucket string, cost int64) store.Charge {
			return store.Charge{Bucket: bucket, Cost: time.Duration(cost), Capacity: capacity, Interval: 1}
		}
		debts := map[string]time.Duration{}
		for range rapid.IntRange(1, 3).Draw(t, "batches") {
			var batch []*decision
			var requests []store.TokenRequest
			for range rapid.IntRange(1, 30).Draw(t, "decisions") {
				r := store.TokenRequest{Limiter: "l", Key: "k"}
				for _, name := range rapid.Permutation(names).Draw(t, "buckets")[:rapid.SampledFrom([]int{1, 1, 1, 2, 3}).Draw(t, "charges")] {
					r.Charges = append(r.Charges, charge(name, rapid.SampledFrom([]int64{1, 1, 1, 2, 5}).Draw(t, "cost")))
				}
				d := &decision{
					times:   rapid.SampledFrom([]int64{1, 1, 1, 3}).Draw(t, "times"),
					mayFail: rapid.Bool().Draw(t, "may fail"),
				}
				s.ask(d, &r)
				batch, requests = append(batch, d), append(requests, r)
			}
			s.decide(t.Context(), batch)
			chains := map[string]map[time.Duration]time.Duration{} // of each bucket: the debt before, and after
			for _, name := range names {
				chains[name] = map[time.Duration]time.Duration{}
			}
			before := maps.Clone(debts)
			for i, d := range batch {
				if err := d.Failed(); err != nil {
					t.Fatal(err)
				}
				if d.reply.Taken > d.times || d.reply.Allowed != (d.reply.Taken > 0) {
					t.Fatalf("at most %d: %+v", d.times, d.reply)
				}
				for k := range requests[i].Charges {
					c := &requests[i].Charges[k]
					cost := c.Cost * time.Duration(d.reply.Taken)
					debts[c.Bucket] += cost
					if debt := d.reply.Debts.At(k); cost > 0 {
						chains[c.Bucket][debt-cost] = debt
					}
				}
			}
			for name, chain := range chains {
				debt := before[name]
				for range chain {
					debt = chain[debt]
				}
				if debt != debts[name] {
					t.Fatalf("bucket %s went from %d to %d by %v", name, before[name], debts[name], chain)
				}
			}
			for i, d := range batch { // what was denied has no room left
				if d.reply.Taken == d.times {
					continue
				}
				fits := true
				for _, c := range requests[i].Charges {
					fits = fits && c.Cost <= capacity-debts[c.Bucket]
				}
				if fits {
					t.Fatalf("%+v was denied: %+v; then all debts were %v", requests[i], d.reply, debts)
				}
			}
			for name, want := range debts {
				r := store.TokenRequest{Limiter: "l", Key: "k", Charges: []store.Charge{charge(name, 0)}}
				if reply, err := s.TakeTokens(t.Context(), r); err != nil || reply.Debts.At(0) != want || want > capacity {
					t.Fatalf("bucket %s: %+v, %v, want a debt of %d", name, reply, err, want)
				}
			}
		}
	})
}
