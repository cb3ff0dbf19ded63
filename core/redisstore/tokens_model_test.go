package redisstore

import (
	"context"
	"flag"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/bucketmodel"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// scriptClock gives a script the time that the key "clock" has, in µs, and refuses buckets that
// expire before they are full and their hold has ended, or much later and after more than a second.
// They do not expire by the server's own clock.
const scriptClock = `
local real = redis
local function faked(send)
  return function(name, ...)
    if name == 'TIME' then
      local now = real.call('GET', 'clock')
      return {string.sub(now, 1, -7), tostring(tonumber(string.sub(now, -6)))}
    end
    local key, value, px, ms = ...
    if name ~= 'SET' then
      return send(name, ...)
    end
    local now = tonumber(real.call('GET', 'clock'))
    local left = tonumber(string.sub(value, 1, 16))
    if string.match(value, '^%d+@') then
      left = string.match(value, '^0+@') and now or tonumber(string.match(value, '@(%d+)'))
    end
    left = left > 0 and left - now or 0
    local held = tonumber(string.match(value, '^[%d@]+ (%d+) %d+$') or 0) - now
    left = left > held and left or held
    if px ~= 'PX' or tonumber(ms) * 1000 <= left or tonumber(ms) * 1000 > math.max(left, 999000) + 1000 then
      error('it is full after ' .. left .. ' µs, and expires after ' .. ms .. ' ms')
    end
    return send('SET', key, value)
  end
end
local redis = setmetatable({call = faked(real.call), pcall = faked(real.pcall)}, {__index = real})
`

// scriptStore makes decisions with the scripts alone, in calls with others or not.
type scriptStore struct {
	store.Buckets
	t      *rapid.T
	client *redis.Client
	now    time.Time
}

// keysOf returns a request's keys.
func (s *scriptStore) keysOf(r *store.TokenRequest) (keys []string) {
	for i := range r.Charges {
		keys = append(keys, fmt.Sprint(r.Limiter, ":", r.Key, ":", r.Charges[i].Bucket))
	}
	return keys
}

func (s *scriptStore) eval(ctx context.Context, script string, keys []string, args ...any) (any, error) {
	if err := s.client.Set(ctx, "clock", s.now.UnixMicro(), 0).Err(); err != nil {
		return nil, err
	}
	return s.client.Eval(ctx, scriptClock+scriptText(script), keys, args...).Result()
}

func (s *scriptStore) decide(ctx context.Context, times int64, requests ...store.TokenRequest) (store.TakeReply, error) {
	d := &decision{times: times}
	for i := range requests {
		d.charges, d.keys = append(d.charges, requests[i].Charges), append(d.keys, s.keysOf(&requests[i])...)
	}
	batch := []*decision{d}
	for i := range rapid.SampledFrom([]int{0, 1, 20}).Draw(s.t, "decisions about other keys") {
		r := requests[0]
		r.Key = strconv.Itoa(i)
		if i%2 == 1 { // of another plan
			r.Charges = append([]store.Charge(nil), r.Charges...)
		}
		batch = append(batch, &decision{times: times, keys: s.keysOf(&r), charges: [][]store.Charge{r.Charges}})
	}
	keys, args := batchArgs(batch)
	reply, err := s.eval(ctx, "take_tokens", keys, args...)
	if err != nil {
		return store.TakeReply{}, err
	}
	replies, err := readDecisions(reply, len(batch))
	if err != nil {
		return store.TakeReply{}, err
	}
	take, err := readDecision(replies[0], len(d.keys))
	if requests[0].AtMost == 0 {
		take.Taken = 0
	}
	return take, err
}

func (s *scriptStore) TakeTokens(ctx context.Context, r store.TokenRequest, more ...store.TokenRequest) (store.TakeReply, error) {
	return s.decide(ctx, max(r.AtMost, 1), append([]store.TokenRequest{r}, more...)...)
}

func (s *scriptStore) SettleTokens(ctx context.Context, r store.TokenRequest) (store.TakeReply, error) {
	return s.decide(ctx, settles, r)
}

func (s *scriptStore) HoldTokens(ctx context.Context, r store.TokenRequest, d time.Duration) error {
	if d <= 0 {
		return nil
	}
	_, err := s.eval(ctx, "hold_tokens", s.keysOf(&r), holdArgs(r.Charges, d)...)
	return err
}

func (s *scriptStore) ResetTokens(ctx context.Context, r store.TokenRequest) error {
	return s.client.Del(ctx, s.keysOf(&r)...).Err()
}

// The script's decisions are those of exact fractions, but for a nanosecond each token, and its
// debts are exact.
func TestTheScriptAgainstModels(t *testing.T) {
	testpace.Parallel(t)
	for name, client := range map[string]*redis.Client{
		"miniredis": redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()}),
		"redis":     redistest.Start(t).Client(),
	} {
		t.Cleanup(func() { _ = client.Close() })
		if testpace.Raced && name == "miniredis" {
			continue
		}
		check := func(model func(t *rapid.T, s store.Buckets, pass func(time.Duration))) func(*testing.T) {
			return rapid.MakeCheck(func(t *rapid.T) {
				if err := client.FlushAll(t.Context()).Err(); err != nil {
					t.Fatal(err)
				}
				s := &scriptStore{t: t, client: client, now: time.Now().Truncate(time.Microsecond)}
				model(t, s, func(d time.Duration) { s.now = s.now.Add(d) })
			})
		}
		t.Run(name+"/tokens", check(func(t *rapid.T, s store.Buckets, pass func(time.Duration)) {
			bucketmodel.Check(t, s, pass, time.Microsecond)
		}))
		t.Run(name+"/limiter", check(func(t *rapid.T, s store.Buckets, pass func(time.Duration)) {
			bucketmodel.CheckLimiter(t, s, pass, time.Microsecond)
		}))
		t.Run(name+"/debts", check(func(t *rapid.T, s store.Buckets, pass func(time.Duration)) {
			bucketmodel.CheckDebts(t, s, s.(*scriptStore).now, pass, time.Microsecond, true)
		}))
	}
}

