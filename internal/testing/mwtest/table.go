package mwtest

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// Run runs the table, with stores in memory. Its rows run beside each other, but for rows that
// measure the process: no other test may run then, so that the caller must not be parallel.
func Run(t *testing.T, f Framework) {
	all := groups()
	excepted := exceptions(f)
	for _, g := range all {
		for _, r := range slices.Concat(g.alone, g.rows) {
			delete(excepted, g.name+"/"+r.name)
		}
	}
	for name := range excepted {
		t.Errorf("there is no row %q to except", name)
	}
	newRig(t, f, inMemory).run(all)
}

// exceptions returns why rows cannot hold in a framework, by their group and name.
func exceptions(f Framework) map[string]string {
	if e, ok := f.(Excepting); ok {
		return e.Exceptions()
	}
	return nil
}

// RunOnServers runs the rows about what a client is answered on each kind of Redis server, but for
// those with faked time. The caller must not be parallel, as that of [Run].
func RunOnServers(t *testing.T, f Framework) {
	for name, start := range redistest.Servers {
		t.Run(name, func(t *testing.T) { newRig(t, f, onRedis(start(t))).run(outcomes()) })
	}
}

// RunWaits runs on Redis the rows in which the time of a request and that of its store meet: see
// the package's documentation.
func RunWaits(t *testing.T, f Framework) {
	t.Run("redis", func(t *testing.T) {
		newRig(t, f, onRedis(redistest.Servers["redis"](t))).run(waits())
	})
}

// RunOn is RunOnServers on another kind of server, for the groups of rows with these names, or all.
// open returns what opens stores that share a new state, and closes them when the test ends; it is
// called by many tests at a time.
func RunOn(t *testing.T, f Framework, open func(t *testing.T) func() store.Store, groups ...string) {
	some := slices.DeleteFunc(outcomes(), func(g group) bool {
		return len(groups) > 0 && !slices.Contains(groups, g.name)
	})
	newRig(t, f, kind{open: open, onServer: true}).run(some)
}

// row is one row of the table.
type row struct {
	name string
	test func(*rig)
}

func (r row) run(t *rig, group string) {
	if why := exceptions(t.framework)[group+"/"+r.name]; why != "" {
		t.Skip(why)
	}
	t.began = time.Now()
	r.test(t)
}

// timedRow is a row with faked time.
func timedRow(name string, test func(*rig)) row {
	return row{name, func(t *rig) { timed(t, test) }}
}

// group is a part of the table.
type group struct {
	name  string
	rows  []row
	alone []row // they measure the process, and run before the others, one at a time
}

// groups are all rows.
func groups() []group {
	return append(outcomes(),
		group{name: "answers", rows: answerRows},
		group{name: "endings", rows: endingRows()},
		group{name: "holds", rows: slices.Concat(holdRows, timeRows)},
		group{name: "leaving", rows: leavingRows},
		group{name: "refused", rows: refusedRows},
		group{name: "through", rows: throughRows()},
		group{name: "cost", alone: costRows},
	)
}

// outcomes are the rows about what a client is answered.
func outcomes() []group {
	return []group{
		{name: "ratelimit", rows: slices.Concat(rateLimitRows, corsRows), alone: memoryRows},
		{name: "usage", rows: usageRows},
		{name: "shadow", rows: shadowRows},
		{name: "settled", rows: slices.Concat(settledRows, attemptRows, openAttemptRows, heldKeyRows)},
		{name: "idempotency", rows: idempotencyRows},
		{name: "requests", rows: slices.Concat(requestRows, bodyRows)},
		{name: "exclusive", rows: exclusiveRows},
		{name: "concurrency", rows: concurrencyRows},
		{name: "fenced", rows: fencedRows},
		{name: "repeats", rows: slices.Concat(repeatRows, flushedRows)},
		{name: "twins", rows: twinRows},
		{name: "dedupe", rows: slices.Concat(turnRows, dedupeRows)},
		{name: "guards", rows: guardRows},
		{name: "kept", rows: keptRows},
		{name: "outages", rows: outageRows},
		{name: "silences", rows: silenceRows},
		{name: "denials", rows: denialRows},
		{name: "order", rows: orderRows},
		{name: "provided", rows: providedRows},
		{name: "statuses", rows: statusRows},
		{name: "together", rows: jointRows},
	}
}

// waits are the rows in which the time of a request and that of its store meet: the request waits
// until the store has something for it, and is answered then, or ends before, by its client, a
// deadline, its server or a guard that is closed; or the request has ended, in whatever way its
// framework ends requests, when the store learns of it.
//
// Faults are not among them. [storetest.Faulty] makes them in front of the store, which they never
// reach: what a framework answers to a silence or an outage is the same in memory.
func waits() []group {
	return []group{
		{name: "settled", rows: slices.Concat(
			named(settledRows, "a request costs what its handler reports, however it ends"),
			named(attemptRows, "an attempt whose status is not known counts"),
		)},
		{name: "exclusive", rows: named(exclusiveRows,
			"a waiting request is served in order",
			"a request that has waited for the maximum time is refused",
			"a panic releases the lock",
		)},
		{name: "concurrency", rows: named(concurrencyRows,
			"a waiting request is served in order, up to the maximum of waiters",
			"a request that has waited for the maximum time is refused",
			"a panic releases the permit",
		)},
		{name: "repeats", rows: named(repeatRows,
			"one of many concurrent twins runs",
			"a client that disconnects gets its answer when it retries",
			"a deadline of the request ends the handler, and its answer is kept",
		)},
		{name: "twins", rows: twinRows},
		{name: "statuses", rows: named(statusRows, "a timeout middleware answers while the handler still runs")},
		{name: "leaving", rows: leavingRows},
	}
}

// named returns the rows with these names.
func named(rows []row, names ...string) []row {
	var some []row
	for _, name := range names {
		i := slices.IndexFunc(rows, func(r row) bool { return r.name == name })
		if i < 0 {
			panic(fmt.Sprintf("mwtest: there is no row %q", name))
		}
		some = append(some, rows[i])
	}
	return some
}

// run runs groups beside each other, except for groups that measure the process: these run first.
func (t *rig) run(groups []group) {
	for _, g := range groups {
		t.Run(g.name, func(t *rig) {
			if len(g.alone) == 0 {
				t.Parallel()
			}
			for _, r := range g.alone {
				t.Run(r.name, func(t *rig) { r.run(t, g.name) })
			}
			for _, r := range g.rows {
				t.Run(r.name, func(t *rig) {
					t.Parallel()
					r.run(t, g.name)
				})
			}
		})
	}
}
