package redisstore

import (
	"context"
	"iter"

	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// lockState is a store.LockState with the IDs of the holders.
type lockState struct {
	store.LockState
	ids []string
}

// InspectLock implements store.Locks: one script call, which changes nothing.
func (s *Store) InspectLock(ctx context.Context, name, key string) (store.LockState, error) {
	state, err := s.inspect(ctx, s.lockKeys(name, key, ""), "")
	state.Key = key
	return state.LockState, err
}

// inspect returns the holders of a lock, or one of them by its ID.
func (s *Store) inspect(ctx context.Context, keys lockKeys, id string) (lockState, error) {
	st := script.Step{Call: inspectLock.Call(keys.shared(), id), Operation: opInspect}
	return script.Run(ctx, s.redis, st, func(r script.Reply) (lockState, error) { return readState(r.Value) })
}

func readState(reply any) (lockState, error) {
	r := script.Fields(reply)
	state := lockState{LockState: store.LockState{Key: r.Text(), Waiting: int(r.Number())}}
	for len(r.Left) > 0 && r.Err == nil {
		state.ids = append(state.ids, r.Text())
		state.Holders = append(state.Holders, store.LockHolder{
			Shared: r.Text() == "S", Fence: r.Number(), LastFence: r.Number(), Remaining: r.Micros(), Meta: r.Text(),
		})
	}
	return state, r.Err
}

// ListLocks implements store.Locks: it scans all keys of every master, a thousand at a time. With
// WithSecret, the Key of each state is the hash of the lock's key.
func (s *Store) ListLocks(ctx context.Context, name string) iter.Seq2[store.LockState, error] {
	return list(ctx, s, ofLocks, name,
		func(tag string) script.Call {
			keys := s.lockKeysOf(name, []byte(tag), "")
			return inspectLock.Call(keys.shared(), "")
		},
		func(tag string, reply any) (store.LockState, bool, error) {
			state, err := readState(reply)
			if state.Key == "" {
				state.Key = tag
			}
			return state.LockState, len(state.Holders) > 0 || state.Waiting > 0, err
		})
}
