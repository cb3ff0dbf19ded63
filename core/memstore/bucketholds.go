package memstore

import (
	"context"
	"fmt"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// HoldTokens implements store.Buckets. Holds are kept until they end. They may take half of the
// room for buckets; further ones are refused with store.ErrFull.
func (s *Store) HoldTokens(ctx context.Context, r store.TokenRequest, d time.Duration) error {
	if err := s.ready(ctx); err != nil || d <= 0 {
		return err
	}
	now, b, all := time.Since(s.start), &s.buckets, requests{&r, nil}
	end := now + min(d, holdMark/2)
	number, hash := b.shardOf(r.Key)
	var set shardSet
	set.add(number)
	b.lock(set)
	defer b.unlock(set)
	shard := &b.shards[number]
	t := &shard.table
	for i := range r.Charges {
		p, err := b.place(r.Limiter, r.Key, &r.Charges[i], hash)
		if err != nil {
			return err
		}
		if _, found := b.search(t, &p, true); !found {
			shard.missing++
		}
	}
	if most := max(shard.limit/2, 1); shard.missing > 0 && t.holds+shard.missing > most {
		if t.sweep(len(t.slots), now); t.holds+shard.missing > most {
			return fmt.Errorf("%w: no room for more holds", store.ErrFull)
		}
	}
	if !b.makeRoom(shard, shard.missing, all, now) {
		return store.ErrFull
	}
	key := ""
	for i := range r.Charges {
		p, err := b.place(r.Limiter, r.Key, &r.Charges[i], hash)
		if err != nil {
			return err
		}
		if i, found := b.search(t, &p, true); found {
			t.slots[i].full = max(t.slots[i].full, holdMark|end)
			t.held = max(t.held, end)
			continue
		}
		if key == "" {
			key = lasting(r.Key)
		}
		t.add(bucketID{key, p.limit}, p.hash, holdMark|end, now)
	}
	return nil
}

// ResetTokens implements store.Buckets.
func (s *Store) ResetTokens(ctx context.Context, r store.TokenRequest) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	if len(r.Key) > maxKey {
		return errKey(r.Key)
	}
	b := &s.buckets
	number, hash := b.shardOf(r.Key)
	var set shardSet
	set.add(number)
	b.lock(set)
	defer b.unlock(set)
	t := &b.shards[number].table
	for i := range r.Charges {
		limit := b.spaces.ofLimit(r.Limiter, r.Charges[i].Bucket)
		if limit == 0 {
			continue // it was never charged
		}
		p := place{bucketID{key: r.Key}, numbers{limit: limit}.hash(hash), limit}
		for _, hold := range []bool{false, true} {
			if i, found := b.search(t, &p, hold); found {
				t.remove(i)
			}
		}
	}
	return nil
}

// count returns the number of buckets and holds, expired ones before their sweep included.
func (b *buckets) count() (n int) {
	for i := range b.shards {
		shard := &b.shards[i]
		shard.mu.Lock()
		n += shard.table.count
		shard.mu.Unlock()
	}
	return n
}
