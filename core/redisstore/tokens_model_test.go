package redisstore

import (
	"context"
	"fmt"
	"strconv"
	"testing"
	"time"

	"github.com/alicebob/miniredis/v2"
	"github.com/redis/go-redis/v9"
	"pgregory.net/rapid"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/bucketmodel"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

// scriptClock gives a script the time that the key "clock" has, in µs, and refuses buckets that
// expire before they are full. They do not expire by the server's own clock.
const scriptClock = `
local real = redis
local function faked(send)
  return function(name, ...)
    if name == 'TIME' then
      local now = real.call('GET', 'clock')
      return {string.sub(now, 1, -7), tostring(tonumber(string.sub(now, -6)))}
    end
    local key, value, px, ms, nx = ...
    if name ~= 'SET' then
      return send(name, ...)
    end
    local left = tonumber(string.sub(value, 1, -4)) - tonumber(real.call('GET', 'clock'))
    if px ~= 'PX' or tonumber(ms) * 1000 <= left or tonumber(ms) * 1000 > left + 1000 then
      error('it is full after ' .. left .. ' µs, and expires after ' .. ms .. ' ms')
    end
    if nx then
      return send('SET', key, value, nx)
    end
    return send('SET', key, value)
  end
end
local redis = setmetatable({call = faked(real.call), pcall = faked(real.pcall)}, {__index = real})
`

// scriptStore makes decisions with the script alone, in calls with others or not.
type scriptStore struct {
	store.Buckets
	t      *rapid.T
	client *redis.Client
	now    time.Time
}

func (s *scriptStore) TakeTokens(ctx context.Context, limiter, key string, charges []store.Charge) (store.TakeReply, error) {
	keysOf := func(key string) (keys []string) {
		for i := range charges {
			keys = append(keys, fmt.Sprint(limiter, ":", key, ":", charges[i].Bucket))
		}
		return keys
	}
	batch := []*decision{{keys: keysOf(key), charges: charges}}
	for i := range rapid.SampledFrom([]int{0, 1, 20}).Draw(s.t, "decisions about other keys") {
		other := charges
		if i%2 == 1 { // of another plan
			other = append([]store.Charge(nil), charges...)
		}
		batch = append(batch, &decision{keys: keysOf(strconv.Itoa(i)), charges: other})
	}
	keys, args := batchArgs(batch)
	if err := s.client.Set(ctx, "clock", s.now.UnixMicro(), 0).Err(); err != nil {
		return store.TakeReply{}, err
	}
	reply, err := s.client.Eval(ctx, scriptClock+scriptText("take_tokens"), keys, args...).Result()
	if err != nil {
		return store.TakeReply{}, err
	}
	replies, err := readDecisions(reply, len(batch))
	if err != nil {
		return store.TakeReply{}, err
	}
	return readDecision(replies[0], len(charges))
}

// The script's decisions are those of exact fractions, but for a nanosecond each token, and its
// debts are exact.
func TestTheScriptAgainstModels(t *testing.T) {
	for name, client := range map[string]*redis.Client{
		"miniredis": redis.NewClient(&redis.Options{Addr: miniredis.RunT(t).Addr()}),
		"redis":     redistest.Start(t).Client(),
	} {
		t.Cleanup(func() { _ = client.Close() })
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
		t.Run(name+"/debts", check(func(t *rapid.T, s store.Buckets, pass func(time.Duration)) {
			bucketmodel.CheckDebts(t, s, pass, time.Microsecond, true)
		}))
	}
}

// A batch whose decisions are about one key, under a plan and then a smaller one.
func TestASmallerPlanInABatch(t *testing.T) {
	client := redistest.Start(t).Client()
	large := []store.Charge{{Cost: 50 * time.Second, Capacity: time.Minute}}
	small := []store.Charge{{Cost: time.Second, Capacity: 10 * time.Second}}
	for _, others := range []int{1, 20} {
		batch := []*decision{{keys: []string{fmt.Sprint(others)}, charges: large}}
		for range others {
			batch = append(batch, &decision{keys: batch[0].keys, charges: small})
		}
		keys, args := batchArgs(batch)
		reply, err := client.Eval(t.Context(), scriptText("take_tokens"), keys, args...).Slice()
		if err != nil || len(reply) != len(batch) {
			t.Fatal(reply, err)
		}
		for i := range reply {
			got, err := readDecision(reply[i], 1)
			want := store.TakeReply{Allowed: true, Debts: store.OneDebt(50 * time.Second)}
			if i > 0 {
				want = store.TakeReply{Debts: store.OneDebt(10 * time.Second)}
			}
			if got != want || err != nil {
				t.Errorf("decision %d of %d: %+v, %v, want %+v", i, len(batch), got, err, want)
			}
		}
	}
}
