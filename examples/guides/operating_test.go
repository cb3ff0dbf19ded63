package guides_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// settled is how long after its attempt a charge can arrive at the provider.
const settled = time.Hour

// resolveCharges settles the operations of unknown outcome by what the provider says of them. It is for
// a command, or for a job that runs every few minutes.
func resolveCharges(ctx context.Context, orders *guard.Guard, provider *ledger, operator string) error {
	for record, err := range orders.Unresolved(ctx) {
		if err != nil {
			return err
		}
		charge, found := provider.find(record.ID) // the key with which the operation was charged
		if !found && record.Changed < settled {
			continue // it may still arrive
		}
		how, why := guard.NeverHappened(), "the provider has no charge of it"
		if found {
			how, why = guard.HappenedAnswerLost(http.StatusCreated), "charge "+charge
		}
		switch err := orders.Resolve(ctx, record, how, operator, why); {
		case errors.Is(err, guard.ErrChanged), errors.Is(err, guard.ErrOutcomeKnown), errors.Is(err, guard.ErrInFlight):
			continue // another operator was faster
		case err != nil:
			return err
		}
		fmt.Printf("resolved, attempt %d by %s: %s\n", record.Attempt, record.Holder, why)
	}
	return nil
}

func Example_unknownOutcomes() {
	ctx := context.Background()
	store := memstore.New() // or redisstore.New(client)
	defer store.Close()
	orders, err := guard.New(store, "orders", guard.WithHolder("web-1"))
	if err != nil {
		panic(err)
	}
	provider := &ledger{charges: map[string]string{}}
	order := guard.Operation{Scope: "alice", Key: "k-1"}
	buy := func() {
		err := guard.Once(ctx, orders, order, func(ctx context.Context) error {
			attempt, _ := guard.FromContext(ctx)
			provider.charges[attempt.OperationID()] = "ch_42"
			return errors.New("no reply") // the charge has been made all the same
		})
		fmt.Println("unknown:", errors.Is(err, guard.ErrOutcomeUnknown), "error:", err != nil)
	}
	buy()
	buy()
	if err := resolveCharges(ctx, orders, provider, "on-call"); err != nil {
		panic(err)
	}
	buy()
	// Output:
	// unknown: false error: true
	// unknown: true error: true
	// resolved, attempt 1 by web-1: charge ch_42
	// unknown: false error: false
}

// What the provider has no charge of runs again, but not before a charge can no longer arrive.
func TestResolveCharges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		store := memstore.New()
		defer store.Close()
		orders := must(guard.New(store, "orders"))
		buy := func(err error) error {
			return guard.Once(t.Context(), orders, guard.Operation{Scope: "alice", Key: "k-1"}, func(context.Context) error { return err })
		}
		_ = buy(errors.New("no reply"))
		for range 2 {
			if err := resolveCharges(t.Context(), orders, &ledger{}, "on-call"); err != nil {
				t.Fatal(err)
			}
			if err := buy(nil); !errors.Is(err, guard.ErrOutcomeUnknown) {
				t.Errorf("before a charge has settled: %v", err)
			}
			time.Sleep(settled / 2)
		}
		if err := errors.Join(resolveCharges(t.Context(), orders, &ledger{}, "on-call"), buy(nil)); err != nil {
			t.Errorf("after it: %v", err)
		}
	})
}

// ledger is what a provider knows, by the keys of its charges.
type ledger struct{ charges map[string]string }

func (l *ledger) find(key string) (charge string, found bool) {
	charge, found = l.charges[key]
	return charge, found
}

// unlockByForce ends the hold of a lock that the operator has looked at, and no later one.
func unlockByForce(ctx context.Context, jobs *lock.Locker, key string) error {
	state, err := jobs.Inspect(ctx, key)
	if err != nil {
		return err
	}
	for _, h := range state.Holders {
		fmt.Printf("%s has held it for %v; %d wait\n", h.Label, h.Age.Round(time.Minute), state.Waiting)
		ended, err := jobs.ForceUnlock(ctx, key, h.Fence)
		if err != nil {
			return err
		}
		fmt.Println("ended:", ended) // false: it has ended by itself, and another may hold the lock
	}
	return nil
}

func Example_forceUnlock() {
	ctx := context.Background()
	store := memstore.New() // or redisstore.New(client)
	defer store.Close()
	jobs, err := lock.New(store, "jobs", lock.WithHolder("worker-3"))
	if err != nil {
		panic(err)
	}
	lease, err := jobs.Lock(ctx, "nightly")
	if err != nil {
		panic(err)
	}
	if err := unlockByForce(ctx, jobs, "nightly"); err != nil {
		panic(err)
	}
	<-lease.Context().Done()
	fmt.Println(context.Cause(lease.Context()))
	// Output:
	// worker-3 has held it for 0s; 0 wait
	// ended: true
	// lock: the lease was lost: others may have held the lock since
}

func Example_resetLimit() {
	ctx := context.Background()
	store := memstore.New() // or redisstore.New(client)
	defer store.Close()
	api, err := tokenbucket.New(store, "api", tokenbucket.PerHour(1))
	if err != nil {
		panic(err)
	}
	for range 2 {
		must(api.Allow(ctx, "alice"))
	}
	fmt.Println(must(api.Peek(ctx, "alice")).Allowed) // charges nothing
	if err := api.Reset(ctx, "alice"); err != nil {
		panic(err)
	}
	fmt.Println(must(api.Allow(ctx, "alice")).Allowed)
	// Output:
	// false
	// true
}

// The guide says of every log line, and of every alert, what it asks for.
func TestGuideHasEveryLogLine(t *testing.T) {
	guide := string(must(os.ReadFile("../../docs/guides/operating.md")))
	for file, pattern := range map[string]string{
		"../../docs/observability.md":        "(?m)^\\| `lockkeeper: ([^`]+)` \\|",
		"../../deploy/prometheus/alerts.yml": `alert: (\w+)`,
	} {
		found := regexp.MustCompile(pattern).FindAllStringSubmatch(string(must(os.ReadFile(file))), -1)
		if len(found) < 8 {
			t.Fatalf("%s has only %d of them", file, len(found))
		}
		for _, f := range found {
			if !strings.Contains(guide, "| `"+f[1]+"`") {
				t.Errorf("the guide does not say what to do about %q of %s", f[1], file)
			}
		}
	}
}
