package election_test

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/election"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

const (
	ttl  = 10 * time.Second
	role = "scheduler"
)

// process is a candidate with its own way to a shared store.
type process struct {
	*election.Election
	store  *storetest.Faulty
	locker *lock.Locker
}

// inBubble runs a test with faked time, and two candidates for a role.
func inBubble(t *testing.T, test func(t *testing.T, first, second process)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		shared := memstore.New()
		t.Cleanup(func() { _ = shared.Close() })
		test(t, newProcess(t, shared, "first"), newProcess(t, shared, "second"))
	})
}

func newProcess(t *testing.T, shared *memstore.Store, label string, opts ...lock.Option) process {
	t.Helper()
	st := storetest.NewFaulty(shared)
	quiet := slog.New(slog.DiscardHandler)
	opts = append([]lock.Option{lock.WithTTL(ttl), lock.WithHolder(label), lock.WithLogger(quiet)}, opts...)
	l := must(lock.New(st, "leaders", opts...))
	t.Cleanup(func() {
		st.Mend(storetest.Any)
		_ = l.Close()
	})
	return process{must(election.New(l, role, election.WithLogger(quiet))), st, l}
}

// term is a term that Run has begun, and that lasts until its context ends or a result is sent.
type term struct {
	*election.Term
	result chan<- error
}

// run starts Run. Its result is on the second channel.
func (p process) run(ctx context.Context) (terms <-chan term, returned <-chan error) {
	begun, done := make(chan term, 10), make(chan error, 1)
	go func() {
		done <- p.Run(ctx, func(ctx context.Context, t *election.Term) error {
			result := make(chan error)
			begun <- term{t, result}
			select {
			case <-ctx.Done():
				return context.Cause(ctx)
			case err := <-result:
				return err
			}
		})
	}()
	synctest.Wait()
	return begun, done
}

func (p process) campaign(t *testing.T) *election.Term {
	t.Helper()
	term, err := p.Campaign(t.Context())
	if err != nil {
		t.Fatalf("Campaign: %v", err)
	}
	return term
}

// waiting returns how many candidates are in the queue.
func (p process) waiting(t *testing.T) int {
	t.Helper()
	synctest.Wait()
	return must(p.locker.Inspect(t.Context(), role)).Waiting
}

// wantLeads checks IsLeader of a candidate.
func wantLeads(t *testing.T, p process, want bool) {
	t.Helper()
	if err := p.IsLeader(t.Context()); (err == nil) != want || err != nil && !errors.Is(err, election.ErrNotLeader) {
		t.Errorf("IsLeader: %v; want a leader: %t", err, want)
	}
}

func wantError(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: %v, want %v", what, err, want)
	}
}

// must returns v, and panics on an error.
func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
