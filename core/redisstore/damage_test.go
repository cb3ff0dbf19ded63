package redisstore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// FuzzDamagedBucket checks that a decision about a damaged bucket is an error, or plausible.
func FuzzDamagedBucket(f *testing.F) {
	now := time.Now().Add(time.Hour)
	micros, nanos := now.UnixMicro(), now.UnixNano()
	for _, value := range []string{
		"", "x", "-1", "0", "12", "1e9", "0x10", "nan", "inf", strings.Repeat("9", 400), "\x00\xff",
		fmt.Sprint(micros), fmt.Sprint(nanos), fmt.Sprint("-", nanos), fmt.Sprint(" ", nanos), fmt.Sprint(nanos, " "),
		fmt.Sprint(micros, "inf"), fmt.Sprint(micros, "nan"), fmt.Sprint(micros, "-12"), fmt.Sprint(micros, " 12"),
		fmt.Sprint(micros, "1e9"), fmt.Sprint(micros, "0.5"), fmt.Sprint(micros, ".57"), fmt.Sprint(micros, "xyz"),
		"inf123", "nan123", "0x7fffffffffffffff", fmt.Sprint(nanos, ":1/7"), fmt.Sprint(nanos, "000"),
		fmt.Sprint(nanos, "514285714286"), fmt.Sprint(nanos, "0"), fmt.Sprint(nanos, "1"), fmt.Sprint(nanos, strings.Repeat("9", 30)),
		fmt.Sprint(nanos, "1 "), fmt.Sprint(nanos, "1 1"), fmt.Sprint(nanos, "1 ", micros, " 60000000"), fmt.Sprint(nanos, "1 ", micros, " -1"),
		fmt.Sprint(nanos, "1 ", nanos, " ", nanos), fmt.Sprint(nanos, "1 ", strings.Repeat("9", 400), " 9"), fmt.Sprint(nanos, "1 1 2 3"),
		fmt.Sprint(micros, ".571"), fmt.Sprint(micros, "xyz1"), "inf             0001", "nan             0001",
	} {
		f.Add(value)
	}
	server := redistest.Start(f)
	direct := server.Client()
	s := newStore(f, server.Client(), redisstore.WithoutDenialCache())
	limiter := func(t testing.TB, plan tokenbucket.Limit) *tokenbucket.Limiter {
		l, err := tokenbucket.New(s, "damaged", plan)
		if err != nil {
			t.Fatal(err)
		}
		return l
	}
	if _, err := limiter(f, tokenbucket.PerDay(1)).Allow(ctx(), "k"); err != nil {
		f.Fatal(err)
	}
	key := onlyKey(f, direct)
	f.Fuzz(func(t *testing.T, value string) {
		for _, plan := range []tokenbucket.Limit{
			tokenbucket.PerHour(7), tokenbucket.PerSecond(5_000_000).Burst(3), tokenbucket.PerDay(1), tokenbucket.PerSecond(1_000_000),
		} {
			if err := direct.Set(ctx(), key, value, time.Hour).Err(); err != nil {
				t.Fatal(err)
			}
			l := limiter(t, plan)
			for range 3 {
				d, err := l.Allow(ctx(), "k")
				if err != nil {
					if !errors.Is(err, store.ErrUnavailable) {
						t.Fatalf("%q: %v", value, err)
					}
					continue
				}
				state := d.Limits()[0]
				if state.Remaining < 0 || state.Remaining > state.Capacity || state.Reset < 0 || state.Reset > 2*state.Window ||
					d.RetryAfter < 0 || d.RetryAfter > max(2*state.Window, d.Held+time.Microsecond) || d.Held < 0 || d.Allowed != (d.RetryAfter == 0) {
					t.Fatalf("%q: %+v", value, d)
				}
			}
		}
	})
}

