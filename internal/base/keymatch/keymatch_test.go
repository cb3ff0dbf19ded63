package keymatch_test

import (
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/lockkeeper/lockkeeper/internal/base/keymatch"
)

var errOdd = errors.New("odd")

// even is a compile function that refuses odd numbers.
func even(n int) (int, error) {
	if n%2 != 0 {
		return 0, errOdd
	}
	return n, nil
}

func TestTheMostSpecificPatternCounts(t *testing.T) {
	table, err := keymatch.New(map[string]int{
		"team-7": 2, "team-*": 4, "team-7*": 6, "t*": 8, "a*b": 10, "**": 12, "ü*": 14, strings.Repeat("k", 1023) + "*": 16, "ends*": 18,
	}, even)
	if err != nil {
		t.Fatal(err)
	}
	for key, want := range map[string]int{
		"team-7": 2, "team-70": 6, "team-8": 4, "team-": 4, "team": 8, "t": 8, "a*b": 10, "axb": 0, "a": 0, "": 0,
		"*": 12, "*x": 12, "über": 14, "\xc3": 0, strings.Repeat("k", 1024): 16, strings.Repeat("k", 1023): 16,
		strings.Repeat("k", 1022): 0, "ends": 18, "ends*": 18, "end": 0, "TEAM-7": 0,
	} {
		if v, ok := table.Get(key); v != want || ok != (want > 0) {
			t.Errorf("%.20q: %d, %v", key, v, ok)
		}
	}
}

func TestAnEmptyTableHasNothing(t *testing.T) {
	empty, err := keymatch.New[int](nil, even)
	if err != nil {
		t.Fatal(err)
	}
	for _, table := range []*keymatch.Table[int]{nil, empty} {
		if v, ok := table.Get("k"); ok || v != 0 {
			t.Errorf("%d, %v", v, ok)
		}
	}
}

func lengths(n int) map[string]int {
	by := map[string]int{"exact": 0}
	for i := range n {
		by[strings.Repeat("p", i+1)+"*"] = 0
	}
	return by
}

// A refused table says which pattern is wrong, and tells no key.
func TestRefusals(t *testing.T) {
	const secret = "alice@example.com"
	for name, c := range map[string]struct {
		by   map[string]int
		want string
	}{
		"an empty key":          {map[string]int{"": 0, "b": 0}, "pattern 1 of 2 in byte order: key is empty"},
		"a bare asterisk":       {map[string]int{"*": 0}, `pattern "*": an asterisk alone is no prefix`},
		"a long key":            {map[string]int{secret + strings.Repeat("k", 1024): 0}, "pattern 1 of 1 in byte order: key has 1041 bytes, at most 1024 are allowed"},
		"a long prefix":         {map[string]int{strings.Repeat("k", 1024) + "*": 0}, "pattern 1 of 1 in byte order: key has 1025 bytes, at most 1024 are allowed"},
		"a setting of a key":    {map[string]int{"a": 0, secret: 1}, "pattern 2 of 2 in byte order: odd"},
		"a setting of a prefix": {map[string]int{"a": 0, "b-*": 1}, `pattern "b-*": odd`},
		"17 lengths":            {lengths(17), `pattern "ppppppppppppppppp*": prefixes of more than 16 lengths`},
	} {
		_, err := keymatch.New(c.by, even)
		if err == nil || err.Error() != c.want || strings.Contains(err.Error(), secret) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := keymatch.New(lengths(16), even); err != nil {
		t.Error(err)
	}
}

// A table agrees with a search through all patterns.
func TestAgreesWithASearch(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	text := func() string {
		b := make([]byte, random.IntN(17))
		for i := range b {
			b[i] = "aaaaaab*"[random.IntN(8)]
		}
		return string(b)
	}
	for range 2000 {
		by := map[string]int{}
		for range random.IntN(20) {
			by[text()] = 2 * (1 + random.IntN(100))
		}
		delete(by, "")
		delete(by, "*")
		table, err := keymatch.New(by, even)
		if err != nil {
			t.Fatal(err)
		}
		for range 50 {
			key := text()
			want, longest := 0, -1
			for _, p := range slices.Sorted(maps.Keys(by)) {
				prefix, isPrefix := strings.CutSuffix(p, "*")
				switch {
				case !isPrefix && p == key:
					want, longest = by[p], 1<<10
				case isPrefix && strings.HasPrefix(key, prefix) && len(prefix) > longest:
					want, longest = by[p], len(prefix)
				}
			}
			if v, ok := table.Get(key); v != want || ok != (longest >= 0) {
				t.Fatalf("%q in %v: %d, %v, want %d", key, by, v, ok, want)
			}
		}
	}
}

func BenchmarkGet(b *testing.B) {
	by := map[string]int{}
	for i := range 10_000 {
		by[fmt.Sprintf("tenant-%05d", i)] = 0
	}
	for i := range keymatch.MaxLengths {
		for j := range 100 {
			by[fmt.Sprintf("%0*d-partner-%d*", i+2, j, i%2)] = 0
		}
	}
	few := map[string]int{"partner-*": 0, "internal-*": 0, "test-*": 0}
	for i := range 10_000 {
		few[fmt.Sprintf("tenant-%05d", i)] = 0
	}
	for _, c := range []struct {
		name string
		by   map[string]int
		key  string
	}{
		{"exact", by, "tenant-04711"}, {"nothing of 16 lengths", by, "someone-else-with-a-long-key-0123456789"},
		{"the shortest of 16 lengths", by, "42-partner-0-and-a-long-key-0123456789"},
		{"the longest of 16 lengths", by, "00000000000000042-partner-0-and-a-long-key-0123456789"},
		{"nothing of 3 lengths", few, "someone-else"}, {"one of 3 lengths", few, "test-12345"},
	} {
		table, err := keymatch.New(c.by, even)
		if err != nil {
			b.Fatal(err)
		}
		b.Run(c.name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				table.Get(c.key)
			}
		})
	}
}
