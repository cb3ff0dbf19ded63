package faults

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/site"
)

// networks are faults between processes and servers.
func networks() []Fault {
	// between is a delay: some are longer than the store's timeout.
	between := func(t *Target) time.Duration { return time.Duration(20+t.Rand.IntN(600)) * time.Millisecond }
	return []Fault{
		network("late requests", "commands arrive up to 0.6 s late, also those of connections that are closed",
			func(t *Target) site.Rules { return site.Rules{LateRequests: between(t)} }),
		network("late replies", "up to 0.6 s late",
			func(t *Target) site.Rules { return site.Rules{LateReplies: between(t)} }),
		on(whole, network("late pushes", "up to 3 s late, while replies are in time",
			func(t *Target) site.Rules { return site.Rules{LatePushes: 5 * between(t)} })),
		on(onRedis, network("repeated requests", "half of all scripts run twice, and the second reply arrives",
			func(*Target) site.Rules { return site.Rules{RepeatRequests: 50} })),
		on(whole, network("repeated pushes", "arrive twice",
			func(*Target) site.Rules { return site.Rules{RepeatPushes: true} })),
		on(whole, network("lost replies", "one script or statement in twenty runs, and its connection is cut",
			func(*Target) site.Rules { return site.Rules{CutReplies: 5} })),
		on(whole, network("silence", "one script or statement in fifty runs, and its connection gets no further reply",
			func(*Target) site.Rules { return site.Rules{Silence: 2} })),
		on(whole, network("lost pushes", "none arrives",
			func(*Target) site.Rules { return site.Rules{LosePushes: true} })),
		network("black hole", "nothing arrives; then all of it does",
			func(*Target) site.Rules { return site.Rules{BlackHole: true} }),
		{
			Name: "reset", About: "all connections of a process are cut, several times",
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				w, i := t.worker()
				proxies := t.Proxies(i)
				before := hits(proxies)
				for range 1 + t.Rand.IntN(4) {
					for _, p := range proxies {
						p.Cut()
					}
					t.last(ctx, 0, 200*time.Millisecond)
				}
				return Hit{Target: w.Name, Count: hits(proxies) - before}, nil
			},
		},
	}
}

// on returns a fault that only some stores can have.
func on(stores []string, f Fault) Fault {
	f.stores = stores
	return f
}

// network is a fault of the network of one process or, in one of three cases, of all.
func network(name, about string, rules func(*Target) site.Rules) Fault {
	return Fault{
		Name: name, About: about,
		Inject: func(ctx context.Context, t *Target) (Hit, error) {
			w, i := t.worker()
			hit, proxies := Hit{Target: w.Name}, t.Proxies(i)
			if t.Rand.IntN(3) == 0 {
				hit.Target, proxies = "all", nil
				for i := range t.Fleet.Size() {
					proxies = append(proxies, t.Proxies(i)...)
				}
			}
			before := hits(proxies)
			set := rules(t)
			for _, p := range proxies {
				p.Set(set)
			}
			t.last(ctx, 300*time.Millisecond, 3*time.Second)
			for _, p := range proxies {
				p.Set(site.Rules{})
			}
			hit.Count = hits(proxies) - before
			return hit, nil
		},
	}
}

func hits(proxies []*site.Proxy) (sum int64) {
	for _, p := range proxies {
		sum += p.Hits()
	}
	return sum
}
