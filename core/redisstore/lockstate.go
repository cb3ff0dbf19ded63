package redisstore

import (
	"context"
	"iter"

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
	st := step{scriptCall: scriptCall{inspectLock, keys.shared(), []any{id}}, op: opInspect}
	return run(ctx, s, st, func(r stepReply) (lockState, error) { return readState(r.value) })
}

func readState(reply any) (lockState, error) {
	r := fields(reply)
	state := lockState{LockState: store.LockState{Key: r.text(), Waiting: int(r.number())}}
	for len(r.left) > 0 && r.err == nil {
		state.ids = append(state.ids, r.text())
		state.Holders = append(state.Holders, store.LockHolder{
			Shared: r.text() == "S", Fence: r.number(), LastFence: r.number(), Remaining: r.micros(), Meta: r.text(),
		})
	}
	return state, r.err
}

// ListLocks implements store.Locks: it scans all keys of every master, a thousand at a time. With
// WithSecret, the Key of each state is the hash of the lock's key.
func (s *Store) ListLocks(ctx context.Context, name string) iter.Seq2[store.LockState, error] {
	return list(ctx, s, ofLocks, name,
		func(tag string) scriptCall {
			keys := s.lockKeysOf(name, []byte(tag), "")
			return scriptCall{inspectLock, keys.shared(), []any{""}}
		},
		func(tag string, reply any) (store.LockState, bool, error) {
			state, err := readState(reply)
			if state.Key == "" {
				state.Key = tag
			}
			return state.LockState, len(state.Holders) > 0 || state.Waiting > 0, err
		})
}
