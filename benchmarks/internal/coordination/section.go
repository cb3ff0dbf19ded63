// Package coordination compares locks on etcd and on ZooKeeper with the locks of these servers' own
// client libraries.
package coordination

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/bench"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/contest"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/coordserver"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/worker"
)

const section = "coordination"

// Sections are the comparison of locks on etcd and ZooKeeper.
func Sections() []bench.Section {
	return []bench.Section{{
		Name:  section,
		Title: "etcd and ZooKeeper: locks",
		About: "A lock of one's own takes two writes that reach a disk, on both. Its hand-over from one process to another takes a delete and a " +
			"watch event. concurrency.Mutex and zk.Lock are the locks that the clients of etcd and of ZooKeeper have; they have no " +
			"fences, read locks or limits of a wait, and do not notify a holder that has lost its lock. Both servers are one each, and run side by side.",
		Full:    150 * time.Second,
		Run:     run,
		Targets: targets(),
	}}
}

// Jobs are those of the worker processes.
func Jobs() []worker.Job {
	return append(contest.Jobs(section, func() (all []contest.Contender) {
		for _, c := range contenders() {
			all = append(all, c.Contender)
		}
		return all
	}), victim())
}

// yard has the installed servers of a section.
type yard struct {
	servers map[kind]*coordserver.Server
	settle  time.Duration // until many goroutines that have begun to wait do
}

// kind is a kind of server.
type kind string

const (
	etcd      kind = "etcd"
	zooKeeper kind = "ZooKeeper"
)

// start starts the servers. It notes which of them are not installed.
func (y *yard) start(ctx context.Context, b *bench.B) error {
	var (
		mu       sync.Mutex
		starting sync.WaitGroup
		failure  error
	)
	y.servers = make(map[kind]*coordserver.Server)
	for of, start := range map[kind]func(context.Context) (*coordserver.Server, error){
		etcd: coordserver.StartEtcd, zooKeeper: coordserver.StartZooKeeper,
	} {
		starting.Go(func() {
			s, err := start(ctx)
			mu.Lock()
			defer mu.Unlock()
			switch {
			case err == nil:
				y.servers[of] = s
			case errors.Is(err, coordserver.ErrNotInstalled):
				b.Note(err.Error())
			default:
				failure = errors.Join(failure, err)
			}
		})
	}
	starting.Wait()
	return failure
}

func (y *yard) stop() {
	for _, s := range y.servers {
		s.Stop()
	}
}

func (y *yard) addr(of kind) string { return y.servers[of].Addr() }

// has returns those whose server runs.
func has[C interface{ on() kind }](y *yard, all []C) (these []C) {
	for _, c := range all {
		if y.servers[c.on()] != nil {
			these = append(these, c)
		}
	}
	return these
}

func run(ctx context.Context, b *bench.B) error {
	y := &yard{settle: 2 * time.Second}
	if b.Setting() == bench.Tiny {
		y.settle = 200 * time.Millisecond
	}
	defer y.stop()
	if err := y.start(ctx, b); err != nil || len(y.servers) == 0 {
		return err
	}
	for _, part := range []func(context.Context, *bench.B, *yard) error{own, contended, handOver, dead, held, waiting} {
		if err := part(ctx, b, y); err != nil {
			return err
		}
	}
	b.Note(options)
	return y.note(ctx, b)
}

const options = "etcd has its default settings, with fsync, and compacts its history each hour; ZooKeeper has ticks of 0.5 s. Lockkeeper: etcdstore.New on " +
	"a client of its own, and zkstore.New, with their defaults; locks are leased for 30 s. concurrency.Mutex: a client for each " +
	"process, and a session for each goroutine, since mutexes of one session do not exclude each other. zk.Lock: a connection for each process."

// modules are the clients, of Lockkeeper and its peers alike.
var modules = map[kind]string{etcd: "go.etcd.io/etcd/client/v3", zooKeeper: "github.com/go-zookeeper/zk"}

// note notes the versions of servers and clients.
func (y *yard) note(ctx context.Context, b *bench.B) error {
	for _, of := range []kind{etcd, zooKeeper} {
		s := y.servers[of]
		if s == nil {
			continue
		}
		version, err := s.Version(ctx)
		if err != nil {
			return err
		}
		b.Note(fmt.Sprintf("%s %s, with %s %s.", of, version, modules[of], versionOf(modules[of])))
	}
	return nil
}

// versionOf returns the version of a module of this program.
func versionOf(path string) string {
	info, _ := debug.ReadBuildInfo()
	if info != nil {
		for _, module := range info.Deps {
			if module.Path == path {
				return module.Version
			}
		}
	}
	return "of an unknown version"
}

// quiet is the log of stores: failures are counted.
var quiet = slog.New(slog.DiscardHandler)

// peerOf returns the error of a round, and notes instead that of a peer.
func peerOf(ctx context.Context, b *bench.B, row, title string, err error) error {
	if err == nil || ctx.Err() != nil || strings.HasPrefix(row, lockkeeper) {
		return err
	}
	b.Note(fmt.Sprintf("%s, %s: a round has failed: %v", row, title, err))
	return nil
}

func micros(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
