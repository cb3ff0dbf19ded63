package pgstore

import (
	"context"
	"slices"
	"sync"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
)

// leaseStatements is the number of statements in flight from which callers are batched. More
// statements commit no faster.
const leaseStatements = 4

// sharing makes callers share a statement about leases while others are in flight.
type sharing[Q, R any] struct {
	store   *Store
	call    statement.Call
	alone   func(ctx context.Context, c *pgx.Conn, asked *Q, key leaseKey) (R, error)
	many    func(ctx context.Context, c *pgx.Conn, all []*sharer[Q, R]) (map[leaseKey]R, error)
	batcher *batch.Batcher[*sharer[Q, R]]
	spare   sync.Pool // of *sharer[Q, R]

	mu   sync.Mutex
	keys map[leaseKey]struct{} // of the requests in flight
}

// sharer is a caller's part of a statement.
type sharer[Q, R any] struct {
	batch.Queued
	asked *Q
	key   leaseKey
	reply R
	made  bool
	maybe bool // an earlier statement may have been carried out
}

// Work implements batch.Request.
func (*sharer[Q, R]) Work() int { return 1 }

// share returns a sharing. alone carries out one request. many carries out the requests that it
// can, each for another key.
func share[Q, R any](
	s *Store, call statement.Call, alone func(context.Context, *pgx.Conn, *Q, leaseKey) (R, error),
	many func(context.Context, *pgx.Conn, []*sharer[Q, R]) (map[leaseKey]R, error),
) *sharing[Q, R] {
	f := &sharing[Q, R]{store: s, call: call, alone: alone, many: many, keys: make(map[leaseKey]struct{})}
	most := max(s.config.connections-2, 1) // other calls need some
	f.batcher = statement.Batch(s.db, batch.Config[*sharer[Q, R]]{
		Send: f.send, Few: min(leaseStatements, most), Most: most, MaxWork: leaseBatch,
	})
	return f
}

// do carries out a request. Without an error, made is false if the request is left to the caller:
// another caller asks for the same key, or the request shared a statement that did not carry it
// out. maybe then reports whether it may have been carried out all the same.
func (f *sharing[Q, R]) do(ctx context.Context, asked *Q, key leaseKey) (reply R, made, maybe bool, err error) {
	if !f.begin(key) {
		return reply, false, false, nil
	}
	defer f.end(key)
	q, _ := f.spare.Get().(*sharer[Q, R])
	if q == nil {
		q = new(sharer[Q, R])
	}
	q.asked, q.key = asked, key
	if err = f.batcher.Do(ctx, q, f.call.Urgency); err != nil {
		return reply, false, false, err // a statement may still have it
	}
	reply, made, maybe = q.reply, q.made, q.maybe
	*q = sharer[Q, R]{Queued: q.Queued}
	f.spare.Put(q)
	return reply, made, maybe, nil
}

// begin reports whether no other caller asks for the key.
func (f *sharing[Q, R]) begin(key leaseKey) bool {
	f.mu.Lock()
	defer f.mu.Unlock()
	if _, asked := f.keys[key]; asked {
		return false
	}
	f.keys[key] = struct{}{}
	return true
}

func (f *sharing[Q, R]) end(key leaseKey) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.keys, key)
}

func (f *sharing[Q, R]) send(ctx context.Context, all []*sharer[Q, R]) (replied bool) {
	if len(all) == 1 {
		q := all[0]
		var err error
		q.reply, err = statement.Run(ctx, f.store.db, f.call, func(ctx context.Context, c *pgx.Conn) (R, error) {
			return f.alone(ctx, c, q.asked, q.key)
		})
		q.made = err == nil
		q.Finish(err)
		return q.made
	}
	all = slices.Clone(all) // a statement without a reply in time may still run after its batch has ended
	type result struct {
		replies  map[leaseKey]R
		repeated bool
	}
	r, err := statement.Run(ctx, f.store.db, f.call, func(ctx context.Context, c *pgx.Conn) (r result, err error) {
		r.repeated = statement.IsRepeat(ctx)
		r.replies, err = f.many(ctx, c, all)
		return r, err
	})
	for _, q := range all {
		q.reply, q.made = r.replies[q.key]
		q.maybe = r.repeated
		q.Finish(err)
	}
	return err == nil
}
