package pgstore

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
)

// logbook is what a store has logged.
type logbook struct {
	mu   sync.Mutex
	text strings.Builder
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *logbook) has(texts ...string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range strings.Lines(l.text.String()) {
		if !slices.ContainsFunc(texts, func(text string) bool { return !strings.Contains(line, text) }) {
			return true
		}
	}
	return false
}

func (l *logbook) option() Option {
	return WithLogger(slog.New(slog.NewTextHandler(l, nil)))
}

// tripped is what the store logs when it takes the server to be down, and replies what it logs when
// that has ended.
const (
	tripped = "lockkeeper: postgresql is down; calls fail at once until it replies"
	replies = "lockkeeper: postgresql replies again"
)

func wantUnavailable(t testing.TB, err error, unconfirmed bool) {
	t.Helper()
	if !errors.Is(err, store.ErrUnavailable) || errors.Is(err, store.ErrUnconfirmed) != unconfirmed {
		t.Errorf("got %v, want store.ErrUnavailable, unconfirmed: %v", err, unconfirmed)
	}
}

// counts are rows that steps of these tests change.
const counts = "CREATE TABLE lk.counts (id int PRIMARY KEY, n int NOT NULL DEFAULT 0); INSERT INTO lk.counts SELECT generate_series(1, 100)"

