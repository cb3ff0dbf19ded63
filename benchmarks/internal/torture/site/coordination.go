package site

import (
	"context"
	"errors"
	"fmt"
	"net"
	"time"

	"github.com/go-zookeeper/zk"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/coordserver"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/torture/workload"
)

// Coordination is an etcd or ZooKeeper server, with a client of its administrator.
type Coordination struct {
	*coordserver.Server
	forget func(ctx context.Context) error // deletes all entries, and keeps the base of fences
	close  func()
}

// startCoordination starts a server of a kind, for a number of workers.
func (s *Site) startCoordination(ctx context.Context, workers int) error {
	start, administer, name := coordserver.StartEtcd, administerEtcd, "etcd"
	if s.Kind == workload.ZooKeeper {
		start, administer, name = coordserver.StartZooKeeper, administerZooKeeper, "ZooKeeper"
	}
	server, err := start(ctx)
	if err != nil {
		return err
	}
	s.Coordination = &Coordination{Server: server}
	if err := administer(s.Coordination); err != nil {
		return err
	}
	version, err := server.Version(ctx)
	if err != nil {
		return err
	}
	s.Version = name + " " + version
	s.Missing = append(s.Missing, "an ensemble of several servers: it has one", "steps of the server's clock: leases and sessions are counted by its monotonic one")
	for range workers {
		p, err := NewStreamProxy(server.Addr())
		if err != nil {
			return err
		}
		s.proxies = append(s.proxies, []*Proxy{p})
	}
	return nil
}

func administerEtcd(c *Coordination) error {
	client, err := clientv3.New(clientv3.Config{Endpoints: []string{"http://" + c.Addr()}, Logger: zap.NewNop()})
	if err != nil {
		return err
	}
	c.forget = func(ctx context.Context) error {
		_, err := client.Delete(ctx, "lockkeeper/l/", clientv3.WithPrefix())
		return err
	}
	c.close = func() { _ = client.Close() }
	return nil
}

func administerZooKeeper(c *Coordination) error {
	conn, _, err := zk.Connect([]string{c.Addr()}, 10*time.Second, zk.WithLogger(silent{}), zk.WithLogInfo(false))
	if err != nil {
		return err
	}
	c.forget = func(context.Context) error {
		return errors.Join(empty(conn, "/lockkeeper/l", 2), empty(conn, "/lockkeeper/s", 2))
	}
	c.close = conn.Close
	return nil
}

type silent struct{}

func (silent) Printf(string, ...any) {}

// empty deletes the nodes that are so many levels below a node.
func empty(conn *zk.Conn, path string, levels int) error {
	children, _, err := conn.Children(path)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		return fmt.Errorf("%s: %w", path, err)
	}
	var errs []error
	for _, child := range children {
		child = path + "/" + child
		if levels > 0 {
			errs = append(errs, empty(conn, child, levels-1))
		} else if err := conn.Delete(child, -1); err != nil && !errors.Is(err, zk.ErrNoNode) {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// End stops the server, and ends the connection of its administrator.
func (c *Coordination) End() {
	if c.close != nil {
		c.close()
	}
	c.Stop()
}

// NewStreamProxy starts a proxy in front of a server whose protocol it does not know: it delays what it
// carries, holds it back and cuts connections, and has no other rules.
func NewStreamProxy(target string) (*Proxy, error) {
	return newProxy(target, protocol{
		commands: func(p *Proxy, l *link, to chan<- parcel) {
			p.stream(l.client, to, func(r Rules) time.Duration { return r.LateRequests })
		},
		replies: func(p *Proxy, l *link, from chan<- parcel) {
			p.stream(l.server, from, func(r Rules) time.Duration { return r.LateReplies })
		},
	})
}

// stream carries bytes.
func (p *Proxy) stream(from net.Conn, way chan<- parcel, late func(Rules) time.Duration) {
	defer close(way)
	for {
		raw := make([]byte, 16<<10)
		n, err := from.Read(raw)
		if n > 0 {
			rules, hole := p.now()
			delay := late(rules)
			if hole != nil || delay > 0 {
				p.hits.Add(1)
			}
			way <- parcel{raw[:n], time.Now().Add(delay), hole}
		}
		if err != nil {
			return
		}
	}
}
