// Package zkstore keeps locks, semaphores and latches on ZooKeeper 3.5.3 or later, for services that
// have it already. It implements store.Leases and store.Latches, and no other mechanism.
//
// A hold and a waiter is an ephemeral sequential node, so the server's order is the queue, and the
// nodes of a dead process end with its session. [Held] makes the caller's own writes depend on a
// hold, which then excludes a paused holder too.
package zkstore

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/lockkeeper/lockkeeper/core/internal/background"
	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/internal/hooks"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/option"
	"github.com/lockkeeper/lockkeeper/internal/telemetry"
)

// Store is a store.Leases and a store.Latches on ZooKeeper. All methods may be called concurrently.
//
// It has one connection and one session for all of the process. A request with a reserve is
// store.ErrNotSupported: ZooKeeper has no write that depends on the children of a node.
type Store struct {
	config    config
	root      string
	acl       []zk.ACL
	conn      *zk.Conn
	closed    <-chan struct{} // when the client has ended
	link      *link
	calls     *calls
	telemetry *telemetry.Store
	hooks     hooks.Shutdown
	lost      hooks.Listeners

	life    context.Context // ends at Close
	end     context.CancelFunc
	running background.Group

	base    atomic.Int64 // of fences; zero before it was read
	entries entries
	watches watches
	latches latchTimers

	*namesakes
}

// namesakes is an alias, so that the field is not exported.
type namesakes = namesake.Register

var (
	_ store.Leases          = (*Store)(nil)
	_ store.LeaseDowngrader = (*Store)(nil)
	_ store.LeaseVerifier   = (*Store)(nil)
	_ store.LeaseLister     = (*Store)(nil)
	_ store.LeaseRevoker    = (*Store)(nil)
	_ store.Latches         = (*Store)(nil)
	_ store.Checker         = (*Store)(nil)
	_ namesake.Store        = (*Store)(nil)
)

// ScopeName is the instrumentation scope of the store's telemetry.
const ScopeName = "github.com/lockkeeper/lockkeeper/core/zkstore"

// The operations of the store's telemetry.
const (
	opAcquire   = "acquire_lease"
	opRelease   = "release_leases"
	opRenew     = "renew_leases"
	opInspect   = "inspect"
	opLatch     = "latch"
	opWatch     = "watch" // a waiter looks at the queue
	opKeepAlive = "keep_alive"
	opPing      = "ping"
)

var operations = []string{opAcquire, opRelease, opRenew, opInspect, opLatch, opWatch, opKeepAlive, opPing}

// New returns a store on an ensemble of servers, each a host:port, or a host for port 2181. It connects in the background, in
// a random order of the servers, and resolves their names for each connection. It returns an error
// if there is no server, for an address that cannot be read, and for an option out of its range. If no
// server can be reached, calls return errors that match store.ErrUnavailable.
//
// docs/defaults.md has the default of every option, and what happens at its edge.
//
// The connection is the store's own ([Store.Conn]). Its session must not be shared with code that
// closes it.
func New(servers []string, opts ...Option) (*Store, error) {
	c := config{session: 40 * time.Second, timeout: time.Second, prefix: "lockkeeper", logger: slog.Default()}
	option.Apply(&c, opts)
	if len(servers) == 0 {
		return nil, errors.New("zkstore: New: no server")
	}
	if err := c.check(); err != nil {
		return nil, fmt.Errorf("zkstore: New: %w", err)
	}
	s := &Store{
		namesakes: new(namesakes), config: c, root: strings.TrimSuffix(c.chroot, "/") + "/" + c.prefix, acl: zk.WorldACL(zk.PermAll),
	}
	if len(c.auth) > 0 {
		s.acl = zk.AuthACL(zk.PermAll)
	}
	s.life, s.end = context.WithCancel(context.Background())
	s.link = newLink(max(2*c.timeout, time.Second), s.life.Done())
	s.link.again, s.link.ended = s.resumed, s.sessionEnded
	s.entries.init()
	s.watches.init()
	s.calls = &calls{
		link: s.link, timeout: c.timeout, life: s.life,
		ordinary: make(chan struct{}, maxCalls), finishing: make(chan struct{}, maxFinishing),
	}
	s.calls.breaker = breaker.New(breaker.Config{
		Server: "zookeeper", Address: strings.Join(servers, ","), Logger: c.logger, Probe: s.probe, IsDecisive: isDecisive,
		Explain: func(failure error) error { return failure }, Life: s.life, Start: s.start,
	})
	s.telemetry = telemetry.NewStore(c.providers, ScopeName, "zookeeper", operations, s.calls.breaker.IsOpen, s.Calls())
	s.Serves(s.calls.breaker.IsOpen)
	addresses := slices.Clone(servers)
	rand.Shuffle(len(addresses), func(i, j int) { addresses[i], addresses[j] = addresses[j], addresses[i] })
	conn, events, err := zk.Connect(addresses, c.session, zk.WithHostProvider(&s.link.hosts), zk.WithDialer(s.link.dial),
		zk.WithEventCallback(s.event), zk.WithLogger(silent{}), zk.WithLogInfo(false), zk.WithMaxBufferSize(maxFrame))
	if err != nil {
		s.end()
		s.telemetry.Close()
		return nil, fmt.Errorf("zkstore: New: %w", err)
	}
	s.conn = conn
	s.calls.conn.Store(conn)
	closed := make(chan struct{})
	s.closed = closed
	go func() { // the client closes the channel when it has ended
		for {
			if _, more := <-events; !more {
				close(closed)
				return
			}
		}
	}()
	s.running.Run(s.authenticate)
	s.running.Run(s.beat)
	return s, nil
}