// administer runs statements as the superuser, on a connection of their own.
func administer(t testing.TB, dsn string, statements ...string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	must(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	for _, sql := range statements {
		_, err := conn.Exec(t.Context(), sql)
		must(t, err)
	}
}

// install installs the schema and counts in a database.
func install(t testing.TB, dsn string) {
	t.Helper()
	migrateIn(t, dsn)
	administer(t, dsn, counts)
}

// count is a step that counts in a row: the store may repeat it, since a test looks whether it was
// counted at all.
func count(ctx context.Context, s *Store, row int) error {
	return countAs(ctx, s, statement.Call{Writes: true}, row)
}

// countOnce is a step that must not be repeated.
func countOnce(ctx context.Context, s *Store, row int) error {
	return countAs(ctx, s, statement.Call{Writes: true, Once: true}, row)
}

func countAs(ctx context.Context, s *Store, st statement.Call, row int) error {
	st.Operation = opTakeTokens
	_, err := statement.Run(ctx, s.db, st, statement.Execute("UPDATE lk.counts SET n = n + 1 WHERE id = $1", row))
	return err
}

// counted returns a row's count.
func counted(t testing.TB, dsn string, row int) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	must(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	must(t, conn.QueryRow(t.Context(), "SELECT n FROM lk.counts WHERE id = $1", row).Scan(&n))
	return n
}

// prepared returns the DSN of a new database with the store's schema, and counts.
func prepared(t testing.TB) string {
	t.Helper()
	dsn := migrated(t)
	administer(t, dsn, counts)
	return dsn
}

// behindProxy returns the DSN of a new database with counts, a proxy to its server, and a store that
// uses the proxy.
func behindProxy(t testing.TB, opts ...Option) (dsn string, p *faultproxy.Proxy, s *Store) {
	t.Helper()
	dsn = prepared(t)
	config, err := pgx.ParseConfig(dsn)
	must(t, err)
	p = postgrestest.NewProxy(t, statement.AddressOf(config))
	return dsn, p, openTestStore(t, postgrestest.Through(dsn, p.Addr()), opts...)
}

func TestACrashOfTheServer(t *testing.T) {
	t.Parallel()
	server := postgrestest.Start(t)
	install(t, server.DSN())
	log := new(logbook)
	s := openTestStore(t, server.DSN(), log.option())
	must(t, count(t.Context(), s, 1))

	under, done := context.WithCancel(t.Context())
	var load sync.WaitGroup
	defer load.Wait()
	defer done()
	for row := range 4 {
		load.Go(func() {
			for under.Err() == nil {
				if count(under, s, 2+row) != nil { // or it would spin
					<-time.After(time.Millisecond)
				}
			}
		})
	}
	server.Kill()
	eventually(t, "the breaker opens", func() bool { return log.has(tripped, "cause=", "address="+server.Addr()) })
	eventually(t, "the cause is known", func() bool {
		return store.CauseOf(count(t.Context(), s, 1)) == store.ConnectionRefused
	})
	inTime(t, "nine calls in ten, with the server down,", time.Millisecond, func() time.Duration {
		took := make([]time.Duration, 200)
		for i := range took {
			sent := time.Now()
			err := count(t.Context(), s, 1)
			took[i] = time.Since(sent)
			if wantUnavailable(t, err, false); !breaker.Refused(err) {
				t.Errorf("the breaker does not refuse a call: %v", err)
			}
		}
		slices.Sort(took)
		return took[180]
	})
	eventually(t, "a ping tells why", func() bool { // idle connections that broke come first
		err := s.Ping(t.Context())
		return store.CauseOf(err) == store.ConnectionRefused && store.Down(err)
	})
	server.Restart()
	eventually(t, "it works again", func() bool { return count(t.Context(), s, 1) == nil })
	eventually(t, "that is logged", func() bool { return log.has(replies) })
}

// Backends that an administrator ends while they are idle cost no call: not even one that must not
// be sent twice.
func TestIdleBackendsAreTerminated(t *testing.T) {
	t.Parallel()
	log := new(logbook)
	dsn := prepared(t)
	s := openTestStore(t, dsn, log.option())
	for round := range 3 {
		occupy(t, s, s.config.connections)
		administer(t, dsn, terminate)
		eventually(t, "the backends end", func() bool { return backends(t, dsn) == 0 })
		for range 2 * s.config.connections {
			must(t, countOnce(t.Context(), s, 1))
		}
		if n := counted(t, dsn, 1); n != (round+1)*2*s.config.connections {
			t.Errorf("counted %d", n)
		}
	}
	if log.has(tripped) {
		t.Error("the breaker opened")
	}
}

// terminate ends all other backends of the database.
const terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"

// databaseOf returns the name of the database of a DSN.
func databaseOf(t testing.TB, dsn string) string {
	t.Helper()
	config, err := pgx.ParseConfig(dsn)
	must(t, err)
	return config.Database
}

// backends returns the number of backends of stores in the database.
func backends(t testing.TB, dsn string) (n int) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), dsn)
	must(t, err)
	defer func() { _ = conn.Close(t.Context()) }()
	must(t, conn.QueryRow(t.Context(), "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'lockkeeper'").Scan(&n))
	return n
}

// occupy has the store make n connections.
func occupy(t testing.TB, s *Store, n int) {
	t.Helper()
	var all sync.WaitGroup
	for range n {
		all.Go(func() {
			sleep := func() error {
				_, err := statement.Run(t.Context(), s.db, statement.Call{Operation: opPing}, statement.Execute("SELECT pg_sleep(0.05)"))
				return err
			}
			err := sleep()
			for began := time.Now(); err != nil && time.Since(began) < patience; { // a busy machine connects late
				err = sleep()
			}
			if err != nil {
				t.Error(err)
			}
		})
	}
	all.Wait()
}

