package pgstore

import (
	"context"
	"encoding/base64"
	"iter"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// listPage is the number of keys that are listed together.
const listPage = 500

// InspectLease implements store.LeaseLister: one statement, which changes nothing.
func (s *Store) InspectLease(ctx context.Context, name, key string) (store.LeaseState, error) {
	id := s.leaseKey(name, key)
	call := statement.Call{Operation: opInspect, Urgency: batch.Reading}
	states, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) ([]store.LeaseState, error) {
		return s.inspect(ctx, c, []leaseKey{id})
	})
	state := store.LeaseState{}
	if len(states) == 1 {
		state = states[0]
	}
	state.Key = key
	return state, err
}

// inspect returns the states of the keys that the database has.
func (s *Store) inspect(ctx context.Context, c *pgx.Conn, keys []leaseKey) (states []store.LeaseState, err error) {
	rows, err := c.Query(ctx, s.db.Text(`SELECT
			lease, kind, key, first, last, weight, reserve, coalesce(label, ''), age, remaining
		FROM lk.inspect_leases_1($1, $2)`), keys, store.MaxListed)
	if err != nil {
		return nil, err
	}
	numbers := make(map[leaseKey]int) // of states
	var (
		id                                  leaseKey
		kind                                string
		key, label                          []byte
		first, last, weight, age, remaining int64
		reserve                             int
	)
	into := []any{&id, &kind, &key, &first, &last, &weight, &reserve, &label, &age, &remaining}
	_, err = pgx.ForEachRow(rows, into, func() error {
		if kind == "key" {
			shown := string(key)
			if key == nil { // it is secret
				shown = base64.RawURLEncoding.EncodeToString(id[:])
			}
			numbers[id] = len(states)
			states = append(states, store.LeaseState{Key: shown, InUse: int(weight), Waiting: int(last)})
			return nil
		}
		state := &states[numbers[id]]
		if kind == "hold" {
			state.Holders = append(state.Holders, store.LeaseHolder{
				Fence: first, LastFence: last, Weight: int(weight), Label: string(label),
				Age: micros(age), Remaining: micros(remaining),
			})
		} else {
			state.Waiters = append(state.Waiters, store.LeaseWaiter{
				Weight: int(weight), Reserve: reserve, Label: string(label), Age: micros(age),
			})
		}
		return nil
	})
	return states, err
}

// page is a part of a listing.
type page struct {
	states []store.LeaseState
	last   *leaseKey // nil if there is no more
}

// ListLeases implements store.LeaseLister: two statements for each 500 keys in use. With WithSecret, the
// Key of each state is the hash of the key.
func (s *Store) ListLeases(ctx context.Context, name string) iter.Seq2[store.LeaseState, error] {
	return func(yield func(store.LeaseState, error) bool) {
		for after := new(leaseKey); after != nil; {
			from := *after
			call := statement.Call{Operation: opInspect, Urgency: batch.Reading}
			p, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (page, error) {
				return s.page(ctx, c, name, from)
			})
			if err != nil {
				yield(store.LeaseState{}, err)
				return
			}
			for _, state := range p.states {
				if len(state.Holders)+state.Waiting > 0 && !yield(state, nil) {
					return
				}
			}
			after = p.last
		}
	}
}

func (s *Store) page(ctx context.Context, c *pgx.Conn, name string, after leaseKey) (p page, err error) {
	rows, err := c.Query(ctx, s.db.Text(`SELECT k.id FROM lk.lease_keys k JOIN lk.leases l ON l.id = k.id
		WHERE k.name = $1 AND k.id > $2 AND (l.holder IS NOT NULL OR l.busy) ORDER BY k.id LIMIT $3`),
		[]byte(name), after, listPage)
	if err != nil {
		return p, err
	}
	keys, err := pgx.CollectRows(rows, pgx.RowTo[leaseKey])
	if err != nil || len(keys) == 0 {
		return p, err
	}
	if len(keys) == listPage {
		p.last = &keys[listPage-1]
	}
	p.states, err = s.inspect(ctx, c, keys)
	return p, err
}
