package fence_test

import (
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"

	"pgregory.net/rapid"

	"github.com/lockkeeper/lockkeeper/core/fence"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

func ExampleGate() {
	var gate fence.Gate // beside the file that it protects
	save := func(t fence.Token, text string) {
		err := gate.Do(t, func() error {
			fmt.Println("saved:", text)
			return nil
		})
		if errors.Is(err, fence.ErrStale) {
			fmt.Println("refused:", text)
		}
	}

	paused, next := fence.Token{Number: 33}, fence.Token{Number: 34} // of two leases
	save(paused, "draft")
	save(next, "final")
	save(paused, "the rest of the draft") // after its pause
	save(next, "final, with a date")
	// Output:
	// saved: draft
	// saved: final
	// refused: the rest of the draft
	// saved: final, with a date
}

func TestAdmit(t *testing.T) {
	shared := func(n int64) fence.Token { return fence.Token{Number: n, Shared: true} }
	exclusive := func(n int64) fence.Token { return fence.Token{Number: n} }
	for _, c := range []struct {
		name  string
		mark  fence.Mark
		token fence.Token
		want  fence.Mark
		err   error
	}{
		{"the first", 0, exclusive(1), 1, nil},
		{"the largest", 1, exclusive(math.MaxInt64), math.MaxInt64, nil},
		{"a newer one", 7, exclusive(9), 9, nil},
		{"the same one again", 9, exclusive(9), 9, nil},
		{"an older one", 9, exclusive(8), 9, fence.ErrStale},
		{"the oldest", math.MaxInt64, exclusive(1), math.MaxInt64, fence.ErrStale},
		{"a shared one first", 0, shared(5), 0, nil},
		{"a newer shared one", 7, shared(9), 7, nil},
		{"a downgraded one", 9, shared(9), 9, nil},
		{"an older shared one", 9, shared(8), 9, fence.ErrStale},
		{"none", 0, fence.Token{}, 0, fence.ErrInvalid},
		{"none, of an old resource", 9, fence.Token{}, 9, fence.ErrInvalid},
		{"a negative one", 0, exclusive(-1), 0, fence.ErrInvalid},
		{"a negative shared one", 9, shared(math.MinInt64), 9, fence.ErrInvalid},
	} {
		t.Run(c.name, func(t *testing.T) {
			got, err := c.mark.Admit(c.token)
			if got != c.want || !errors.Is(err, c.err) || (err == nil) != (c.err == nil) {
				t.Errorf("Mark(%d).Admit(%+v) = %d, %v; want %d, %v", c.mark, c.token, got, err, c.want, c.err)
			}
			if errors.Is(err, fence.ErrStale) && errors.Is(err, fence.ErrInvalid) {
				t.Errorf("%v matches two errors", err)
			}
		})
	}
}

// The rule without a mark: a token passes unless a larger exclusive one has passed before.
func TestAdmitIsTheRule(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			mark   fence.Mark
			passed []int64 // exclusive ones
		)
		for _, token := range rapid.SliceOf(rapid.Custom(func(t *rapid.T) fence.Token {
			return fence.Token{Number: rapid.Int64Range(-1, 12).Draw(t, "number"), Shared: rapid.Bool().Draw(t, "shared")}
		})).Draw(t, "tokens") {
			overtaken := slices.ContainsFunc(passed, func(n int64) bool { return n > token.Number })
			next, err := mark.Admit(token)
			switch {
			case token.Number <= 0:
				if !errors.Is(err, fence.ErrInvalid) {
					t.Fatalf("%+v: %v", token, err)
				}
			case overtaken:
				if !errors.Is(err, fence.ErrStale) {
					t.Fatalf("%+v after %v: %v", token, passed, err)
				}
			case err != nil:
				t.Fatalf("%+v after %v: %v", token, passed, err)
			case !token.Shared:
				passed = append(passed, token.Number)
			}
			if want := slices.Max(append(slices.Clone(passed), 0)); int64(next) != want {
				t.Fatalf("the mark is %d after %v", next, passed)
			}
			mark = next
		}
	})
}

func TestGateUnderConcurrency(t *testing.T) {
	var (
		gate   fence.Gate
		passed []int64 // guarded by gate
		wg     sync.WaitGroup
		most   int64
	)
	for range 100 {
		n := rand.Int64N(1000) + 1
		most = max(most, n)
		wg.Go(func() {
			err := gate.Do(fence.Token{Number: n}, func() error {
				passed = append(passed, n)
				return nil
			})
			if err != nil && !errors.Is(err, fence.ErrStale) {
				t.Error(err)
			}
		})
		wg.Go(func() {
			if err := gate.Check(fence.Token{Number: 2000, Shared: true}); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	if !slices.IsSorted(passed) {
		t.Errorf("an older token passed after a newer one: %v", passed)
	}
	if got := gate.Mark(); int64(got) != most || passed[len(passed)-1] != most {
		t.Errorf("the mark is %d after %v; want %d", got, passed, most)
	}
}

func TestGateAfterFailures(t *testing.T) {
	var gate fence.Gate
	failed := errors.New("disk full")
	if err := gate.Do(fence.Token{Number: 5}, func() error { return failed }); err != failed {
		t.Errorf("Do = %v; want the write's error", err)
	}
	func() {
		defer func() { _ = recover() }()
		_ = gate.Do(fence.Token{Number: 6}, func() error { panic("write") })
	}()
	for _, err := range []error{
		gate.Check(fence.Token{Number: 5}),
		gate.Do(fence.Token{Number: 5}, func() error { t.Error("a refused write ran"); return nil }),
	} {
		if !errors.Is(err, fence.ErrStale) {
			t.Errorf("after 6, token 5: %v", err)
		}
	}
	if err := gate.Check(fence.Token{Number: 6}); err != nil {
		t.Errorf("after 6, token 6: %v", err)
	}
	if err := gate.Do(fence.Token{}, nil); !errors.Is(err, fence.ErrInvalid) {
		t.Errorf("no token: %v", err)
	}
}
