package faults

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/history"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/site"
)

// recover waits for a little longer than calls may fail after all connections have become stale.
func (t *Target) recover(ctx context.Context) { wait(ctx, 9*t.Timeout()/2) }

// moves are faults after which connections from before are of no use, and new ones work.
func moves() []Fault {
	const moves = "the workers' address leads to a replica that has become the master, and connections to the old one, which takes no more writes, stay"
	return []Fault{
		on([]string{"redis"}, Fault{Name: "address moves", About: moves, Stale: true, Moves: true, Inject: moveRedis}),
		on(onPostgres, Fault{Name: "address moves", About: moves, Stale: true, Emptied: true, Inject: movePostgres}),
		on(onPostgres, Fault{
			Name: "silent replica", About: "commits wait for a replica that is stopped; it then continues, or takes over without the commits that it has not received",
			Inject: silentReplica,
		}),
		on(onPostgres, Fault{
			Name: "slow commits", About: "each takes 20 to 60 ms longer (`commit_delay`)", Replies: true, Inject: slowCommits,
		}),
		{
			Name: "silent pools", About: "all connections that are open lead nowhere, and nothing ends them", Stale: true, stores: whole,
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				proxies := t.network()
				before := hits(proxies)
				for _, p := range proxies {
					p.Strand()
				}
				t.recover(ctx)
				return Hit{Target: "all", Count: hits(proxies) - before}, nil
			},
		},
	}
}

// network returns the proxies of all workers.
func (t *Target) network() (all []*site.Proxy) {
	for i := range t.Fleet.Size() {
		all = append(all, t.Proxies(i)...)
	}
	return all
}

// moveRedis has a replica take over all that the master has, as a planned failover behind an
// address does.
func moveRedis(ctx context.Context, t *Target) (hit Hit, err error) {
	mend, cancel := mending(ctx)
	defer cancel()
	old := t.Servers[0]
	next, err := t.Replica(mend)
	if err != nil {
		return hit, err
	}
	hit.Target, hit.Count = next.Addr(), 1
	if err := errors.Join(received(mend, old, next), old.Admin.Do(mend, "client", "pause", 5000, "write").Err()); err != nil {
		next.End()
		return hit, err
	}
	paused := history.Now()
	err = received(mend, old, next) // the rest of it
	err = errors.Join(err, next.Admin.ReplicaOf(mend, "no", "one").Err())
	t.Replace(next)
	err = errors.Join(err, old.Follow(mend, next))
	hit.From = history.Now()
	hit.Away = time.Duration(hit.From - paused)
	err = errors.Join(err, old.Admin.Do(mend, "client", "unpause").Err())
	t.recover(ctx)
	old.End()
	return hit, err
}

// received waits until a replica has what its master has, which is not far away.
func received(ctx context.Context, master, replica *site.Server) error {
	wrote, err := master.Offset(ctx)
	for has := -1; err == nil && has < wrote; {
		has, err = replica.Offset(ctx)
	}
	return err
}

// movePostgres promotes a replica that has all commits of the server. The network delays the bytes
// that workers send during that.
func movePostgres(ctx context.Context, t *Target) (hit Hit, err error) {
	mend, cancel := mending(ctx)
	defer cancel()
	old := t.Postgres
	next, err := t.Standby(mend)
	if err != nil {
		return hit, err
	}
	hit.Target, hit.Count = next.Addr(), 1
	held := history.Now()
	for _, p := range t.network() {
		p.Set(site.Rules{BlackHole: true})
	}
	err = errors.Join(old.Configure(mend, "default_transaction_read_only = on"), old.EndTransactions(mend), old.Replicated(mend), next.Promote(mend))
	t.ReplacePostgres(next)
	hit.From = history.Now()
	hit.Away = time.Duration(hit.From - held)
	for _, p := range t.network() {
		p.Set(site.Rules{})
	}
	t.recover(ctx)
	old.End()
	return hit, err
}

// silentReplica stops the synchronous replica of the server, so that commits wait. Then the replica
// continues, or takes over without the commits that it has not received.
func silentReplica(ctx context.Context, t *Target) (hit Hit, err error) {
	mend, cancel := mending(ctx)
	defer cancel()
	old := t.Postgres
	replica, err := t.Standby(mend)
	if err != nil {
		return hit, err
	}
	hit.Target, hit.Count, hit.From = "replica goes on", 1, history.Now()
	err = old.Synchronous(mend)
	receiver, failed := replica.Receiver(mend)
	if err = errors.Join(err, failed); err != nil {
		replica.End()
		return hit, errors.Join(err, old.Configure(mend, "synchronous_standby_names = ''"))
	}
	t.last(ctx, 100*time.Millisecond, 500*time.Millisecond)
	err = receiver.Signal(syscall.SIGSTOP)
	if t.Rand.IntN(3) == 0 {
		wait(ctx, time.Second+t.some(0, 2*time.Second))
		err = errors.Join(err, receiver.Signal(syscall.SIGCONT), old.Configure(mend, "synchronous_standby_names = ''"))
		replica.End()
		return hit, err
	}
	wait(ctx, 2*t.some(4*time.Second, 5*time.Second)) // calls end without a reply, and others ask for what they left
	hit.Target, hit.Failover = "replica takes over", true
	old.Kill()
	err = errors.Join(err, receiver.Kill()) // with what has arrived, and it has not read
	err = errors.Join(err, replica.Replies(mend), replica.Promote(mend))
	t.ReplacePostgres(replica)
	old.End()
	return hit, err
}

// slowCommits has each commit take longer.
func slowCommits(ctx context.Context, t *Target) (Hit, error) {
	d := 20*time.Millisecond + time.Duration(t.Rand.Int64N(int64(40*time.Millisecond)))
	err := t.Postgres.Configure(ctx, "commit_siblings = 0", fmt.Sprintf("commit_delay = %d", d.Microseconds()))
	wait(ctx, 1500*time.Millisecond+t.some(0, 2*time.Second))
	mend, cancel := mending(ctx)
	defer cancel()
	return Hit{Target: d.Round(time.Millisecond).String(), Count: 1}, errors.Join(err, t.Postgres.Configure(mend, "commit_delay = 0"))
}
