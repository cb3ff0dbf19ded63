package redisstore_test

import (
	"context"
	"errors"
	"net"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// After a refused connection, calls do not wait for the client to dial again.
func TestARefusedConnectionFailsAtOnce(t *testing.T) {
	t.Run("from the start", func(t *testing.T) {
		log := new(logbook)
		address := unusedAddr(t)
		s := newStore(t, dial(t, address, time.Second), log.option())
		refusedAtOnce(t, s, log, address)
	})
	t.Run("after it has worked", func(t *testing.T) {
		log := new(logbook)
		server := redistest.Start(t)
		s := newStore(t, dial(t, server.Addr(), time.Second), log.option())
		if _, err := newLimiter(t, s).Allow(ctx(), "k"); err != nil {
			t.Fatal(err)
		}
		server.Stop()
		refusedAtOnce(t, s, log, server.Addr())
		server.Restart()
		eventually(t, 3*time.Second, "it works again", func() bool {
			_, err := newLimiter(t, s).Allow(ctx(), "k")
			return err == nil
		})
	})
}

// refusedAtOnce makes ten calls, which took six times the store's deadline of 250 ms before the
// breaker opened.
func refusedAtOnce(t *testing.T, s *redisstore.Store, log *logbook, address string) {
	t.Helper()
	l := newLimiter(t, s)
	began := time.Now()
	for range 10 {
		_, err := l.Allow(ctx(), "k")
		if cause := store.CauseOf(err); !errors.Is(err, store.ErrUnavailable) || cause != store.ConnectionRefused {
			t.Errorf("%v: the cause is %q", err, cause)
		}
		if errors.Is(err, store.ErrMisconfigured) || errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("%v is no time-out, and no misconfiguration", err)
		}
	}
	if took := time.Since(began); took > 250*time.Millisecond {
		t.Errorf("ten calls took %v", took)
	}
	for _, want := range []string{tripped, "cause=connection_refused", "address=" + address} {
		if !log.has(want) {
			t.Errorf("the log has no %q: %s", want, log.text.String())
		}
	}
}

// A few refused connections, as behind a load balancer, fail no call.
func TestRefusedConnectionsOfAPoolThatWorks(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	log := new(logbook)
	dials := 0 // the client dials under one lock at a time here: the pool has one connection
	client := redis.NewClient(&redis.Options{
		Addr: server.Addr(), PoolSize: 1, ConnMaxLifetime: time.Nanosecond, ContextTimeoutEnabled: true,
		Dialer: func(ctx context.Context, network, address string) (net.Conn, error) {
			if dials++; dials%3 != 0 {
				address = "127.0.0.1:1"
			}
			return new(net.Dialer).DialContext(ctx, network, address)
		},
	})
	t.Cleanup(func() { _ = client.Close() })
	l := newLimiter(t, newStore(t, client, log.option()))
	for range 20 {
		if _, err := l.Allow(ctx(), "k"); err != nil {
			t.Error(err)
		}
	}
	if log.has(tripped) {
		t.Error("the breaker opened")
	}
}

func TestAnUnknownHostIsNamed(t *testing.T) {
	testpace.Parallel(t)
	s := newStore(t, dial(t, "redis.invalid:6379", time.Second), new(logbook).option())
	_, err := newLimiter(t, s).Allow(ctx(), "k")
	if cause := store.CauseOf(err); cause != store.UnknownHost && cause != store.Timeout { // no name server here
		t.Errorf("%v: the cause is %q", err, cause)
	}
}

func TestATimeoutIsNamed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	proxy := redistest.NewProxy(t, server.Addr())
	log := new(logbook)
	s := newStore(t, dial(t, proxy.Addr(), time.Second), log.option(), redisstore.WithTimeout(50*time.Millisecond))
	l := newLimiter(t, s)
	eventually(t, 5*time.Second, "it works", func() bool {
		_, err := l.Allow(ctx(), "k")
		return err == nil
	})
	proxy.BlackHole()
	eventually(t, 3*time.Second, "the breaker opens", func() bool {
		_, err := l.Allow(ctx(), "k")
		if cause := store.CauseOf(err); cause != store.Timeout {
			t.Fatalf("%v: the cause is %q", err, cause)
		}
		return log.has(tripped)
	})
	if !log.has("cause=timeout") {
		t.Error(log.text.String())
	}
}

