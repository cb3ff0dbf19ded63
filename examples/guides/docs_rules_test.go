package guides_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/rules"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
)

// follow has the mechanisms of a service follow a document, until the returned function is called.
func follow(ctx context.Context, path string, api, signup *tokenbucket.Limiter, reports *semaphore.Semaphore) (end func() error, err error) {
	r, err := rules.Open(ctx, rules.File(path),
		rules.For(api, signup, reports),
		rules.Optional("exports"), // which the next release has
		rules.OnChange(func(a rules.Applied) { slog.Info("rules", "version", a.Version, "state", a.State) }),
	)
	if err != nil {
		return nil, err // each error of the document, with its line and column
	}
	return r.Close, nil
}

// raise pushes a document in the place of the present one, unless another operator was faster.
func raise(ctx context.Context, st store.Documents, edit func([]byte) []byte) error {
	present, err := rules.Present(ctx, st, "shop")
	if err != nil {
		return err
	}
	_, err = rules.Push(ctx, st, "shop", edit(present.Document), present.Number, "ann", "contract 2026-11")
	var changed *rules.ChangedError
	if errors.As(err, &changed) {
		return fmt.Errorf("look again: %s has pushed version %d", changed.Present.By, changed.Present.Number)
	}
	return err
}

// The document of the page is one, and names what the page says.
func TestDocumentOfThePage(t *testing.T) {
	page := string(must(os.ReadFile("../../docs/rules.md")))
	_, text, _ := strings.Cut(page, "```yaml\n")
	text, _, found := strings.Cut(text, "```")
	known := []string{"limits.api", "limits.signup", "limits.chat", "semaphores.reports", "semaphores.gate"}
	if err := rules.Check([]byte(text), known...); err != nil || !found {
		t.Error(err)
	}
	for i := range known {
		if rules.Check([]byte(text), append([]string{"x"}, slices.Delete(slices.Clone(known), i, i+1)...)...) == nil {
			t.Errorf("the page does not have %s", known[i])
		}
	}
}

func TestRulesOfAFile(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	api := must(tokenbucket.New(st, "api", tokenbucket.PerMinute(100)))
	signup := must(tokenbucket.New(st, "signup", tokenbucket.PerHour(5)))
	reports := must(semaphore.New(st, "reports", 4))
	path := filepath.Join(t.TempDir(), "limits.yaml")
	write := func(text string) {
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write("limits: { api: { limit: 7/1m }, exports: { limit: 5/1m } }")
	end, err := follow(t.Context(), path, api, signup, reports)
	if err != nil || api.Rule().Plan != tokenbucket.PerMinute(7) {
		t.Fatalf("%v, %v", err, api.Rule().Plan)
	}
	if err := end(); err != nil {
		t.Error(err)
	}
	write("limits: { api: { limit: seven } }")
	if _, err := follow(t.Context(), path, api, signup, reports); !errors.As(err, new(*rules.Errors)) {
		t.Error(err)
	}
}

func TestRulesOfAStore(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	ctx := t.Context()
	for n := range 3 {
		if err := raise(ctx, st, func([]byte) []byte { return []byte(fmt.Sprint("version: ", n)) }); err != nil {
			t.Fatal(err)
		}
	}
	err := raise(ctx, st, func([]byte) []byte {
		must(rules.Push(ctx, st, "shop", []byte("{}"), must(rules.Present(ctx, st, "shop")).Number, "bob", ""))
		return []byte("version: 9")
	})
	if err == nil || string(must(rules.Present(ctx, st, "shop")).Document) != "{}" {
		t.Error(err)
	}
	s := must(rules.Open(ctx, rules.Store(st, "shop"), rules.LastGood(), rules.Every(time.Second)))
	if err := s.Close(); err != nil {
		t.Error(err)
	}
}
