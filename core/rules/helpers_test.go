package rules_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/rules"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func ok(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// text is a source whose document a test sets.
type text struct {
	document atomic.Pointer[string]
	reads    atomic.Int64
	err      atomic.Pointer[error]
}

func (d *text) set(document string) { d.document.Store(&document) }

func (d *text) fail(err error) { d.err.Store(&err) }

func (d *text) source() rules.Source {
	return rules.Func(func(context.Context) ([]byte, error) {
		d.reads.Add(1)
		if err := d.err.Load(); err != nil && *err != nil {
			return nil, *err
		}
		return []byte(*d.document.Load()), nil
	})
}

func document(s string) *text {
	d := &text{}
	d.set(s)
	return d
}

// service is the mechanisms of a process.
type service struct {
	st            *memstore.Store
	api, signup   *tokenbucket.Limiter
	reports, gate *semaphore.Semaphore
}

func newService(t testing.TB) *service {
	t.Helper()
	st := memstore.New()
	s := &service{
		st:      st,
		api:     must(tokenbucket.New(st, "api", tokenbucket.PerMinute(10), tokenbucket.WithCandidate(tokenbucket.PerMinute(5)))),
		signup:  must(tokenbucket.New(st, "signup", tokenbucket.PerHour(3))),
		reports: must(semaphore.New(st, "reports", 2)),
		gate:    must(semaphore.New(st, "gate", 50, semaphore.WithAdaptiveCapacity(time.Second, 50, 500))),
	}
	t.Cleanup(func() { _ = st.Close() })
	return s
}

func (s *service) all() rules.Option { return rules.For(s.api, s.signup, s.reports, s.gate) }

// quiet is an option for a log that nothing reads.
func quiet() rules.Option { return rules.WithLogger(slog.New(slog.DiscardHandler)) }

func open(t testing.TB, src rules.Source, opts ...rules.Option) *rules.Rules {
	t.Helper()
	r, err := rules.Open(t.Context(), src, append([]rules.Option{quiet()}, opts...)...)
	ok(t, err)
	t.Cleanup(func() { _ = r.Close() })
	return r
}

// logs is a log that a test reads.
type logs struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *logs) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *logs) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

func (l *logs) option() rules.Option {
	return rules.WithLogger(slog.New(slog.NewTextHandler(l, &slog.HandlerOptions{
		ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
			if a.Key == slog.TimeKey {
				return slog.Attr{}
			}
			return a
		},
	})))
}

// wantState fails the test unless the rules are in a state, and an error says why if they are stale.
func wantState(t testing.TB, r *rules.Rules, want rules.State) {
	t.Helper()
	if a := r.Applied(); a.State != want || (a.Err == nil) != (want == rules.Current) {
		t.Errorf("the rules are %v because of %v, want %v", a.State, a.Err, want)
	}
}

func errorsIn(err error) []rules.Error {
	var all *rules.Errors
	if errors.As(err, &all) {
		return all.List
	}
	return nil
}
