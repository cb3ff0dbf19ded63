package rules_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/rules"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// onStores runs a test on memory and on Redis.
func onStores(t *testing.T, test func(t *testing.T, st store.Store)) {
	t.Run("memory", func(t *testing.T) {
		st := memstore.New()
		defer st.Close()
		test(t, st)
	})
	t.Run("Redis", func(t *testing.T) {
		t.Parallel()
		client := redistest.Start(t).Client()
		st, err := redisstore.New(client, redisstore.WithTimeout(10*time.Second)) // of a busy machine
		ok(t, err)
		defer st.Close()
		test(t, st)
	})
}

func TestPush(t *testing.T) {
	onStores(t, func(t *testing.T, st store.Store) {
		ctx := t.Context()
		if v := must(rules.Present(ctx, st, "shop")); v.Number != 0 || v.Document != nil {
			t.Errorf("%+v", v)
		}
		if all := must(rules.History(ctx, st, "shop")); len(all) != 0 {
			t.Errorf("%+v", all)
		}
		began := time.Now()
		first := must(rules.Push(ctx, st, "shop", []byte(limitOf(1)), 0, "ann", "a contract: \"7\" <&>"))
		second := must(rules.Push(ctx, st, "shop", []byte(limitOf(2)), first, "bob", ""))
		if second <= first || first < 1 {
			t.Errorf("%d and %d", first, second)
		}
		want := []rules.Version{{second, []byte(limitOf(2)), "bob", "", time.Time{}}, {first, []byte(limitOf(1)), "ann", "a contract: \"7\" <&>", time.Time{}}}
		same := func(got, want rules.Version) bool {
			return got.Number == want.Number && string(got.Document) == string(want.Document) && got.By == want.By && got.Why == want.Why &&
				!got.At.Before(began.Round(0)) && !got.At.After(time.Now())
		}
		if got := must(rules.History(ctx, st, "shop")); !slices.EqualFunc(got, want, same) {
			t.Errorf("%+v, want %+v", got, want)
		}
		for name, seen := range map[string]int64{"none": 0, "the first": first, "a later one": second + 1, "a negative one": -1} {
			n, err := rules.Push(ctx, st, "shop", []byte(limitOf(3)), seen, "ann", "")
			var changed *rules.ChangedError
			if !errors.Is(err, rules.ErrChanged) || !errors.As(err, &changed) || n != second || !same(changed.Present, want[0]) {
				t.Errorf("who has seen %s: %d, %v", name, n, err)
			}
		}
		if n, err := rules.Push(ctx, st, "other", []byte(limitOf(3)), first, "ann", ""); !errors.Is(err, rules.ErrChanged) || n != 0 {
			t.Errorf("who has seen what is not there: %d, %v", n, err)
		}
		for name, text := range rules.BadDocuments() {
			if n, err := rules.Push(ctx, st, "shop", []byte(text), second, "ann", ""); len(errorsIn(err)) == 0 || n != 0 {
				t.Errorf("%s: %d, %v", name, n, err)
			}
		}
		for name, c := range map[string][3]string{
			"no name": {"", "ann", ""}, "a version": {"shop@1", "ann", ""}, "a name with a line break": {"a\nb", "ann", ""}, "nobody": {"shop", "", ""},
			"two lines": {"shop", "ann", "a\nb"}, "a long reason": {"shop", "ann", strings.Repeat("x", 1025)}, "a long name": {"shop", strings.Repeat("x", 257), ""}, "not UTF-8": {"shop", "\xff", ""},
		} {
			if _, err := rules.Push(ctx, st, c[0], []byte(limitOf(3)), second, c[1], c[2]); err == nil {
				t.Errorf("%s: it is accepted", name)
			}
			if _, err := rules.Rollback(ctx, st, c[0], first, second, c[1], c[2]); err == nil {
				t.Errorf("%s: a rollback is accepted", name)
			}
		}
		third := must(rules.Rollback(ctx, st, "shop", first, second, "eve", "it was wrong"))
		if got := must(rules.Present(ctx, st, "shop")); third <= second || !same(got, rules.Version{third, []byte(limitOf(1)), "eve", "it was wrong", time.Time{}}) {
			t.Errorf("%+v", got)
		}
		if _, err := rules.Rollback(ctx, st, "shop", first, second, "eve", ""); !errors.Is(err, rules.ErrChanged) {
			t.Errorf("a rollback that has seen an old version: %v", err)
		}
		if _, err := rules.Rollback(ctx, st, "shop", third+1, third, "eve", ""); !errors.Is(err, rules.ErrNoVersion) {
			t.Errorf("a rollback to no version: %v", err)
		}
		if got := must(rules.History(ctx, st, "shop")); len(got) != 3 {
			t.Errorf("%+v", got)
		}
	})
}