// FuzzDamagedRecord checks that a result is replayed only from an undamaged record of the same
// request.
func FuzzDamagedRecord(f *testing.F) {
	o := newOp("damaged")
	record := func(head, digits, data string) string { return head + o.owner + o.fingerprint + digits + data }
	number, lease := "00000001", "00000000000000010000000030000000"
	status := "02011790000000000" + strings.Repeat("0016900000000000", 2) + "0" + "004till" // to the holder
	step := "0060000003" + "charge" + "abc"
	for _, value := range []string{
		"", "1", "\x00", strings.Repeat("\xff", 200), record("3C10", number+lease+status, "result"),
		record("3C10", number+lease+status, ""), record("2C10", number+lease+status, "result"),
		record("3X10", number+lease+status, "result"), record("3C10", number+lease+status[1:], ""),
		record("3F10", number+strings.Repeat("9", 32)+status, ""), record("3F10", number+lease, ""), record("3F10", "", ""),
		record("3F10", number+"             inf             inf"+status, ""),
		record("3F10", number+"             nan             nan"+status, ""),
		record("3C10", "     nan"+lease+status, "result"), record("3U10", number+lease+"-2011790000000000"+status[17:], ""),
		strings.Replace(record("3C10", number+lease+status, "another's"), o.fingerprint, strings.Repeat("g", 43), 1),
		record("3C10", number+lease+status[:50]+"999till", "result"), record("3F20", number+lease+status, "0000000001"+step+step),
		record("3F20", number+lease+status, "0000000001"+step[:15]), record("3F20", number+lease+status, "0000000001"+"9999999999"+step),
		record("3F20", number+lease+status, "x"), record("3R10", number+lease+status, "0000000000"+step), record("3U11", number+lease+status, ""),
	} {
		f.Add(value)
	}
	server := redistest.Start(f)
	direct := server.Client()
	log := new(logbook)
	s := newStore(f, server.Client(), log.option())
	key := "lk:g:{" + o.id + "}::orders"
	damage := func(t *testing.T, value string) {
		direct.FlushAll(ctx())
		if err := direct.Set(ctx(), key, value, time.Hour).Err(); err != nil {
			t.Fatal(err)
		}
	}
	f.Fuzz(func(t *testing.T, value string) {
		whole := len(value) >= 162 && value[0] == '3'
		for _, rerun := range []bool{false, true} {
			for _, owner := range []string{o.owner, o.by("other").owner} {
				damage(t, value)
				reply, err := s.BeginOperation(ctx(), store.BeginRequest{
					AttemptRef: store.AttemptRef{OperationRef: o.ref().OperationRef, Owner: owner}, Fingerprint: o.fingerprint, Lease: time.Second, Retention: time.Hour, Rerun: rerun,
				})
				switch {
				case err != nil:
					if !errors.Is(err, store.ErrUnavailable) {
						t.Fatalf("%q: %v", value, err)
					}
				case !whole:
					t.Fatalf("%q is no record, and begin: %+v", value, reply)
				case reply.Outcome == store.Settled && reply.State == store.Completed:
					if value[26:69] != o.fingerprint || !strings.HasSuffix(value[162:], string(reply.Data)) || value[1] != 'C' {
						t.Fatalf("%q was replayed: %+v", value, reply)
					}
				case reply.Outcome == store.Started:
					if value[26:69] != o.fingerprint {
						t.Fatalf("%q belongs to another request, and begin: %+v", value, reply)
					}
				}
				if reply.Number < 0 || reply.Remaining < 0 || reply.Status < 0 {
					t.Fatalf("%q: %+v", value, reply)
				}
			}
		}
		for name, step := range map[string]func(*redisstore.Store) (bool, error){
			"mark": o.mark, "renew": o.renew, "abandon": o.abandon,
			"settle": func(s *redisstore.Store) (bool, error) { return o.settle(s, "result") },
			"step":   o.step,
			"await": func(s *redisstore.Store) (bool, error) {
				c, cancel := context.WithTimeout(ctx(), 10*time.Millisecond)
				defer cancel()
				if err := s.AwaitOperation(c, o.ref().OperationRef); !errors.Is(err, context.DeadlineExceeded) {
					return false, err
				}
				return false, nil
			},
			"inspect": func(s *redisstore.Store) (bool, error) {
				r, _, err := s.InspectOperation(ctx(), o.ref().OperationRef)
				if r.Number < 0 || r.Bytes < 0 || r.Lease < 0 || r.Age < 0 || r.Changed < 0 || len(r.Holder) > store.MaxHolder {
					t.Fatalf("%q: %+v", value, r)
				}
				return false, err
			},
			"resolve": func(s *redisstore.Store) (bool, error) { return o.resolve(s, "") },
		} {
			damage(t, value)
			owned, err := step(s)
			if err != nil && !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("%s of %q: %v", name, value, err)
			}
			if err == nil && owned && value != "" && !strings.HasPrefix(value[min(4, len(value)):], o.owner) {
				t.Fatalf("%s of %q, which is another's, succeeded", name, value)
			}
			if ttl := direct.PTTL(ctx(), key).Val(); ttl == -1 {
				t.Fatalf("%s of %q: the record does not expire any more", name, value)
			}
		}
		if log.has(tripped) {
			t.Fatal("a damaged record opened the breaker")
		}
	})
}