// Every mechanism distinguishes a misconfiguration from an outage, and logs its cause.
func TestMisconfigurations(t *testing.T) {
	testpace.Parallel(t)
	for name, c := range map[string]struct {
		client func(t *testing.T) redis.UniversalClient
		cause  store.Cause
	}{
		"no password": {func(t *testing.T) redis.UniversalClient {
			server := redistest.Start(t)
			configure(t, server.Client(), "requirepass", "secret")
			return server.Client()
		}, store.Authentication},
		"another password": {func(t *testing.T) redis.UniversalClient {
			server := redistest.Start(t)
			configure(t, server.Client(), "requirepass", "secret")
			return withPassword(t, server, "", "wrong")
		}, store.Authentication},
		"a password that is not required": {func(t *testing.T) redis.UniversalClient {
			return withPassword(t, redistest.Start(t), "nobody", "wrong")
		}, store.Authentication},
		"no permission": {func(t *testing.T) redis.UniversalClient {
			server := redistest.Start(t)
			if err := server.Client().Do(ctx(), "ACL", "SETUSER", "weak", "on", ">p", "~*", "+@all", "-evalsha", "-eval").Err(); err != nil {
				t.Fatal(err)
			}
			return withPassword(t, server, "weak", "p")
		}, store.Permission},
		"a replica": {func(t *testing.T) redis.UniversalClient {
			master, replica := redistest.Start(t), redistest.Start(t)
			_, port, err := net.SplitHostPort(master.Addr())
			if err != nil {
				t.Fatal(err)
			}
			if err := replica.Client().ReplicaOf(ctx(), "127.0.0.1", port).Err(); err != nil {
				t.Fatal(err)
			}
			return replica.Client()
		}, store.ReadOnly},
	} {
		t.Run(name, func(t *testing.T) {
			log := new(logbook)
			s := newStore(t, c.client(t), log.option())
			l := newLimiter(t, s)
			for range 10 {
				_, err := l.Allow(ctx(), "k")
				wantMisconfigured(t, err, c.cause)
			}
			_, err := newOp("o").begin(s)
			wantMisconfigured(t, err, c.cause)
			_, err = newClaim("k", "holder").acquire(s)
			wantMisconfigured(t, err, c.cause)
			for _, want := range []string{"redis is misconfigured", "cause=" + string(c.cause), "address=127.0.0.1"} {
				if !log.has(want) {
					t.Errorf("the log has no %q: %s", want, log.text.String())
				}
			}
		})
	}
}

func withPassword(t *testing.T, server *redistest.Server, user, password string) *redis.Client {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: user, Password: password, ContextTimeoutEnabled: true})
	t.Cleanup(func() { _ = client.Close() })
	return client
}

func wantMisconfigured(t *testing.T, err error, cause store.Cause) {
	t.Helper()
	if !errors.Is(err, store.ErrMisconfigured) || store.Down(err) || store.CauseOf(err) != cause {
		t.Errorf("%v: misconfigured: %v, cause %q, want %q", err, errors.Is(err, store.ErrMisconfigured), store.CauseOf(err), cause)
	}
}

// The store works after a password was corrected, without a restart.
func TestACorrectedPasswordWorks(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	direct := server.Client()
	configure(t, direct, "requirepass", "secret")
	s := newStore(t, withPassword(t, server, "", "late"), new(logbook).option())
	l := newLimiter(t, s)
	for range 10 {
		if _, err := l.Allow(ctx(), "k"); !errors.Is(err, store.ErrMisconfigured) {
			t.Fatal(err)
		}
	}
	configure(t, direct, "requirepass", "late")
	eventually(t, 3*time.Second, "it works", func() bool {
		_, err := l.Allow(ctx(), "k")
		return err == nil
	})
	// The eviction policy could not be read before, and is read now.
	configure(t, withPassword(t, server, "", "late"), "maxmemory-policy", "allkeys-lru")
	_, err := newOp("o").begin(s)
	wantMisconfigured(t, err, store.Eviction)
}

// If a server comes back with another password, the outage has become a misconfiguration: a policy
// that fails open must not let all requests pass any longer.
func TestAnOutageThatBecomesAMisconfiguration(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	server.Stop()
	log := new(logbook)
	l := newLimiter(t, newStore(t, withPassword(t, server, "nobody", "wrong"), log.option()))
	eventually(t, 3*time.Second, "the breaker opens", func() bool {
		_, err := l.Allow(ctx(), "k")
		if cause := store.CauseOf(err); cause != store.ConnectionRefused {
			t.Fatalf("%v: the cause is %q", err, cause)
		}
		return log.has(tripped)
	})
	server.Restart()
	eventually(t, 5*time.Second, "the probe finds the cause", func() bool {
		_, err := l.Allow(ctx(), "k")
		return errors.Is(err, store.ErrMisconfigured)
	})
	for range 10 {
		_, err := l.Allow(ctx(), "k")
		wantMisconfigured(t, err, store.Authentication)
	}
	eventually(t, 5*time.Second, "the cause is logged", func() bool { return log.has("redis is misconfigured") })
}

func TestAClientOfOneServerOnACluster(t *testing.T) {
	t.Parallel()
	cluster := redistest.StartCluster(t)
	client := dial(t, cluster.Addrs()[0], time.Second)
	l := newLimiter(t, newStore(t, client, new(logbook).option()))
	wrong := 0
	for i := range 30 {
		_, err := l.Allow(ctx(), string(rune('a'+i)))
		if err != nil {
			wrong++
			wantMisconfigured(t, err, store.WrongServer)
		}
	}
	if wrong == 0 {
		t.Error("all keys were on one node")
	}
}

// A full server is not down: it serves reads.
func TestAFullServerIsNotDown(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	s := newStore(t, server.Client(), new(logbook).option())
	l := newLimiter(t, s)
	if _, err := l.Allow(ctx(), "k"); err != nil {
		t.Fatal(err)
	}
	configure(t, server.Client(), "maxmemory", "1")
	_, taken := l.Allow(ctx(), "k")
	_, begun := newOp("o").begin(s)
	_, acquired := newClaim("k", "holder").acquire(s)
	for _, err := range []error{taken, begun, acquired} {
		if !errors.Is(err, store.ErrFull) || store.Down(err) || store.CauseOf(err) != store.Full {
			t.Errorf("%v: the cause is %q", err, store.CauseOf(err))
		}
	}
}