// A batch whose decisions are about one key, under a plan and then a smaller one.
func TestASmallerPlanInABatch(t *testing.T) {
	testpace.Parallel(t)
	client := redistest.Start(t).Client()
	large := []store.Charge{{Cost: 50 * time.Second, Capacity: time.Minute, Interval: time.Second}}
	small := []store.Charge{{Cost: time.Second, Capacity: 10 * time.Second, Interval: time.Second}}
	for _, others := range []int{1, 20} {
		batch := []*decision{{keys: []string{fmt.Sprint(others)}, times: 1, charges: [][]store.Charge{large}}}
		for range others {
			batch = append(batch, &decision{keys: batch[0].keys, times: 1, charges: [][]store.Charge{small}})
		}
		keys, args := batchArgs(batch)
		reply, err := client.Eval(t.Context(), scriptText("take_tokens"), keys, args...).Slice()
		if err != nil || len(reply) != len(batch) {
			t.Fatal(reply, err)
		}
		for i := range reply {
			got, err := readDecision(reply[i], 1)
			want := store.TakeReply{Allowed: true, Taken: 1, Debts: store.OneDebt(50 * time.Second)}
			if i > 0 {
				want = store.TakeReply{Debts: store.OneDebt(50 * time.Second)}
			}
			if got != want || err != nil {
				t.Errorf("decision %d of %d: %+v, %v, want %+v", i, len(batch), got, err, want)
			}
		}
	}
}

// With the race detector, models are compared less often: nothing in them is concurrent.
func init() {
	if testpace.Raced {
		_ = flag.Set("rapid.checks", "20")
	}
}

// The decisions of a batch, over few buckets, are the same as in calls of their own, and leave the
// same.
func TestABatchAgainstItsDecisions(t *testing.T) {
	testpace.Parallel(t)
	client := redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()})
	t.Cleanup(func() { _ = client.Close() })
	rapid.Check(t, func(t *rapid.T) {
		must := func(err error) {
			if err != nil {
				t.Fatal(err)
			}
		}
		ctx := t.Context()
		must(client.FlushAll(ctx).Err())
		s := &scriptStore{t: t, client: client, now: time.Now().Truncate(time.Microsecond)}
		const together, alone = "together:", "alone:"
		buckets := []string{"a", "b", "c", "d", "e"}
		for _, prefix := range []string{together, alone} {
			must(client.LPush(ctx, prefix+"no bucket", "x").Err())
		}
		if rapid.IntRange(0, 9).Draw(t, "no bucket") == 0 {
			buckets = append(buckets, "no bucket")
		}
		draw := rapid.Custom(func(t *rapid.T) *decision {
			d := &decision{times: int64(rapid.SampledFrom([]int{1, 1, 1, settles}).Draw(t, "times"))}
			for _, name := range rapid.SliceOfNDistinct(rapid.SampledFrom(buckets), 1, 3, rapid.ID).Draw(t, "buckets") {
				interval := rapid.SampledFrom([]time.Duration{time.Hour, time.Hour, time.Hour, 7 * time.Minute / 3}).Draw(t, "interval")
				c := store.Charge{Interval: interval, Capacity: 5 * interval, Overdraft: 2 * interval}
				if c.Cost = interval * time.Duration(rapid.IntRange(0, 2).Draw(t, "cost")); d.times == settles {
					c.Cost = interval * time.Duration(rapid.IntRange(-3, 3).Draw(t, "settled"))
				}
				d.keys, d.charges = append(d.keys, name), append(d.charges, []store.Charge{c})
			}
			return d
		})
		run := func(prefix string, batch ...*decision) (replies []any) {
			keys, args := batchArgs(batch)
			for i := range keys {
				keys[i] = prefix + keys[i]
			}
			reply, err := s.eval(ctx, "take_tokens", keys, args...)
			must(err)
			replies, err = readDecisions(reply, len(batch))
			must(err)
			return replies
		}
		for range rapid.IntRange(1, 3).Draw(t, "batches") {
			if rapid.IntRange(0, 2).Draw(t, "hold") == 0 {
				for _, prefix := range []string{together, alone} {
					_, err := s.eval(ctx, "hold_tokens", []string{prefix + "a"}, int64(time.Minute/time.Microsecond), int64(time.Hour))
					must(err)
				}
			}
			batch := rapid.SliceOfN(draw, 1, 40).Draw(t, "batch")
			for i, reply := range run(together, batch...) {
				n := len(batch[i].keys)
				got, err := readDecision(reply, n)
				want, wantErr := readDecision(run(alone, batch[i])[0], n)
				same := got.Allowed == want.Allowed && got.Held == want.Held && fmt.Sprint(err) == fmt.Sprint(wantErr)
				for k := range n {
					same = same && (err != nil || got.Debts.At(k) == want.Debts.At(k))
				}
				if !same {
					t.Fatalf("decision %d of %d, %+v: %+v, %v, alone %+v, %v", i, len(batch), batch[i].charges, got, err, want, wantErr)
				}
			}
			for _, name := range buckets[:5] {
				if got, want := client.Get(ctx, together+name).Val(), client.Get(ctx, alone+name).Val(); got != want {
					t.Fatalf("bucket %s is %q, alone %q", name, got, want)
				}
			}
			s.now = s.now.Add(time.Duration(rapid.IntRange(0, 120).Draw(t, "seconds pass")) * time.Second)
		}
	})
}