// The last 20 versions are kept, of each document.
func TestHistoryIsBounded(t *testing.T) {
	onStores(t, func(t *testing.T, st store.Store) {
		ctx := t.Context()
		seen := map[string]int64{}
		for n := range 25 {
			for _, name := range []string{"shop", "shop2"} {
				seen[name] = must(rules.Push(ctx, st, name, []byte(limitOf(n+1)), seen[name], "ann", fmt.Sprint(n)))
			}
		}
		for name, version := range seen {
			all := must(rules.History(ctx, st, name))
			if len(all) != rules.MaxHistory || all[0].Number != version || all[0].Why != "24" || all[19].Why != "5" {
				t.Errorf("%s: %d versions: %+v", name, len(all), all)
			}
		}
		count := 0
		for _, err := range st.ListDocuments(ctx, "rules") {
			ok(t, err)
			count++
		}
		if count != 2*(1+rules.MaxHistory) {
			t.Errorf("%d documents", count)
		}
	})
}

// The history of Rules is that of their document, without texts; other sources have none.
func TestInspectHistory(t *testing.T) {
	ctx, s := t.Context(), newService(t)
	var inspector inspect.RulesInspector
	first := must(rules.Push(ctx, s.st, "shop", []byte(limitOf(1)), 0, "ann", "first"))
	second := must(rules.Push(ctx, s.st, "shop", []byte(limitOf(22)), first, "bob", "second"))
	r := must(rules.Open(ctx, rules.Store(s.st, "shop"), rules.For(s.api)))
	inspector = r
	all := must(inspector.InspectHistory(ctx))
	if len(all) != 2 || all[0].Number != second || all[0].By != "bob" || all[0].Why != "second" || all[0].At.IsZero() ||
		all[0].Hash != r.Applied().Hash || all[0].Bytes != len(limitOf(22)) || all[1].Number != first || all[1].Hash == all[0].Hash {
		t.Errorf("%+v", all)
	}
	ok(t, r.Close())
	ok(t, s.st.Close())
	if _, err := r.InspectHistory(ctx); !errors.Is(err, store.ErrClosed) {
		t.Errorf("a store that is closed: %v", err)
	}
	s = newService(t)
	r = must(rules.Open(ctx, document(limitOf(1)).source(), rules.For(s.api)))
	if all, err := r.InspectHistory(ctx); all != nil || err != nil {
		t.Errorf("%v, %v", all, err)
	}
	ok(t, r.Close())
}

// The largest document is pushed with the longest names.
func TestPushOfTheLargestDocument(t *testing.T) {
	onStores(t, func(t *testing.T, st store.Store) {
		text := []byte(limitOf(1) + strings.Repeat("#", rules.MaxDocument-len(limitOf(1))))
		must(rules.Push(t.Context(), st, "shop", text, 0, strings.Repeat(`"`, 256), strings.Repeat("\u2028", 341)))
		if got := must(rules.Present(t.Context(), st, "shop")); string(got.Document) != string(text) {
			t.Errorf("%d bytes", len(got.Document))
		}
		if _, err := rules.Push(t.Context(), st, "shop", append(text, '#'), 0, "ann", ""); len(errorsIn(err)) != 1 {
			t.Error(err)
		}
	})
}

