package main

import (
	"errors"
	"io"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// What the cells of each kind say.
const (
	afterDeath   = `ok: B had it after [0-9.]+m?s`
	overwritten  = `BROKEN: A, awake again, overwrote what B had written`
	fencedOff    = `FENCED: A's write was refused: its fence was lower than B's`
	untold       = `BROKEN: A was told nothing: two holders`
	toldBefore   = `ok: A was told [0-9.]+m?s before B had it`
	twoHolders   = `BROKEN: two holders; A, awake again, overwrote what B had written`
	twoAndFenced = `FENCED: two holders; A's write was refused: its fence was lower than B's`
	keptByA      = `ok: (A kept the lock, and B waited|A was told that its lock was over)`
	cost         = `ok: [0-9.]+ round trips, [0-9.]+ waits for a disk`
	costNoDisk   = `ok: [0-9.]+ round trips, 0\.0 waits for a disk`
)

// wantOf are the cells of each kind, in the order of duels: the recipe's, and Lockkeeper's.
var wantOf = map[string][][2]string{
	"a row of PostgreSQL": {
		{afterDeath, afterDeath}, {overwritten, fencedOff}, {untold, toldBefore}, {twoHolders, twoAndFenced}, {cost, cost},
	},
	"one Redis": {
		{afterDeath, afterDeath}, {overwritten, fencedOff}, {untold, toldBefore}, {twoHolders, twoAndFenced}, {costNoDisk, costNoDisk},
	},
	"Redlock on five Redis": {
		{afterDeath, afterDeath}, {overwritten, fencedOff}, {untold, toldBefore}, {twoHolders, keptByA}, {costNoDisk, costNoDisk},
	},
	"ZooKeeper": {
		{afterDeath, afterDeath}, {overwritten, fencedOff}, {untold, toldBefore}, {keptByA, keptByA}, {cost, cost},
	},
	"etcd": {
		// The client of etcd ends its session by a timer that is late by up to half a second.
		{afterDeath, afterDeath}, {overwritten, fencedOff}, {toldBefore + `|BROKEN: A was told [0-9.]+m?s after B had it`, toldBefore},
		{keptByA, keptByA}, {cost, cost},
	},
}

// required are the variables that turn missing servers into failures.
var required = map[string]string{
	"a row of PostgreSQL": "LOCKKEEPER_REQUIRE_POSTGRES", "one Redis": "LOCKKEEPER_REQUIRE_REDIS",
	"Redlock on five Redis": "LOCKKEEPER_REQUIRE_REDIS", "ZooKeeper": "LOCKKEEPER_REQUIRE_ZOOKEEPER", "etcd": "LOCKKEEPER_REQUIRE_ETCD",
}

func TestKinds(t *testing.T) {
	if testing.Short() {
		t.Skip("it waits for the ends of leases and for elections")
	}
	for _, k := range kinds() {
		t.Run(k.name, func(t *testing.T) {
			t.Parallel()
			rows, err := k.compare(t.Context(), testpace.Scale(2*time.Second))
			if err != nil {
				t.Fatal(err)
			}
			want := wantOf[k.name]
			if len(rows) != len(want) {
				t.Fatalf("%d rows; want %d", len(rows), len(want))
			}
			for i, r := range rows {
				if r.classic.verdict == absent && os.Getenv(required[k.name]) != "1" {
					t.Skip(r.classic)
				}
				for side, got := range []string{r.classic.String(), r.keeper.String()} {
					if !regexp.MustCompile("^(" + want[i][side] + ")$").MatchString(got) {
						t.Errorf("%s, of Lockkeeper %v: %q; want %q", r.trial.name, side == 1, got, want[i][side])
					}
				}
			}
		})
	}
}

// A kind whose servers are not installed says so in each row, and is no failure.
func TestMissingServers(t *testing.T) {
	k := kind{name: "none", one: func(h *host) *field {
		h.Skipf("%s is not installed", "none")
		return nil
	}}
	rows, err := k.compare(t.Context(), time.Second)
	if err != nil || len(rows) != len(duels) {
		t.Fatalf("%d rows, %v", len(rows), err)
	}
	for _, r := range rows {
		if got := r.keeper.String(); got != "-: not run: none is not installed" || r.classic != r.keeper {
			t.Errorf("%q, %q", r.classic, got)
		}
	}
	if text, ok := summary(rows); !ok {
		t.Error(text)
	}
	k.one = func(h *host) *field {
		h.Fatal("no port")
		return nil
	}
	if _, err := k.compare(t.Context(), time.Second); err == nil || errors.Is(err, errMissing) || !strings.Contains(err.Error(), "no port") {
		t.Errorf("a server that does not start: %v", err)
	}
}

func TestStoresRefuse(t *testing.T) {
	for _, args := range [][]string{{"-stores", "-redis", "redis://127.0.0.1:1/0"}, {"-stores", "-ttl", "500ms"}} {
		if code := run(args, io.Discard, io.Discard); code != 2 {
			t.Errorf("%v: exit code %d; want 2", args, code)
		}
	}
}