// Backends are ended all the time, also during statements. A step that may be repeated never fails; a
// step for once is counted once when it succeeds, and at most once when it is unconfirmed.
func TestBusyBackendsAreTerminated(t *testing.T) {
	t.Parallel()
	log := new(logbook)
	dsn := prepared(t)
	s := openTestStore(t, dsn, log.option(), WithConnections(16))
	const callers = 8
	var (
		load      sync.WaitGroup
		confirmed [callers]int
		unknown   [callers]int
		stop      = make(chan struct{})
		succeeded atomic.Int64
	)
	for i := range callers {
		load.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if i%2 == 0 {
					switch err := count(t.Context(), s, 1+i); {
					case err == nil:
						succeeded.Add(1)
					case !errors.Is(err, store.ErrUnconfirmed):
						t.Errorf("a step that may be repeated: %v", err)
					}
					continue
				}
				switch err := countOnce(t.Context(), s, 1+i); {
				case err == nil:
					confirmed[i]++
					succeeded.Add(1)
				case errors.Is(err, store.ErrUnconfirmed):
					unknown[i]++
				case !errors.Is(err, store.ErrUnavailable):
					t.Error(err)
				}
			}
		})
	}
	admin, err := pgx.Connect(t.Context(), dsn)
	must(t, err)
	for range 20 {
		_, err := admin.Exec(t.Context(), terminate)
		must(t, err)
		want := succeeded.Load() + 2*callers // also on a slow machine, they get on in between
		eventually(t, "calls succeed", func() bool { return succeeded.Load() >= want })
	}
	must(t, admin.Close(t.Context()))
	close(stop)
	load.Wait()
	for i := 1; i < callers; i += 2 {
		if n := counted(t, dsn, 1+i); n < confirmed[i] || n > confirmed[i]+unknown[i] || confirmed[i] == 0 {
			t.Errorf("counted %d, with %d confirmed and %d unknown", n, confirmed[i], unknown[i])
		}
	}
	eventually(t, "it works again", func() bool { return count(t.Context(), s, 1) == nil })
}

func TestALostReply(t *testing.T) {
	t.Parallel()
	dsn, proxy, s := behindProxy(t)
	must(t, count(t.Context(), s, 1))
	proxy.LoseReplies("lk.counts", 1, faultproxy.Cut)
	if err := count(t.Context(), s, 2); err != nil {
		t.Errorf("a step that may be repeated: %v", err)
	}
	if n := counted(t, dsn, 2); n != 2 {
		t.Errorf("counted %d; want 2, or no reply was lost", n)
	}
	proxy.LoseReplies("lk.counts", 1, faultproxy.Cut)
	wantUnavailable(t, countOnce(t.Context(), s, 3), true)
	eventually(t, "it has run once", func() bool { return counted(t, dsn, 3) == 1 })
	// The repetition fails for a reason that proves that it has not run; the first one may have.
	proxy.LoseReplies("lk.counts", 1, faultproxy.Cut)
	done := make(chan error, 1)
	seen := proxy.Seen("lk.counts")
	f := func(ctx context.Context, c *pgx.Conn) (struct{}, error) {
		if proxy.Seen("lk.counts") > seen { // the second time
			_, err := c.Exec(ctx, "SELECT * FROM lk.nothing")
			return struct{}{}, err
		}
		_, err := c.Exec(ctx, "UPDATE lk.counts SET n = n + 1 WHERE id = $1", 4)
		return struct{}{}, err
	}
	go func() {
		_, err := statement.Run(t.Context(), s.db, statement.Call{Operation: opTakeTokens, Writes: true}, f)
		done <- err
	}()
	wantUnavailable(t, <-done, true)
	must(t, s.Ping(t.Context()))
}

// A server that does not reply costs a caller its timeout, and later ones nothing.
func TestSilence(t *testing.T) {
	t.Parallel()
	log := new(logbook)
	_, proxy, s := behindProxy(t, WithTimeout(hasty), log.option())
	occupy(t, s, 4)
	proxy.BlackHole()
	var load sync.WaitGroup
	var all [8][20]time.Duration
	for i := range all {
		load.Go(func() {
			for j := range all[i] {
				began := time.Now()
				err := count(t.Context(), s, 1)
				all[i][j] = time.Since(began)
				if !errors.Is(err, store.ErrUnavailable) {
					t.Error(err)
				}
			}
		})
	}
	load.Wait()
	var slowest []time.Duration // of each caller: the breaker refuses later ones
	for i := range all {
		slowest = append(slowest, slices.Max(all[i][:]))
	}
	punctual(t, "calls", 2*hasty+200*time.Millisecond, slowest)
	eventually(t, "the breaker opens", func() bool { _ = count(t.Context(), s, 1); return log.has(tripped, "cause=timeout") })
	inTime(t, "a refused call", 20*time.Millisecond, func() time.Duration {
		began := time.Now()
		err := count(t.Context(), s, 1)
		if wantUnavailable(t, err, false); !breaker.Refused(err) {
			t.Errorf("the breaker does not refuse a call: %v", err)
		}
		return time.Since(began)
	})
	proxy.Mend()
	eventually(t, "it works again", func() bool { return count(t.Context(), s, 1) == nil })
}