// Of eight pushes at a time one wins each version, also of the same text.
func TestPushesAtATime(t *testing.T) {
	onStores(t, func(t *testing.T, st store.Store) {
		const pushers, rounds = 8, 25
		ctx := t.Context()
		var mu sync.Mutex
		wins := map[int64]string{}
		var all sync.WaitGroup
		for i := range pushers {
			all.Go(func() {
				for range rounds {
					seen, err := rules.Present(ctx, st, "shop")
					if err != nil {
						t.Error(err)
						return
					}
					n, err := rules.Push(ctx, st, "shop", []byte(limitOf(1)), seen.Number, fmt.Sprint(i), "")
					var changed *rules.ChangedError
					switch {
					case err == nil:
						mu.Lock()
						if wins[n] != "" {
							t.Errorf("version %d is of %s and of %d", n, wins[n], i)
						}
						wins[n] = fmt.Sprint(i)
						mu.Unlock()
					case !errors.As(err, &changed):
						t.Error(err)
					case changed.Present.Number != n || n <= seen.Number:
						t.Errorf("%d is there instead of %d: %+v", n, seen.Number, changed)
					}
				}
			})
		}
		all.Wait()
		if len(wins) < rounds {
			t.Errorf("%d versions", len(wins))
		}
		history := must(rules.History(ctx, st, "shop"))
		if len(history) != rules.MaxHistory {
			t.Errorf("%d versions are kept", len(history))
		}
		for _, v := range history {
			if wins[v.Number] != v.By {
				t.Errorf("version %d is by %q, and %q has won it", v.Number, v.By, wins[v.Number])
			}
		}
	})
}

// No version is missing in the history, wherever a push is interrupted.
func TestPushIsInterrupted(t *testing.T) {
	for _, how := range []storetest.Fault{storetest.Down, storetest.LostReply} {
		for calls := range 3 {
			st := memstore.New()
			faulty := storetest.NewFaulty(st)
			ctx := t.Context()
			first := must(rules.Push(ctx, faulty, "shop", []byte(limitOf(1)), 0, "ann", ""))
			puts := 0
			interrupt := func(err error) func(storetest.Op) error {
				return func(op storetest.Op) error {
					if op != storetest.PutDocument {
						return nil
					}
					if puts++; puts <= calls {
						return nil
					}
					return err
				}
			}
			if how == storetest.Down {
				faulty.Hook(interrupt(store.ErrUnavailable), nil)
			} else {
				faulty.Hook(nil, interrupt(store.ErrUnconfirmed))
			}
			second, err := rules.Push(ctx, faulty, "shop", []byte(limitOf(2)), first, "bob", "")
			faulty.Hook(nil, nil)
			present := must(rules.Present(ctx, st, "shop"))
			switch {
			case err == nil && (present.Number != second || present.By != "bob"):
				t.Errorf("%v after %d puts: %d, and the store has %+v", how, calls, second, present)
			case err != nil && !errors.Is(err, store.ErrUnconfirmed) && present.Number != first:
				t.Errorf("%v after %d puts: %v, and the store has %+v", how, calls, err, present)
			}
			want := []string{present.By}
			if present.By == "bob" {
				want = append(want, "ann")
			}
			by := func() (all []string) {
				for _, v := range must(rules.History(ctx, st, "shop")) {
					all = append(all, v.By)
				}
				return all
			}
			if got := by(); !slices.Equal(got, want) {
				t.Errorf("%v after %d puts: %v, want %v", how, calls, got, want)
			}
			must(rules.Push(ctx, st, "shop", []byte(limitOf(3)), present.Number, "eve", ""))
			if got := by(); !slices.Equal(got, append([]string{"eve"}, want...)) {
				t.Errorf("%v after %d puts, and another push: %v", how, calls, got)
			}
			_ = st.Close()
		}
	}
}

func TestPushOnAStoreThatIsDown(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	faulty := storetest.NewFaulty(st)
	faulty.Break(storetest.Any, storetest.Down)
	ctx := context.Background()
	_, push := rules.Push(ctx, faulty, "shop", []byte("{}"), 0, "ann", "")
	_, back := rules.Rollback(ctx, faulty, "shop", 1, 1, "ann", "")
	_, history := rules.History(ctx, faulty, "shop")
	_, present := rules.Present(ctx, faulty, "shop")
	for i, err := range []error{push, back, history, present} {
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%d: %v", i, err)
		}
	}
	if _, err := rules.Push(ctx, nil, "shop", []byte("{}"), 0, "ann", ""); err == nil {
		t.Error("a nil store is accepted")
	}
}
