package redisstore

import (
	"fmt"
	"math/rand/v2"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/waiting"
	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestTheScriptsKeepTombstonesAsLong(t *testing.T) {
	testpace.Parallel(t)
	line := fmt.Sprintf("local LATE_FOR = %.0f * SECOND ", waiting.LateFor.Seconds())
	if !strings.Contains(scriptText("lib/lease"), line) {
		t.Errorf("lease.lua lacks %q", line)
	}
}

// keysState is what a server has of a few keys, as text.
type keysState map[string]map[string]string

func stateOf(t *testing.T, server *redis.Client, keys []string) keysState {
	state := make(keysState)
	for _, key := range keys {
		switch server.Type(t.Context(), key).Val() {
		case "string":
			state[key] = map[string]string{"": server.Get(t.Context(), key).Val()}
		case "hash":
			state[key] = server.HGetAll(t.Context(), key).Val()
		case "zset":
			state[key] = make(map[string]string)
			for _, m := range server.ZRange(t.Context(), key, 0, -1).Val() {
				state[key][m] = ""
			}
		}
	}
	return state
}

// steppedClock runs scripts by a clock of their own.
type steppedClock struct {
	t      *testing.T
	server *redis.Client
	now    int64
}

func (c *steppedClock) run(text string, call script.Call) []any {
	c.t.Helper()
	now := fmt.Sprintf("{'%d', '%06d'}", c.now/1e6, c.now%1e6)
	reply, err := c.server.Eval(c.t.Context(), strings.ReplaceAll(text, "redis.call('TIME')", now), call.Keys, call.Args...).Result()
	if err != nil {
		c.t.Fatal(err)
	}
	list, _ := reply.([]any)
	return list
}

// A heartbeat that does only what is usual does the same as all the steps of one would do, and
// everything else that is to be done is done.
func TestTheUsualHeartbeat(t *testing.T) {
	testpace.Parallel(t)
	fast, slow := scriptText("beat_leases"), scriptText("beat_lease")
	server := redistest.Start(t).Client()
	var processes []*Store
	for range 3 {
		s, err := New(server)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = s.Close() })
		processes = append(processes, s)
	}
	usual, others := 0, 0
	for round := range 15 {
		rng := rand.New(rand.NewPCG(uint64(round), 1)) //nolint:gosec // not a secret
		clock := &steppedClock{t, server, time.Now().UnixMicro()}
		name, capacity := store.LockKind+"jobs", store.MaxCapacity
		if round%2 == 1 {
			name, capacity = store.SemaphoreKind+"jobs", 3
		}
		keys := processes[0].leaseKeys(name, fmt.Sprint("k", round))
		fences := make(map[string]int64)
		for step := range 100 {
			s := processes[rng.IntN(len(processes))]
			id := fmt.Sprintf("%022d", rng.IntN(6))
			switch rng.IntN(12) {
			case 0, 1, 2:
				req := &store.LeaseRequest{
					Name: name, Key: "k", ID: id, Weight: capacity, Capacity: capacity, Fences: 1, Queue: true, TTL: 20 * time.Second,
				}
				if rng.IntN(2) == 0 {
					req.Weight = 1
				}
				c := s.newAcquireCall(req, &keys)
				clock.run(scriptText("acquire_lease"), acquireLease.Call(keys[:], c.args[:]...))
			case 3:
				ref := &store.LeaseRef{ID: id, Fence: fences[id]}
				c := s.newReleaseCallOf(keys, ref)
				clock.run(scriptText("release_lease"), releaseLease.Call(keys[:], c.args[:]...))
			case 4:
				clock.now += rng.Int64N(15e6)
			case 5:
				clock.now -= rng.Int64N(15e6) * rng.Int64N(2)
			default:
				clock.now += rng.Int64N(1e6)
				mode := []string{"P", "-"}[rng.IntN(2)]
				args := []any{s.inbox.process, waiting.Elapsed(), mode, 3e6}
				whole := beatLease.Call(keys[:], append(args, s.inbox.channels, keys.linger(), "0")...)
				before := make(map[string]string)
				for _, key := range keys {
					if image, err := server.Dump(t.Context(), key).Result(); err == nil {
						before[key] = image
					}
				}
				old := stateOf(t, server, keys[:])
				want := clock.run(slow, whole)
				wanted := stateOf(t, server, keys[:])
				server.Del(t.Context(), keys[:]...)
				for key, image := range before {
					if err := server.Restore(t.Context(), key, time.Hour, image).Err(); err != nil {
						t.Fatal(err)
					}
				}
				got := clock.run(fast, beatLeases.Call([]string{keys[0], keys[3]}, args...))
				state := stateOf(t, server, keys[:])
				if got[0] == int64(-1) {
					others++
					if !reflect.DeepEqual(state, old) {
						t.Fatalf("round %d, step %d: the server has\n%v, want what it had\n%v", round, step, state, old)
					}
					clock.run(slow, whole)
					continue
				}
				usual++
				if !reflect.DeepEqual(got, want) {
					t.Fatalf("round %d, step %d: it replies %v, want %v", round, step, got, want)
				}
				// All of it writes the time of the last step, too.
				record, seen, at := state[keys[0]][""], wanted[keys[0]][""], 0
				for at < len(record) && record[at] == seen[at] {
					at++
				}
				if at < len(record) {
					end := at + strings.IndexByte(record[at:], ':')
					state[keys[0]][""], wanted[keys[0]][""] = record[:at]+record[end:], seen[:at]+seen[end:]
				}
				if !reflect.DeepEqual(state, wanted) {
					t.Fatalf("round %d, step %d: the server has\n%v, want\n%v", round, step, state, wanted)
				}
			}
		}
		server.Del(t.Context(), keys[:]...)
	}
	t.Logf("%d heartbeats were usual, %d were not", usual, others)
	if usual < 100 || others < 100 {
		t.Error("the test does not test what it says")
	}
}
