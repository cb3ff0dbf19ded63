package guard_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
)

func sealKey(id string) guard.SealKey {
	return guard.SealKey{ID: id, Key: bytes.Repeat([]byte(id), 32)[:32]}
}

func TestSealKeysThatAreRefused(t *testing.T) {
	good := sealKey("1")
	for name, keys := range map[string][]guard.SealKey{
		"no key":         {},
		"zero value":     {{}},
		"no ID":          {{Key: good.Key}},
		"a long ID":      {{ID: strings.Repeat("i", 65), Key: good.Key}},
		"no bytes":       {{ID: "2"}},
		"31 bytes":       {good, {ID: "2", Key: good.Key[:31]}},
		"33 bytes":       {{ID: "2", Key: append(bytes.Clone(good.Key), 1)}},
		"same ID":        {good, {ID: "1", Key: good.Key[:16]}},
		"unsealed twice": {guard.Unsealed(), good, guard.Unsealed()},
	} {
		g, err := guard.New(memstore.New(), "g", guard.WithSeal(keys...))
		if g != nil || err == nil || !strings.HasPrefix(err.Error(), "guard: New: WithSeal: ") || strings.Contains(err.Error(), string(good.Key[:16])) {
			t.Errorf("%s: %v, %v", name, g, err)
		}
	}
	for _, n := range []int{16, 24, 32} {
		if _, err := guard.New(memstore.New(), "g", guard.WithSeal(guard.SealKey{ID: strings.Repeat("i", 64), Key: good.Key[:n]})); err != nil {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
}

// A record that no key opens is not retained: the operation does not run again, and the record is
// logged as damaged.
func TestRecordsThatNoKeyOpens(t *testing.T) {
	old, recent := sealKey("old"), sealKey("recent")
	for name, c := range map[string]struct {
		writer, reader []guard.Option
		why            string // empty if it opens
	}{
		"same key":           {[]guard.Option{guard.WithSeal(old)}, []guard.Option{guard.WithSeal(old)}, ""},
		"the older key":      {[]guard.Option{guard.WithSeal(old)}, []guard.Option{guard.WithSeal(recent, old)}, ""},
		"a removed key":      {[]guard.Option{guard.WithSeal(old)}, []guard.Option{guard.WithSeal(recent)}, `"old\", which the guard does not have`},
		"no keys":            {[]guard.Option{guard.WithSeal(old)}, nil, `"old\", which the guard does not have`},
		"not sealed":         {nil, []guard.Option{guard.WithSeal(old)}, "is not sealed"},
		"not sealed, by new": {nil, []guard.Option{guard.WithSeal(old, guard.Unsealed())}, ""},
		"a smaller maximum":  {nil, []guard.Option{guard.WithMaxResult(5)}, "more than 5 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			st := memstore.New()
			defer st.Close()
			var log bytes.Buffer
			writer := newGuard(t, st, c.writer...)
			reader := newGuard(t, st, append(c.reader, guard.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))...)
			a, _, err := writer.Begin(t.Context(), op)
			if err != nil {
				t.Fatal(err)
			}
			if err := a.Complete(t.Context(), guard.Result{Status: 201, Data: []byte("charged")}); err != nil {
				t.Fatal(err)
			}
			log.Reset() // that the settings differ
			for range 3 {
				a, result, err := reader.Begin(t.Context(), op)
				var notRetained *guard.NotRetainedError
				switch {
				case a != nil:
					t.Fatal("it runs again")
				case c.why == "" && (err != nil || string(result.Data) != "charged" || result.Status != 201):
					t.Fatalf("%+v, %v", result, err)
				case c.why != "" && (result != nil || !errors.As(err, &notRetained) || notRetained.Status != 201):
					t.Fatalf("%+v, %v", result, err)
				}
			}
			lines := strings.Count(log.String(), "a record is damaged")
			if want := min(len(c.why), 1); lines != want || !strings.Contains(log.String(), c.why) {
				t.Errorf("%d lines: %s", lines, &log)
			}
		})
	}
}

// A step that no key opens is not run again.
func TestStepsThatNoKeyOpens(t *testing.T) {
	inBubble(t, func(f fixture) {
		charges := 0
		charge := func(g *guard.Guard) error {
			a, _, err := g.Begin(f.Context(), op)
			if err != nil {
				return err
			}
			receipt, err := guard.Step(f.Context(), a, "charge", func(context.Context) (string, error) {
				charges++
				return "receipt", nil
			})
			if err == nil && receipt != "receipt" {
				f.Errorf("the receipt is %q", receipt)
			}
			f.want(err, nil)
			return a.Abandon(f.Context())
		}
		f.want(charge(newGuard(f.T, f.store, guard.WithSeal(sealKey("1")))), nil)
		var log bytes.Buffer
		for range 2 {
			err := charge(newGuard(f.T, f.store, guard.WithSeal(sealKey("2")), guard.WithLogger(slog.New(slog.NewTextHandler(&log, nil)))))
			var unknown *guard.UnknownError
			if !errors.As(err, &unknown) || unknown.ID == "" || unknown.Err == nil {
				f.Errorf("without the key: %v", err)
			}
		}
		if !strings.Contains(log.String(), "a record is damaged") {
			f.Errorf("it is not logged: %s", &log)
		}
		f.want(charge(newGuard(f.T, f.store, guard.WithSeal(sealKey("2"), sealKey("1")))), nil)
		if charges != 1 {
			f.Errorf("%d charges", charges)
		}
	})
}

// A result that an operator has given is sealed too.
func TestAResolutionIsSealed(t *testing.T) {
	inBubble(t, func(f fixture) {
		f.want(f.attempt().CompleteUnknown(f.Context()), nil)
		record, err := f.guard.Inspect(f.Context(), op)
		f.want(err, nil)
		f.want(f.guard.Resolve(f.Context(), record, guard.Happened(guard.Result{Status: 12345, Data: []byte("charged")}), "on-call", "receipt"), nil)
		if r := f.replay(); string(r.Data) != "charged" || r.Status != 9999 {
			f.Errorf("%+v", r)
		}
		if _, _, err := newGuard(f.T, f.store).Begin(f.Context(), op); !errors.Is(err, guard.ErrNotRetained) {
			f.Errorf("without the key: %v", err)
		}
	}, guard.WithSeal(sealKey("1")))
}

// Guards of one name need the same keys, and no key is logged.
func TestGuardsWithOtherKeysAreLogged(t *testing.T) {
	first := sealKey("1")
	for name, c := range map[string]struct {
		keys   []guard.SealKey
		logged bool
	}{
		"the same":      {[]guard.SealKey{first}, false},
		"other bytes":   {[]guard.SealKey{{ID: first.ID, Key: bytes.Repeat([]byte("2"), 32)}}, true},
		"another order": {[]guard.SealKey{guard.Unsealed(), first}, true},
	} {
		st := memstore.New()
		var log bytes.Buffer
		newGuard(t, st, guard.WithSeal(first))
		newGuard(t, st, guard.WithSeal(c.keys...), guard.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		if got := strings.Contains(log.String(), "different settings"); got != c.logged || strings.Contains(log.String(), "1111") ||
			strings.Contains(log.String(), "2222") {
			t.Errorf("%s: %s", name, &log)
		}
		if err := st.Close(); err != nil {
			t.Error(err)
		}
	}
}
