// Package site is where a fleet works: the servers of a store, and the network in front of them.
package site

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisserver"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

// Site is the servers of a store, if it has any, with a proxy between each worker and each of them.
type Site struct {
	Kind     string // of the store, one of Kinds
	Servers  []*Server
	Postgres *Postgres // the only server, if the store is postgres
	// Coordination is the only server, if the store is etcd or zookeeper.
	Coordination *Coordination
	Clock        *Clock // of the only server; nil if it cannot be set
	Version      string
	Missing      []string // what cannot be tortured here, and why
	sentinel     *redisserver.Server
	proxies      [][]*Proxy // of each worker, in the order of the servers
	watched      *Proxy     // where Reply connects to, which no fault of a network hits
}

// Server is one server, with a client that has all rights, whatever those of the workers are.
type Server struct {
	*redisserver.Server
	Admin *redis.Client
}

const (
	admin = "admin"
	// Dead is for how long a server is silent before others take over.
	Dead = 1500 * time.Millisecond
)

// Timeout is that of the workers' store, which is the default one.
func (s *Site) Timeout() time.Duration {
	if s.Postgres != nil || s.Coordination != nil {
		return time.Second
	}
	return 250 * time.Millisecond
}

// Kinds are the stores for which there is a site.
func Kinds() []string {
	return []string{"redis", "cluster", "sentinel", "postgres", workload.Etcd, workload.ZooKeeper, "memory"}
}

// durable are the arguments of a server that loses nothing in a crash.
var durable = []string{"--appendonly", "yes", "--appendfsync", "always", "--repl-diskless-sync-delay", "0"}

// Start starts the servers of a store for a number of workers. Its error matches coordserver.ErrNotInstalled
// if the store is etcd or zookeeper, and there is none.
func Start(ctx context.Context, kind string, workers int) (s *Site, err error) {
	s = &Site{Kind: kind}
	defer func() {
		if err != nil {
			s.Stop()
			s = nil
		}
	}()
	switch kind {
	case "memory":
		s.Version = "core/memstore"
		return s, nil
	case "postgres":
		return s, s.startPostgres(ctx, workers)
	case workload.Etcd, workload.ZooKeeper:
		return s, s.startCoordination(ctx, workers)
	case "redis":
		err = s.startSingle(ctx)
	case "cluster":
		err = s.startCluster(ctx)
	case "sentinel":
		err = s.startSentinel(ctx)
	default:
		err = fmt.Errorf("no store %q: there are %s", kind, strings.Join(Kinds(), ", "))
	}
	if err != nil {
		return s, err
	}
	for _, server := range s.Servers {
		if err := server.grant(ctx); err != nil {
			return s, err
		}
	}
	version, err := s.Servers[0].Version(ctx)
	s.Version = "Redis " + version
	if err != nil {
		return s, err
	}
	for range workers {
		var all []*Proxy
		for _, server := range s.Servers {
			p, err := NewProxy(server.Addr())
			if err != nil {
				return s, err
			}
			all = append(all, p)
		}
		s.proxies = append(s.proxies, all)
	}
	s.watched, err = NewProxy(s.Servers[0].Addr())
	return s, err
}

func (s *Site) startClock(ctx context.Context) {
	var err error
	if s.Clock, err = newClock(ctx); err != nil {
		s.Missing = append(s.Missing, "steps of the server's clock: "+err.Error())
	}
}

// env are the variables of the site's servers.
func (s *Site) env() []string {
	if s.Clock == nil {
		return nil
	}
	return s.Clock.env()
}

func (s *Site) startSingle(ctx context.Context) error {
	s.startClock(ctx)
	server, err := redisserver.StartIn(ctx, s.env(), durable...)
	return s.add(err, server)
}

func (s *Site) startCluster(ctx context.Context) error {
	args := append(slices.Clone(durable),
		"--cluster-node-timeout", fmt.Sprint(Dead.Milliseconds()), "--cluster-require-full-coverage", "no",
		"--cluster-replica-validity-factor", "0")
	masters, err := redisserver.StartCluster(ctx, args...)
	if err := s.add(err, masters...); err != nil {
		return err
	}
	replicas, err := redisserver.AddReplicas(ctx, masters, args...)
	return s.add(err, replicas...)
}

