package faults

import (
	"context"
	"errors"
	"syscall"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/site"
)

const (
	clockForward = "clock forward"
	clockBack    = "clock back"
)

// servers are faults of servers that stay what they are.
func servers() []Fault {
	single := []string{"redis"}
	alone := []string{"redis", "cluster"}
	return []Fault{
		{
			Name: "pause of a server", About: "a master is stopped for less time than others would take over in", stores: onRedis,
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				return stopped(ctx, t, 50*time.Millisecond, site.Dead/2)
			},
		},
		onMasters("script flush", "`SCRIPT FLUSH`", false, "script", "flush"),
		onMasters("killed subscriptions", "`CLIENT KILL TYPE pubsub`", false, "client", "kill", "type", "pubsub"),
		onMasters("killed connections", "`CLIENT KILL TYPE normal`", false, "client", "kill", "type", "normal"),
		change("no memory", "`maxmemory` is a byte, so the server takes no new keys",
			[]any{"config", "set", "maxmemory", "1"}, []any{"config", "set", "maxmemory", "0"}),
		change("no right to publish", "an ACL forbids `PUBLISH`",
			[]any{"acl", "setuser", "default", "-publish"}, []any{"acl", "setuser", "default", "+publish", "+@all"}),
		change("no right to subscribe", "an ACL forbids all channels, and the server cuts subscriptions",
			[]any{"acl", "setuser", "default", "resetchannels"}, []any{"acl", "setuser", "default", "allchannels"}),
		change("no right to scripts", "an ACL forbids `EVALSHA` and `EVAL`",
			[]any{"acl", "setuser", "default", "-evalsha", "-eval"}, []any{"acl", "setuser", "default", "+@all"}),
		{
			Name: "restart", About: "a master is killed, and started again with its append-only file (`appendfsync always`)", stores: alone,
			Inject: func(ctx context.Context, t *Target) (Hit, error) { return restart(ctx, t, (*site.Server).Kill) },
		},
		{
			Name: "restart without persistence", About: "the same, with nothing kept", Lost: true, stores: single,
			Inject: func(ctx context.Context, t *Target) (Hit, error) {
				return restart(ctx, t, func(s *site.Server) { _ = s.Forget() })
			},
		},
		onMasters("flush", "`FLUSHALL`", true, "flushall"),
		step(clockBack, "1 to 3 s", false),
		step(clockForward, "1 to 3 s", true),
	}
}

// master returns a random master.
func (t *Target) master(ctx context.Context) (*site.Server, error) {
	all := t.Masters(ctx)
	if len(all) == 0 {
		return nil, site.ErrNoMaster
	}
	return all[t.Rand.IntN(len(all))], nil
}

// stopped stops a master for a while.
func stopped(ctx context.Context, t *Target, least, most time.Duration) (Hit, error) {
	s, err := t.master(ctx)
	if err != nil {
		return Hit{}, err
	}
	if err := s.Process().Signal(syscall.SIGSTOP); err != nil {
		return Hit{}, err
	}
	t.last(ctx, least, most)
	return Hit{Target: s.Addr(), Count: 1}, s.Process().Signal(syscall.SIGCONT)
}

// restart ends a master, and starts it again before others take over.
func restart(ctx context.Context, t *Target, end func(*site.Server)) (Hit, error) {
	s, err := t.master(ctx)
	if err != nil {
		return Hit{}, err
	}
	end(s)
	t.last(ctx, 0, site.Dead/3)
	ctx, cancel := mending(ctx)
	defer cancel()
	return Hit{Target: s.Addr(), Count: 1}, s.Start(ctx)
}

// each sends a command to servers.
func each(ctx context.Context, servers []*site.Server, args ...any) error {
	var errs []error
	for _, s := range servers {
		errs = append(errs, s.Admin.Do(ctx, args...).Err())
	}
	return errors.Join(errs...)
}

// onMasters is a command to all masters.
func onMasters(name, about string, lost bool, command ...any) Fault {
	return Fault{
		Name: name, About: about, Lost: lost, stores: onRedis,
		Inject: func(ctx context.Context, t *Target) (Hit, error) {
			masters := t.Masters(ctx)
			return Hit{Target: "all", Count: int64(len(masters))}, each(ctx, masters, command...)
		},
	}
}

// change is a setting of all servers that is changed for a while.
func change(name, about string, begin, end []any) Fault {
	return Fault{
		Name: name, About: about, stores: onRedis,
		Inject: func(ctx context.Context, t *Target) (Hit, error) {
			err := each(ctx, t.Servers, begin...)
			t.last(ctx, 200*time.Millisecond, 1500*time.Millisecond)
			ctx, cancel := mending(ctx)
			defer cancel()
			return Hit{Target: "all", Count: int64(len(t.Servers))}, errors.Join(err, each(ctx, t.Servers, end...))
		},
	}
}

// step is a step of the server's clock, back or forward. Forward, leases end before their holders
// expect it.
func step(name, about string, forward bool) Fault {
	return Fault{
		Name: name, About: about, Lost: forward, stores: []string{"redis", "postgres"},
		Inject: func(_ context.Context, t *Target) (Hit, error) {
			d := (time.Second + time.Duration(t.Rand.Int64N(int64(2*time.Second)))).Round(time.Millisecond)
			if !forward {
				d = -d
			}
			return Hit{Target: d.String(), Count: 1, Step: d}, t.Clock.Step(d)
		},
	}
}
