package observability_test

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"time"

	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/rules"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// driveRules has documents with every outcome.
func driveRules(w *world) {
	memory := memstore.New()
	w.t.Cleanup(func() { _ = memory.Close() })
	l := must(tokenbucket.New(memory, "api", tokenbucket.PerHour(1)))
	const good = "version: 1\nlimits: { api: { overrides: [{ keys: [" + secretKey + "], limit: 2/1h }] } }"
	var text atomic.Value
	text.Store(good)
	r := must(rules.Open(w.t.Context(), rules.Func(func(context.Context) ([]byte, error) {
		if s := text.Load().(string); s != "" {
			return []byte(s), nil
		}
		return nil, errors.New("no document with " + secretKey)
	}), rules.For(l), rules.Every(10*time.Millisecond), rules.WithLogger(w.logger()), rules.WithMeterProvider(w.meters)))
	w.t.Cleanup(func() { _ = r.Close() })
	load := func(s string, want rules.State) {
		text.Store(s)
		testpace.Eventually(w.t, 10*time.Second, want.String(), func() bool { return r.Applied().State == want })
	}
	load(good+"\n"+secretKey+": 1", rules.Stale)
	load(good, rules.Current)
	load("", rules.Stale)
	load(good, rules.Current)
	_ = l.Close()
	load("version: 2", rules.Stale)
}

// The state of rules is a gauge, which ends with them.
func TestStateOfRules(t *testing.T) {
	w := newWorld(t)
	state := func() (found []int64) {
		for _, scope := range w.collect().ScopeMetrics {
			for _, m := range scope.Metrics {
				if m.Name != "lockkeeper.rules.state" {
					continue
				}
				for _, p := range m.Data.(metricdata.Gauge[int64]).DataPoints {
					found = append(found, p.Value)
				}
			}
		}
		return found
	}
	var text atomic.Value
	text.Store("version: 1")
	blocked, release := make(chan struct{}), make(chan struct{})
	first := true
	source := rules.Func(func(context.Context) ([]byte, error) {
		if first {
			first = false
			close(blocked)
			<-release
		}
		return []byte(text.Load().(string)), nil
	})
	opened := make(chan *rules.Rules)
	go func() {
		opened <- must(rules.Open(w.t.Context(), source, rules.WithLogger(w.logger()), rules.WithMeterProvider(w.meters)))
	}()
	want := func(what string, states ...int64) {
		t.Helper()
		if got := state(); len(got) != len(states) || len(got) == 1 && got[0] != states[0] {
			t.Errorf("%s, the state is %v, want %v", what, got, states)
		}
	}
	<-blocked
	want("before the first document", 2)
	close(release)
	r := <-opened
	want("with it", 0)
	text.Store("bad: 1")
	_ = r.Reload(t.Context())
	want("with a bad one", 1)
	text.Store("version: 1")
	ok(t, r.Reload(t.Context()))
	want("with the same good one", 0)
	ok(t, r.Close())
	want("at the end")
	text.Store("bad: 1")
	if _, err := rules.Open(w.t.Context(), source, rules.WithMeterProvider(w.meters)); err == nil {
		t.Error("a bad document is accepted")
	}
	want("after a failed Open")
}
