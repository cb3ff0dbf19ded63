package httpmw

import (
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/dunglas/httpsfv"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// states returns a decision over n limits, different for each n.
func states(n int) []tokenbucket.LimitState {
	list := make([]tokenbucket.LimitState, n%3+1)
	for i := range list {
		list[i] = tokenbucket.LimitState{
			Name: fmt.Sprintf(`a "b\%d`, i), Capacity: int64(n + 2), Window: time.Duration(n*i+1) * 400 * time.Millisecond,
			Remaining: int64(n), Reset: time.Duration(n) * time.Second,
		}
	}
	list[0].RetryAfter = time.Duration(n) * 300 * time.Millisecond
	return list
}

// wantFields parses the fields with a structured-field library.
func wantFields(t *testing.T, h http.Header, want []tokenbucket.LimitState) {
	t.Helper()
	policies, err := httpsfv.UnmarshalList(h["Ratelimit-Policy"])
	if err != nil || len(policies) != len(want) {
		t.Errorf("%q: %v", h["Ratelimit-Policy"], err)
		return
	}
	limits, err := httpsfv.UnmarshalList(h["Ratelimit"])
	if err != nil || len(limits) != len(want) {
		t.Errorf("%q: %v", h["Ratelimit"], err)
		return
	}
	for i, s := range want {
		reset := s.Reset
		if s.RetryAfter > 0 {
			reset = min(reset, s.RetryAfter)
		}
		checkItem(t, policies[i], s.Name, map[string]int64{"q": s.Capacity, "w": max(roundUp(s.Window), 1)})
		checkItem(t, limits[i], s.Name, map[string]int64{"r": s.Remaining, "t": roundUp(reset)})
	}
}

func checkItem(t *testing.T, member httpsfv.Member, name string, params map[string]int64) {
	t.Helper()
	item, ok := member.(httpsfv.Item)
	if !ok || item.Value != name || len(item.Params.Names()) != len(params) {
		t.Errorf("%v is not %q with %v", member, name, params)
		return
	}
	for key, want := range params {
		if got, _ := item.Params.Get(key); got != want {
			t.Errorf("%q has %s=%v, want %d", name, key, got, want)
		}
	}
}

// More plans than an encoder keeps, with concurrent requests of all of them.
func TestEveryPlanHasItsOwnFields(t *testing.T) {
	e := new(draft11)
	var wg sync.WaitGroup
	for range 4 {
		wg.Go(func() {
			for range 3 {
				for n := range 100 {
					h := http.Header{}
					e.encode(h, states(n), new([2]string))
					wantFields(t, h, states(n))
				}
			}
		})
	}
	wg.Wait()
}

func TestFieldsAreAddedToThoseOfOthers(t *testing.T) {
	e, one := new(draft11), http.Header{}
	e.encode(one, states(0), new([2]string))
	both := http.Header{"Ratelimit": {`"other";r=1;t=1`}}
	e.encode(both, states(0), new([2]string))
	e.encode(both, states(3), new([2]string))
	if got := len(both["Ratelimit"]); got != 3 {
		t.Errorf("%d values of RateLimit", got)
	}
	if got := len(both["Ratelimit-Policy"]); got != 2 {
		t.Errorf("%d values of RateLimit-Policy", got)
	}
	again := http.Header{}
	e.encode(again, states(0), new([2]string))
	if got, want := fmt.Sprint(again), fmt.Sprint(one); got != want { // what one response appends, no other has
		t.Errorf("%s, want %s", got, want)
	}
}

func TestInvalidNameIsOmitted(t *testing.T) {
	h := http.Header{}
	new(draft11).encode(h, []tokenbucket.LimitState{{Name: strings.Repeat("ü", 3)}}, new([2]string))
	if len(h) > 0 {
		t.Errorf("%v", h)
	}
}