// A damaged fence is not granted.
func TestADamagedFence(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	direct, s := server.Client(), newStore(t, server.Client())
	for name, c := range map[string]claim{"lock": newClaim("k", "next"), "permit": newPermit("k", "next", 1, 4)} {
		for _, largest := range []string{strings.Repeat("9", 20), "9223372036854775807", "9007199254740992", "1e30", "-5", "nan", ""} {
			for _, flags := range []string{"0", "4", "1", "3"} {
				must(t, direct.FlushAll(ctx()).Err())
				c.gets(t, s, store.Granted)
				record := keysOf(t, direct, "*:"+c.Name)[0]
				_, rest, _ := strings.Cut(direct.Get(ctx(), record).Val(), ":")
				c.ends(t, s, true)
				must(t, direct.Set(ctx(), record, "L"+flags+largest+":"+rest, time.Hour).Err())
				other := c
				other.ID = newOp("other").id
				reply, err := other.acquire(s)
				if err != nil && !errors.Is(err, store.ErrUnavailable) ||
					err == nil && reply.Outcome == store.Granted && reply.Fence < time.Now().Add(-time.Hour).UnixMicro() {
					t.Errorf("%s %q: %+v, %v", name, "L"+flags+largest, reply, err)
				}
				if keys := lasting(t, direct); len(keys) > 0 {
					t.Errorf("%s %q: %q do not expire", name, "L"+flags+largest, keys)
				}
			}
		}
	}
}

// FuzzDamagedLease checks that a step for a damaged key is an error, or plausible, and that nothing
// is left without an expiry.
func FuzzDamagedLease(f *testing.F) {
	server := redistest.Start(f)
	direct, s := server.Client(), newStore(f, server.Client())
	holder, other := newPermit("k", "holder", 1, 3), newPermit("k", "other", 1, 3)
	waiter := newPermit("k", "waiter", 3, 3).queued()
	setUp := func(t testing.TB) {
		must(t, direct.FlushAll(ctx()).Err())
		holder.gets(t, s, store.Granted)
		other.gets(t, s, store.Granted)
		waiter.gets(t, s, store.Queued)
	}
	setUp(f)
	var names, values []string
	for _, suffix := range []string{":sjobs", "i", "p"} {
		names = append(names, keysOf(f, direct, "*}"+suffix)[0])
	}
	values = append(values, direct.Get(ctx(), names[0]).Val())
	for _, name := range names[1:] {
		for _, value := range direct.HGetAll(ctx(), name).Val() {
			values = append(values, value)
		}
	}
	for _, value := range values {
		for _, text := range []string{value, value[:len(value)/2], strings.ReplaceAll(value, "1", "9"), strings.ReplaceAll(value, ":", "::"), ""} {
			for which := range names {
				f.Add(text, uint8(which))
			}
		}
	}
	f.Fuzz(func(t *testing.T, text string, which uint8) {
		setUp(t)
		name := names[int(which)%len(names)]
		if name == names[0] {
			must(t, direct.Set(ctx(), name, text, time.Hour).Err())
		} else {
			for field := range direct.HGetAll(ctx(), name).Val() {
				must(t, direct.HSet(ctx(), name, field, text).Err())
			}
		}
		check := func(step string, err error) {
			t.Helper()
			if err != nil && !errors.Is(err, store.ErrUnavailable) {
				t.Fatalf("%s: %v", step, err)
			}
		}
		_, err := s.InspectLease(ctx(), holder.Name, "k")
		check("inspect", err)
		_, err = s.RenewLeases(ctx(), []store.LeaseRef{holder.ref()})
		check("renew", err)
		last := newPermit("k", "last", 1, 3).queued()
		reply, err := last.acquire(s)
		check("acquire", err)
		if err == nil && reply.Outcome == store.Granted && (reply.Fence <= 0 || reply.LastFence < reply.Fence) {
			t.Errorf("granted %+v", reply)
		}
		_, err = holder.release(s)
		check("release", err)
		_, err = waiter.release(s)
		check("withdraw", err)
		if keys := lasting(t, direct); len(keys) > 0 {
			t.Errorf("%q do not expire", keys)
		}
	})
}
