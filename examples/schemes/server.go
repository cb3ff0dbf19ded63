package main

import (
	"context"
	"crypto/sha1" //nolint:gosec // Redis names scripts so
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/alicebob/miniredis/v2"
	peer "github.com/alicebob/miniredis/v2/server"
	"github.com/redis/go-redis/v9"
)

// server is a Redis server.
type server struct {
	options redis.Options
	inside  *miniredis.Miniredis // nil if it is the given one
	started atomic.Int64         // in Unix seconds
	scripts sync.Map             // texts of the ones that it has
}

// newServer starts a server in this process.
func (s *stage) newServer() (*server, error) {
	inside, err := miniredis.Run()
	if err != nil {
		return nil, err
	}
	inside.ClockTTL(true) // keys expire by the clock, and earlier through pass
	s.closer = append(s.closer, inside.Close)
	server := &server{options: redis.Options{Addr: inside.Addr()}, inside: inside}
	server.started.Store(time.Now().Add(-time.Hour).Unix()) // trials assume servers that have been up for long
	inside.Server().SetPreHook(func(c *peer.Peer, command string, args ...string) bool {
		return server.replyUptime(c, command, args...) || server.replyLoaded(c, command, args...)
	})
	return server, nil
}

// replyUptime replies to INFO server as Redis does; miniredis does not implement it.
func (s *server) replyUptime(c *peer.Peer, command string, args ...string) bool {
	if !strings.EqualFold(command, "info") || len(args) != 1 || !strings.EqualFold(args[0], "server") {
		return false
	}
	c.WriteBulk(fmt.Sprintf("# Server\r\nuptime_in_seconds:%d\r\n", time.Now().Unix()-s.started.Load()))
	return true
}

// replyLoaded replies to SCRIPT LOAD of a script that the server has, as Redis does; miniredis parses
// it again. It has no script with a shebang: it refuses them.
func (s *server) replyLoaded(c *peer.Peer, command string, args ...string) bool {
	if !strings.EqualFold(command, "script") || len(args) != 2 || !strings.EqualFold(args[0], "load") ||
		strings.HasPrefix(args[1], "#!") {
		return false
	}
	if _, has := s.scripts.LoadOrStore(args[1], nil); !has {
		return false
	}
	c.WriteBulk(fmt.Sprintf("%x", sha1.Sum([]byte(args[1])))) //nolint:gosec // Redis names scripts so
	return true
}

// restart restarts a server, which loses its memory.
func (s *server) restart() {
	s.started.Store(time.Now().Unix())
	s.inside.FlushAll()
}

// pair is a master and its replica, at one address.
type pair struct {
	master, replica *server
	serving         atomic.Pointer[server]
}

func (s *stage) newPair() (*pair, redis.Options, error) {
	master, err := s.newServer()
	if err != nil {
		return nil, redis.Options{}, err
	}
	replica, err := s.newServer()
	if err != nil {
		return nil, redis.Options{}, err
	}
	p := &pair{master: master, replica: replica}
	p.serving.Store(master)
	return p, redis.Options{Dialer: func(ctx context.Context, network, _ string) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, network, p.serving.Load().options.Addr)
	}}, nil
}

// failover crashes the master before the replica has its latest writes.
func (p *pair) failover() {
	p.serving.Store(p.replica)
	p.master.inside.Close()
}

// masters are the servers of a Redlock.
const masters = 5

// newMasters starts them.
func (s *stage) newMasters() ([]*server, error) {
	var servers []*server
	for range masters {
		server, err := s.newServer()
		if err != nil {
			return nil, err
		}
		servers = append(servers, server)
	}
	return servers, nil
}

// reach returns the connections of a process to all servers; those to the last few are broken.
func (s *stage) reach(servers []*server, broken int) []*process {
	processes := make([]*process, len(servers))
	for i, server := range servers {
		processes[i] = s.processOn(server.options)
		if i >= len(servers)-broken {
			processes[i].dieBefore("")
		}
	}
	return processes
}

// ping checks that the given server replies.
func ping(ctx context.Context, given *redis.Options) (err error) {
	client := redis.NewClient(given)
	defer func() { err = errors.Join(err, client.Close()) }()
	return client.Ping(ctx).Err()
}

// sweep deletes the keys of the given server that begin with a prefix.
func sweep(ctx context.Context, given *redis.Options, prefix string) (err error) {
	client := redis.NewClient(given)
	defer func() { err = errors.Join(err, client.Close()) }()
	keys := client.Scan(ctx, 0, prefix+"*", 1000).Iterator()
	for keys.Next(ctx) {
		if err := client.Del(ctx, keys.Val()).Err(); err != nil {
			return fmt.Errorf("delete the keys of the trials: %w", err)
		}
	}
	return keys.Err()
}
