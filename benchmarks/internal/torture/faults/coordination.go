package faults

import (
	"context"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

// coordination are faults of an etcd or ZooKeeper server.
func coordination() []Fault {
	all := []Fault{
		{
			Name: "pause of the server", About: "its process is stopped, for less than a lease or for more",
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				process := t.Coordination.Process()
				if err := process.Signal(syscall.SIGSTOP); err != nil {
					return Hit{}, err
				}
				t.last(ctx, 50*time.Millisecond, 4*time.Second)
				return Hit{Target: t.Coordination.Addr(), Count: 1}, process.Signal(syscall.SIGCONT)
			},
		},
		{
			Name: "crash of the server", About: "its process is killed, and started again with its data",
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				t.Coordination.Kill()
				t.last(ctx, 0, time.Second)
				ctx, cancel := mending(ctx)
				defer cancel()
				return Hit{Target: t.Coordination.Addr(), Count: 1}, t.Coordination.Restart(ctx)
			},
		},
		{
			Name: "dead connections", About: "those of a process lead nowhere for a while, and then end",
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				w, i := t.worker()
				proxies := t.Proxies(i)
				before := hits(proxies)
				for _, p := range proxies {
					p.Strand()
				}
				t.last(ctx, time.Second, 4*time.Second)
				for _, p := range proxies {
					p.Cut()
				}
				return Hit{Target: w.Name, Count: hits(proxies) - before}, nil
			},
		},
		{
			Name: "deleted entries", About: "all holds and waiters are deleted in the server", Lost: true,
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				return Hit{Target: t.Coordination.Addr(), Count: 1}, t.Forget(ctx)
			},
		},
	}
	for i := range all {
		all[i].stores = onCoordination
	}
	return all
}

var onCoordination = []string{workload.Etcd, workload.ZooKeeper}