func (s *Site) startSentinel(ctx context.Context) error {
	master, err := redisserver.Start(ctx, durable...)
	if err := s.add(err, master); err != nil {
		return err
	}
	replica, err := redisserver.Start(ctx, append(slices.Clone(durable), "--replicaof", "127.0.0.1 "+fmt.Sprint(master.Port()))...)
	if err := s.add(err, replica); err != nil {
		return err
	}
	if err := replica.InSync(ctx); err != nil {
		return err
	}
	s.sentinel, err = redisserver.StartSentinel(ctx, workload.MasterName, master, 1, Dead)
	return err
}

func (s *Site) add(err error, servers ...*redisserver.Server) error {
	if err != nil {
		return err
	}
	for _, server := range servers {
		s.Servers = append(s.Servers, newServer(server))
	}
	return nil
}

func newServer(server *redisserver.Server) *Server {
	return &Server{server, redis.NewClient(&redis.Options{
		Addr: server.Addr(), ClientName: admin, ReadTimeout: 2 * time.Second, MaxRetries: 1,
		OnConnect: func(ctx context.Context, c *redis.Conn) error {
			return c.AuthACL(ctx, admin, admin).Err()
		},
	})}
}

// grant makes the server know its administrator.
func (s *Server) grant(ctx context.Context) error {
	own := redis.NewClient(&redis.Options{Addr: s.Addr()})
	defer func() { _ = own.Close() }()
	return own.Do(ctx, "acl", "setuser", admin, "on", ">"+admin, "~*", "&*", "+@all").Err()
}

// Start starts a server again that was killed, and returns when it has read its data.
func (s *Server) Start(ctx context.Context) error {
	if err := s.Restart(ctx); err != nil {
		return err
	}
	return Until(ctx, func() bool { return s.grant(ctx) == nil && s.Admin.Ping(ctx).Err() == nil })
}

// End stops the server, and ends the connections of its administrator.
func (s *Server) End() {
	_ = s.Admin.Close()
	s.Stop()
}

// IsMaster reports whether a server is a master: not if it does not reply.
func (s *Server) IsMaster(ctx context.Context) bool {
	info, err := s.Admin.InfoMap(ctx, "replication").Result()
	return err == nil && info["Replication"]["role"] == "master"
}

// Until polls until a condition holds, or ctx ends.
func Until(ctx context.Context, holds func() bool) error {
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for !holds() {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
	return nil
}

// Masters returns the servers that are masters.
func (s *Site) Masters(ctx context.Context) (all []*Server) {
	for _, server := range s.Servers {
		if server.IsMaster(ctx) {
			all = append(all, server)
		}
	}
	return all
}

// Forget removes all that the servers keep, but for the base of fences of etcd and ZooKeeper.
func (s *Site) Forget(ctx context.Context) error {
	var errs []error
	for _, server := range s.Masters(ctx) {
		errs = append(errs, server.Admin.FlushAll(ctx).Err())
	}
	if s.Postgres != nil {
		errs = append(errs, s.Postgres.forget(ctx))
	}
	if s.Coordination != nil {
		errs = append(errs, s.Coordination.forget(ctx))
	}
	return errors.Join(errs...)
}

// Address returns where a worker finds the store.
func (s *Site) Address(worker int) workload.Address {
	a := workload.Address{Kind: s.Kind, Via: make(map[string]string)}
	for i, server := range s.Servers {
		a.Addrs = append(a.Addrs, server.Addr())
		a.Via[server.Addr()] = s.proxies[worker][i].Addr()
	}
	if s.Postgres != nil || s.Coordination != nil {
		a.Addrs = []string{s.proxies[worker][0].Addr()}
	}
	if s.sentinel != nil {
		a.Sentinels = []string{s.sentinel.Addr()}
	}
	return a
}

// Proxies returns the proxies of a worker.
func (s *Site) Proxies(worker int) []*Proxy {
	if s.proxies == nil {
		return nil
	}
	return s.proxies[worker]
}

// Stop stops all servers and proxies.
func (s *Site) Stop() {
	var running sync.WaitGroup
	defer running.Wait()
	for _, p := range append(slices.Concat(s.proxies...), s.watched) {
		if p != nil {
			running.Go(p.Close)
		}
	}
	if s.sentinel != nil {
		running.Go(s.sentinel.Stop)
	}
	if s.Postgres != nil {
		running.Go(s.Postgres.End)
	}
	if s.Coordination != nil {
		running.Go(s.Coordination.End)
	}
	for _, server := range s.Servers {
		running.Go(server.End)
	}
	if s.Clock != nil {
		s.Clock.close()
	}
}

// ErrNoMaster says that no server has become the master in time.
var ErrNoMaster = errors.New("no server has become the master in time")