// A lone caller opens the breaker as well.
func TestSilenceForALoneCaller(t *testing.T) {
	t.Parallel()
	for name, connections := range map[string]int{"a pool of one": 1, "a pool": 8} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			log := new(logbook)
			_, proxy, s := behindProxy(t, WithTimeout(hasty), WithConnections(connections), log.option())
			eventually(t, "it works", func() bool { return count(t.Context(), s, 1) == nil })
			proxy.BlackHole()
			eventually(t, "the breaker opens", func() bool { return breaker.Refused(count(t.Context(), s, 1)) })
			if !log.has(tripped) {
				t.Error("it is not logged")
			}
			proxy.Mend()
			eventually(t, "it works again", func() bool { return count(t.Context(), s, 1) == nil })
		})
	}
}

// A delay that is below the timeout costs nothing but time; one beyond it does not close the
// connection that a later call needs.
func TestDelay(t *testing.T) {
	t.Parallel()
	_, proxy, s := behindProxy(t, WithTimeout(3*brisk))
	proxy.Delay(100 * time.Millisecond) // connecting takes several round trips
	eventually(t, "a call succeeds", func() bool { return count(t.Context(), s, 1) == nil })
	inTime(t, "a call of one round trip", 150*time.Millisecond, func() time.Duration {
		began := time.Now()
		must(t, countOnce(t.Context(), s, 1))
		return time.Since(began)
	})
}

// A server that does not reply delays the next one of the DSN, and does not hide it.
func TestServersOneByOne(t *testing.T) {
	t.Parallel()
	dsn, proxy, _ := behindProxy(t)
	config, err := pgx.ParseConfig(dsn)
	must(t, err)
	proxy.BlackHole()
	log := new(logbook)
	s := openTestStore(t, postgrestest.Through(dsn, proxy.Addr()+","+statement.AddressOf(config)), WithTimeout(hasty), log.option())
	works := func() bool { return count(t.Context(), s, 1) == nil }
	eventually(t, "the next one is found", works)
	administer(t, dsn, "ALTER DATABASE "+config.Database+" SET default_transaction_read_only = on", terminate)
	eventually(t, "the breaker opens", func() bool { works(); return log.has(tripped) })
	administer(t, dsn, "SET default_transaction_read_only = off", "ALTER DATABASE "+config.Database+" RESET default_transaction_read_only")
	eventually(t, "the probe finds the next one", works)
}

func TestCloseDuringSilence(t *testing.T) {
	t.Parallel()
	dsn, proxy, _ := behindProxy(t)
	inTime(t, "Close", time.Second, func() time.Duration {
		s := openTestStore(t, postgrestest.Through(dsn, proxy.Addr()), WithTimeout(hasty))
		eventually(t, "it works", func() bool { return count(t.Context(), s, 1) == nil })
		s.db.Listen()
		proxy.BlackHole()
		for range 5 {
			_ = count(t.Context(), s, 1)
		}
		began := time.Now()
		_ = s.Close()
		took := time.Since(began)
		if err := count(t.Context(), s, 1); !errors.Is(err, store.ErrClosed) {
			t.Errorf("after Close: %v", err)
		}
		proxy.Mend()
		return took
	})
}
