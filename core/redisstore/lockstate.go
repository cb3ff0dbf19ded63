package redisstore

import (
	"context"
	"iter"

	"github.com/lockkeeper/lockkeeper/core/lock"
)

// lockState is a lock.State with the ids of the holders.
type lockState struct {
	lock.State
	ids []string
}

// InspectLock implements lock.Store: one script call, which changes nothing.
func (s *Store) InspectLock(ctx context.Context, name, key string) (lock.State, error) {
	state, err := s.inspect(ctx, s.lockKeys(name, key, ""), "")
	state.Key = key
	return state.State, err
}

// inspect says who holds a lock, or whether an id does.
func (s *Store) inspect(ctx context.Context, keys lockKeys, id string) (lockState, error) {
	st := step{scriptCall: scriptCall{inspectLock, keys.shared(), []any{id}}, op: opInspect}
	return run(ctx, s, st, func(r stepReply) (lockState, error) { return readState(r.value) })
}

func readState(reply any) (lockState, error) {
	r := fields(reply)
	state := lockState{State: lock.State{Key: r.text(), Waiting: int(r.number())}}
	for len(r.left) > 0 && r.err == nil {
		state.ids = append(state.ids, r.text())
		state.Holders = append(state.Holders, lock.Holder{
			Shared: r.text() == "S", Fence: r.number(), LastFence: r.number(), Remaining: r.micros(), Meta: r.text(),
		})
	}
	return state, r.err
}

// ListLocks implements lock.Store: it scans all keys of every master, a thousand at a time. Of a
// store with WithSecret the Key of each state is the hash of the lock's key.
func (s *Store) ListLocks(ctx context.Context, name string) iter.Seq2[lock.State, error] {
	return list(ctx, s, ofLocks, name,
		func(tag string) scriptCall {
			keys := s.lockKeysOf(name, []byte(tag), "")
			return scriptCall{inspectLock, keys.shared(), []any{""}}
		},
		func(tag string, reply any) (lock.State, bool, error) {
			state, err := readState(reply)
			if state.Key == "" {
				state.Key = tag
			}
			return state.State, len(state.Holders) > 0 || state.Waiting > 0, err
		})
}
