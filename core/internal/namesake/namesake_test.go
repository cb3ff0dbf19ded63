package namesake_test

import (
	"bytes"
	"encoding/json"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/internal/namesake"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// logbook records all log lines.
type logbook struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logbook) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func newLog(t *testing.T) (*logbook, *slog.Logger) {
	l := new(logbook)
	logger := slog.New(slog.NewJSONHandler(l, nil))
	before := slog.Default()
	slog.SetDefault(logger)
	t.Cleanup(func() { slog.SetDefault(before) })
	return l, logger
}

// records returns the log lines since the last call.
func (l *logbook) records(t *testing.T) (records []map[string]any) {
	t.Helper()
	l.mu.Lock()
	defer l.mu.Unlock()
	for line := range bytes.Lines(l.text.Bytes()) {
		var r map[string]any
		if err := json.Unmarshal(line, &r); err != nil {
			t.Fatal(err)
		}
		records = append(records, r)
	}
	l.text.Reset()
	return records
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

// stores returns a store of each kind. The Redis store sends nothing in these tests.
func stores(t *testing.T) map[string]store.Store {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1", ReadTimeout: time.Second, ContextTimeoutEnabled: true})
	redisStore := must(redisstore.New(client))
	memory := memstore.New()
	t.Cleanup(func() { _, _, _ = redisStore.Close(), client.Close(), memory.Close() })
	all := map[string]store.Store{"memstore": memory}
	if st, ok := any(redisStore).(store.Store); ok {
		all["redisstore"] = st
	}
	return all
}

// built builds mechanisms by kind. Others are compared with variant 0.
var built = map[string]func(st store.Store, logger *slog.Logger, name string, variant int){
	"rate_limit": func(st store.Store, _ *slog.Logger, name string, variant int) {
		must(tokenbucket.New(st, name, []tokenbucket.Plan{
			tokenbucket.PerMinute(100), tokenbucket.PerMinute(100).Burst(20), tokenbucket.PerMinute(1000),
			tokenbucket.Limits{tokenbucket.PerMinute(100), tokenbucket.PerDay(1000)},
		}[variant]))
	},
	"lock": func(st store.Store, logger *slog.Logger, name string, variant int) {
		must(lock.New(st, name, []lock.Option{
			lock.WithTTL(30 * time.Second), lock.WithTTL(time.Second), lock.WithFair(), lock.WithLockDelay(time.Second),
		}[variant], lock.WithLogger(logger)))
	},
	"semaphore": func(st store.Store, logger *slog.Logger, name string, variant int) {
		must(semaphore.New(st, name, []int{4, 5, 4, 4}[variant], []semaphore.Option{
			nil, nil, semaphore.WithTTL(time.Second), semaphore.WithMaxWaiting(3),
		}[variant], semaphore.WithLogger(logger)))
	},
	"delay": func(st store.Store, logger *slog.Logger, name string, variant int) {
		must(delay.New(st, name, []delay.Option{
			delay.WithAttempts(10), delay.WithAttempts(3), delay.WithLease(time.Minute), delay.WithBuriedFor(time.Hour),
		}[variant], delay.WithLogger(logger)))
	},
	"idempotency": func(st store.Store, logger *slog.Logger, name string, variant int) {
		must(guard.New(st, name, []guard.Option{
			guard.WithSecret([]byte("hush")), guard.WithRetention(time.Hour), guard.WithRerun(), guard.WithSecret([]byte("other")),
		}[variant], guard.WithLogger(logger)))
	},
}

// Other settings under the same name are logged, once.
func TestOtherSettingsAreLogged(t *testing.T) {
	log, logger := newLog(t)
	for storeName, st := range stores(t) {
		for kind, build := range built {
			for variant := range 4 {
				t.Run(storeName+"/"+kind+"/"+strconv.Itoa(variant), func(t *testing.T) {
					name := "name-" + strconv.Itoa(variant)
					build(st, logger, name, 0)
					build(st, logger, name, 0)
					if logged := log.records(t); len(logged) > 0 {
						t.Fatalf("logged %v", logged)
					}
					build(st, logger, name, variant)
					build(st, logger, name, variant)
					build(st, logger, name, (variant+1)%4)
					logged := log.records(t)
					if len(logged) != 1 {
						t.Fatalf("logged %v", logged)
					}
					r := logged[0]
					if r["level"] != "WARN" || r["mechanism"] != kind || r["policy"] != name || r["settings"] == "" || r["others"] == "" {
						t.Errorf("logged %v", r)
					}
					for _, secret := range []string{"hush", "other\""} {
						if strings.Contains(r["settings"].(string)+r["others"].(string), secret) {
							t.Errorf("the log has the secret: %v", r)
						}
					}
				})
			}
		}
	}
}

// Mechanisms of different kinds, or on different stores, are not compared.
func TestOthersAreNotCompared(t *testing.T) {
	log, logger := newLog(t)
	variant := 0
	for _, st := range stores(t) {
		for _, build := range built {
			build(st, logger, "name", variant)
		}
		variant++
	}
	// Spellings of the same limit are equal.
	st := memstore.New()
	defer st.Close()
	must(tokenbucket.New(st, "api", tokenbucket.PerMinute(100)))
	must(tokenbucket.New(st, "api", must(tokenbucket.ParseLimit("100/60s burst=100"))))
	if logged := log.records(t); len(logged) > 0 {
		t.Errorf("logged %v", logged)
	}
}

// The next mechanism is compared with the changed settings.
func TestChangedSettings(t *testing.T) {
	log, logger := newLog(t)
	st := memstore.New()
	defer st.Close()
	limiter := must(tokenbucket.New(st, "api", tokenbucket.PerMinute(100)))
	if err := limiter.SetPlan(tokenbucket.PerMinute(50)); err != nil {
		t.Fatal(err)
	}
	must(tokenbucket.New(st, "api", tokenbucket.PerMinute(50)))
	s := must(semaphore.New(st, "reports", 4, semaphore.WithLogger(logger)))
	if err := s.SetCapacity(8); err != nil {
		t.Fatal(err)
	}
	must(semaphore.New(st, "reports", 8, semaphore.WithLogger(logger)))
	must(s.With(semaphore.WithTTL(time.Second)))

	l := must(lock.New(st, "carts", lock.WithLogger(logger)))
	must(l.With(lock.WithTTL(time.Second)))
	for range 2 {
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	must(lock.New(st, "carts", lock.WithTTL(time.Second), lock.WithLogger(logger))) // the other is closed
	if logged := log.records(t); len(logged) > 0 {
		t.Errorf("logged %v", logged)
	}
	must(tokenbucket.New(st, "api", tokenbucket.PerMinute(100)))
	if logged := log.records(t); len(logged) != 1 {
		t.Errorf("logged %v", logged)
	}
}

// The number of names is bounded, and a store without a register is ignored.
func TestBounds(t *testing.T) {
	log, logger := newLog(t)
	st := memstore.New()
	defer st.Close()
	var wg sync.WaitGroup
	for range 2 {
		wg.Go(func() {
			for n := range 5000 {
				m := namesake.Join(st, logger, "lock", "l"+strconv.Itoa(n), namesake.Settings{Text: "same"})
				m.Change(namesake.Settings{Text: "same"})
			}
		})
	}
	wg.Wait()
	if logged := log.records(t); len(logged) > 0 {
		t.Errorf("logged %v", logged)
	}
	for n := range 5000 {
		namesake.Join(st, logger, "lock", "l"+strconv.Itoa(n), namesake.Settings{Text: "other"})
	}
	if n := len(log.records(t)); n != 4096 {
		t.Errorf("%d names were compared", n)
	}
	m := namesake.Join(struct{}{}, logger, "lock", "l", namesake.Settings{})
	m.Change(namesake.Settings{})
	m.Leave()
}
