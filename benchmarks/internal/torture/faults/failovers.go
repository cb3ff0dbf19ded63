package faults

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/site"
)

// failovers are faults after which other servers are masters, or of other slots.
func failovers() []Fault {
	replicated, cluster := []string{"cluster", "sentinel"}, []string{"cluster"}
	return []Fault{
		{
			Name: "failover", About: "a master is killed, and its replica takes over without what it had not yet received",
			Lost: true, stores: replicated,
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				s, err := t.master(ctx)
				if err != nil {
					return Hit{}, err
				}
				before := len(t.Masters(ctx))
				s.Kill()
				ctx, cancel := mending(ctx)
				defer cancel()
				taken := site.Until(ctx, func() bool { return len(t.Masters(ctx)) >= before })
				return Hit{Target: s.Addr(), Count: 1}, errors.Join(taken, s.Start(ctx), t.rejoin(ctx, s, before))
			},
		},
		{
			Name: "split brain", About: "a master is stopped until its replica has taken over, and then goes on", Lost: true, stores: replicated,
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				before := len(t.Masters(ctx))
				hit, err := stopped(ctx, &Target{Site: t.Site, Rand: t.Rand, Longest: time.Minute}, 3*site.Dead, 4*site.Dead)
				if err != nil {
					return hit, err
				}
				ctx, cancel := mending(ctx)
				defer cancel()
				i := slices.IndexFunc(t.Servers, func(s *site.Server) bool { return s.Addr() == hit.Target })
				return hit, t.rejoin(ctx, t.Servers[i], before)
			},
		},
		{
			Name: "planned failover", About: "`CLUSTER FAILOVER`: the replica takes over with all that the master had", Moves: true, stores: cluster,
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				masters := t.Masters(ctx)
				replicas := slices.DeleteFunc(slices.Clone(t.Servers), func(s *site.Server) bool { return slices.Contains(masters, s) })
				if len(replicas) == 0 {
					return Hit{}, errors.New("no replica")
				}
				s := replicas[t.Rand.IntN(len(replicas))]
				ctx, cancel := mending(ctx)
				defer cancel()
				err := errors.Join(s.InSync(ctx), s.Admin.ClusterFailover(ctx).Err())
				if err == nil {
					err = site.Until(ctx, func() bool { return s.IsMaster(ctx) && len(t.Masters(ctx)) == len(masters) })
				}
				return Hit{Target: s.Addr(), Count: 1}, err
			},
		},
		{
			Name: "moved slots", About: "slots with keys move to another master, while they are used", stores: cluster,
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				ctx, cancel := mending(ctx)
				defer cancel()
				return moveSlots(ctx, t, 1+t.Rand.IntN(8))
			},
		},
	}
}

// rejoin makes a former master a replica, and waits until there are as many masters as before, and
// all others have their data.
func (t *Target) rejoin(ctx context.Context, former *site.Server, masters int) error {
	if t.Kind == "sentinel" { // which would do so itself, after a while
		for _, s := range t.Masters(ctx) {
			if s != former {
				if err := former.Admin.ReplicaOf(ctx, "127.0.0.1", strconv.Itoa(s.Port())).Err(); err != nil {
					return err
				}
			}
		}
	}
	if err := site.Until(ctx, func() bool { return len(t.Masters(ctx)) == masters }); err != nil {
		return fmt.Errorf("%w: %w", site.ErrNoMaster, err)
	}
	for _, s := range t.Servers {
		if !s.IsMaster(ctx) {
			if err := s.InSync(ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// moveSlots moves slots that have keys from their masters to others.
func moveSlots(ctx context.Context, t *Target, slots int) (hit Hit, err error) {
	masters := t.Masters(ctx)
	ids := make(map[*site.Server]string)
	for _, s := range masters {
		if ids[s], err = s.Admin.ClusterMyID(ctx).Result(); err != nil {
			return hit, err
		}
	}
	for range slots {
		from := masters[t.Rand.IntN(len(masters))]
		to := masters[t.Rand.IntN(len(masters))]
		key, err := from.Admin.RandomKey(ctx).Result()
		if from == to || err != nil { // it has no keys
			continue
		}
		slot, err := from.Admin.ClusterKeySlot(ctx, key).Result()
		if err != nil {
			return hit, err
		}
		keys, err := moveSlot(ctx, masters, int(slot), from, to, ids)
		if err != nil {
			return hit, err
		}
		hit.Count++
		hit.Target += fmt.Sprintf("%d (%d keys) ", slot, keys)
	}
	hit.Target = strings.TrimSpace(hit.Target)
	return hit, nil
}

func moveSlot(ctx context.Context, masters []*site.Server, slot int, from, to *site.Server, ids map[*site.Server]string) (moved int, err error) {
	if err := to.Admin.Do(ctx, "cluster", "setslot", slot, "importing", ids[from]).Err(); err != nil {
		return 0, err
	}
	if err := from.Admin.Do(ctx, "cluster", "setslot", slot, "migrating", ids[to]).Err(); err != nil {
		return 0, err
	}
	for {
		keys, err := from.Admin.ClusterGetKeysInSlot(ctx, slot, 10).Result()
		if err != nil {
			return moved, err
		}
		if len(keys) == 0 {
			break
		}
		command := []any{"migrate", "127.0.0.1", to.Port(), "", 0, 1000, "keys"}
		for _, key := range keys {
			command = append(command, key)
		}
		if err := from.Admin.Do(ctx, command...).Err(); err != nil {
			return moved, err
		}
		moved += len(keys)
	}
	// The new master first: it is to own the slot before the old one sends clients there.
	for _, s := range append([]*site.Server{to, from}, masters...) {
		if err := s.Admin.Do(ctx, "cluster", "setslot", slot, "node", ids[to]).Err(); err != nil {
			return moved, err
		}
	}
	return moved, nil
}
