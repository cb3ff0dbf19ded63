package redisstore

import (
	"context"
	"iter"
	"strings"
	"sync"

	"github.com/redis/go-redis/v9"

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
	return call(ctx, s, ordinary, func(ctx context.Context) (lockState, error) {
		reply, err := s.eval(ctx, false, inspectLock, keys.lock(), id)
		if err != nil {
			return lockState{}, err
		}
		return readState(reply)
	})
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
	return func(yield func(lock.State, error) bool) {
		masters, err := s.masters(ctx)
		if err != nil {
			yield(lock.State{}, err)
			return
		}
		for _, master := range masters {
			if !s.listLocks(ctx, master, name, yield) {
				return
			}
		}
	}
}

// masters returns a client of each server that has keys of its own.
func (s *Store) masters(ctx context.Context) ([]redis.Cmdable, error) {
	cluster, ok := s.client.(*redis.ClusterClient)
	switch {
	case s.bounded != nil:
		return []redis.Cmdable{s.bounded}, nil
	case !ok:
		return []redis.Cmdable{s.client}, nil
	}
	return call(ctx, s, ordinary, func(ctx context.Context) ([]redis.Cmdable, error) {
		var (
			mu      sync.Mutex
			masters []redis.Cmdable
		)
		err := cluster.ForEachMaster(ctx, func(_ context.Context, master *redis.Client) error {
			mu.Lock()
			defer mu.Unlock()
			masters = append(masters, master)
			return nil
		})
		return masters, err
	})
}

type page struct {
	keys   []string
	cursor uint64
}

// listLocks yields the locks that one master has. It reports whether to go on.
func (s *Store) listLocks(ctx context.Context, master redis.Cmdable, name string, yield func(lock.State, error) bool) bool {
	var cursor uint64
	pattern := glob.Replace(s.config.prefix) + ":l:{*}:" + glob.Replace(name)
	for {
		p, err := call(ctx, s, ordinary, func(ctx context.Context) (p page, err error) {
			p.keys, p.cursor, err = master.Scan(ctx, cursor, pattern, 1000).Result()
			return p, err
		})
		if err != nil {
			yield(lock.State{}, err)
			return false
		}
		var found []string // tags
		for _, record := range p.keys {
			if tag, ok := s.tagOf(record, name); ok {
				found = append(found, tag)
			}
		}
		for len(found) > 0 {
			batch := found[:min(len(found), maxBatch)]
			found = found[len(batch):]
			states, err := s.inspectEach(ctx, name, batch)
			if err != nil {
				yield(lock.State{}, err)
				return false
			}
			for i, state := range states {
				if state.Key == "" {
					state.Key = batch[i]
				}
				if (len(state.Holders) > 0 || state.Waiting > 0) && !yield(state, nil) {
					return false
				}
			}
		}
		if cursor = p.cursor; cursor == 0 {
			return true
		}
	}
}

// glob escapes what has a meaning in the pattern of a SCAN.
var glob = strings.NewReplacer(`\`, `\\`, `*`, `\*`, `?`, `\?`, `[`, `\[`, `]`, `\]`, `^`, `\^`, `-`, `\-`)

// tagOf returns the tag in the key of the record of a lock of that name: a name that ends in
// another matches its pattern too.
func (s *Store) tagOf(record, name string) (tag string, ok bool) {
	rest, ok := strings.CutPrefix(record, s.config.prefix+":l:{")
	if !ok {
		return "", false
	}
	tag, rest, ok = strings.Cut(rest, "}:")
	return tag, ok && rest == name
}

// inspectEach is inspect of several locks, in one pipeline. One that is damaged is left out.
func (s *Store) inspectEach(ctx context.Context, name string, tags []string) ([]lock.State, error) {
	keys, args := make([][]string, len(tags)), make([][]any, len(tags))
	for i, tag := range tags {
		keys[i], args[i] = s.taggedLockKeys(name, tag, "").lock(), []any{""}
	}
	return call(ctx, s, ordinary, func(ctx context.Context) ([]lock.State, error) {
		states := make([]lock.State, len(tags))
		for i, cmd := range s.evalEach(ctx, inspectLock, keys, args) {
			reply, err := cmd.Result()
			if isWrongType(err) {
				continue
			}
			if err != nil {
				return nil, err
			}
			state, err := readState(reply)
			if err != nil {
				return nil, err
			}
			states[i] = state.State
		}
		return states, nil
	})
}