// silent is a logger of the client, whose lines the store's own replace.
type silent struct{}

func (silent) Printf(string, ...any) {}

func (s *Store) start(f func()) bool {
	if s.life.Err() != nil {
		return false
	}
	s.running.Run(f)
	return true
}

// authenticate sends the credentials. The client sends them again on each connection.
func (s *Store) authenticate() {
	for _, a := range s.config.auth {
		for {
			err := s.conn.AddAuth(a.scheme, a.auth)
			if err == nil {
				break
			}
			if errors.Is(err, zk.ErrAuthFailed) {
				s.link.authenticated(refused(err))
				return
			}
			select {
			case <-s.life.Done():
				return
			case <-time.After(100 * time.Millisecond):
			}
		}
	}
	s.link.authenticated(nil)
}

// event is called by the client with every event. It does not block.
func (s *Store) event(e zk.Event) {
	switch e.Type {
	case zk.EventSession:
		s.link.event(e.State)
	case zk.EventNodeDeleted, zk.EventNodeDataChanged, zk.EventNodeChildrenChanged, zk.EventNotWatching:
		s.fired(e.Path, e.Type)
	}
}

// resumed is called when a session was resumed on another connection, or a new one has begun. It
// does not block.
func (s *Store) resumed() {
	if s.entries.connections.Add(1) > 1 {
		s.telemetry.Reconnect(context.Background())
	}
	s.entries.kickAll()
}

// probe reports whether the ensemble serves the store.
func (s *Store) probe() error {
	late := time.NewTimer(s.config.timeout)
	defer late.Stop()
	if _, err := s.link.await(s.life, late.C); err != nil {
		if s.life.Err() != nil {
			return breaker.ErrNoEvidence
		}
		if errors.Is(err, store.ErrMisconfigured) {
			return err
		}
		return outage(err)
	}
	return s.sync(s.life, renews)
}

// isDecisive reports whether a failure is that of all connections.
func isDecisive(failure error) bool { return errors.As(failure, new(errNoConnection)) }

// Conn returns the store's connection, for the caller's own nodes and for a Multi with the result of
// [Held]. Do not close it. Its calls know no contexts and no time limits.
func (s *Store) Conn() *zk.Conn { return s.conn }

// Ping returns nil if the leader replies, an error that matches store.ErrUnavailable, or the context's
// error. An open breaker does not refuse it.
func (s *Store) Ping(ctx context.Context) (err error) {
	done := s.telemetry.Begin(ctx, opPing)
	defer func() { done.End(ctx, err) }()
	return s.sync(ctx, renews)
}

// sync returns nil once the session was alive at the leader, and its server has seen all that was
// written before.
func (s *Store) sync(ctx context.Context, u urgency) error {
	_, err := call(ctx, s.calls, u, func(c *zk.Conn) (string, error) { return c.Sync("/") }, nil)
	return err
}

// AtShutdown implements store.Hooks.
func (s *Store) AtShutdown(f func(context.Context) error) (remove func()) {
	return s.hooks.AtShutdown(f)
}

// Shutdown implements store.Store.
func (s *Store) Shutdown(ctx context.Context) error { return s.hooks.Run(ctx) }

// Close is a Shutdown of a second at most, whose error it returns. It then ends the store and its
// connection: from then on every method returns store.ErrClosed. It ends the session, unless leases
// are still held: these last as long as their sessions, since another holder could otherwise begin
// beside running work.
func (s *Store) Close() error {
	return s.hooks.Close(func() {
		s.drain()
		if s.entries.held() > 0 {
			s.link.sever()
		}
		s.end()
		s.entries.stop()
		s.latches.stop()
		s.calls.awaitReplies()
		s.conn.Close()
		s.link.sever()
		<-s.closed
		_ = s.calls.running.Wait(context.Background())
		_ = s.running.Wait(context.Background())
		s.telemetry.Close()
	})
}

// acceptsNew returns the error of calls that begin something or wait, which fail from Shutdown on.
func (s *Store) acceptsNew(ctx context.Context) error {
	if s.hooks.Begun() {
		return store.ErrClosed
	}
	return s.calls.over(ctx)
}

// beat sends something while the process has entries, so that the leader never counts the session
// from long ago.
func (s *Store) beat() {
	for {
		every := time.Second
		if current := s.link.session(); current != nil {
			every = current.beatEvery()
		}
		select {
		case <-s.life.Done():
			return
		case <-time.After(every):
		}
		if s.entries.empty() {
			continue
		}
		done := s.telemetry.Begin(s.life, opKeepAlive)
		done.End(s.life, s.sync(s.life, renews))
	}
}
