package main_test

import (
	"encoding/json"
	"net/http"
	"strings"
	"sync"
	"testing"
)

// both sends a request twice at once. It returns the answer of the one that ran, and that of the
// other.
func (i *instance) both(c call) (first, other answer) {
	i.t.Helper()
	var answers [2]answer
	var wg sync.WaitGroup
	for n := range answers {
		wg.Go(func() {
			var err error
			if answers[n], err = i.try(c); err != nil {
				i.t.Error(err)
			}
		})
	}
	wg.Wait()
	if answers[0].status >= http.StatusBadRequest || answers[0].replayed() {
		return answers[1], answers[0]
	}
	return answers[0], answers[1]
}

func TestTrials(t *testing.T) {
	t.Parallel()
	for name, store := range stores() {
		t.Run(name, func(t *testing.T) { testTrials(t, start(t, append(store(t), unlimited...)...)) })
	}
}

func testTrials(t *testing.T, i *instance) {
	at := func(path string, c call) call {
		c.path = path
		return c
	}
	retryAfter := func(a answer) {
		t.Helper()
		if a.header.Get("Retry-After") == "" {
			t.Errorf("%d without Retry-After: %s", a.status, a.body)
		}
	}

	first, other := i.both(at("/api/checkout/wait", purchase("wait")))
	first.want(t, http.StatusCreated, false)
	if other.want(t, http.StatusCreated, true).body != first.body {
		t.Errorf("the twin got %s, and not %s", other.body, first.body)
	}

	i.do(at("/api/checkout/once", crash("once"))).wantProblem(t, http.StatusBadGateway, "")
	for range 2 {
		a := i.do(at("/api/checkout/once", crash("once"))).wantProblem(t, http.StatusConflict, "outcome-unknown")
		if a.header.Get("Retry-After") != "" { // it would not help
			t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
		}
	}

	card := purchase("card")
	card.body = `{"sku":"giftcard","quantity":1}`
	bought := i.do(card).want(t, http.StatusCreated, false)
	again := i.do(card).wantProblem(t, http.StatusConflict, "response-not-retained")
	var p struct {
		Status int `json:"original-status"`
	}
	if err := json.Unmarshal([]byte(again.body), &p); err != nil || p.Status != http.StatusCreated {
		t.Errorf("the problem is %s", again.body)
	}
	order := call{method: http.MethodGet, path: bought.header.Get("Location"), user: "alice"}
	i.do(order).want(t, http.StatusOK, false)

	before := i.stats().Charges
	retryAfter(i.do(at("/api/checkout/down", purchase("down"))).wantProblem(t, http.StatusServiceUnavailable, "temporary-reduced-capacity"))
	if after := i.stats().Charges; before != 3 || after != before {
		t.Errorf("%d charges, and then %d", before, after)
	}

	counted, refused := i.both(stockCall(http.MethodPost, "tea/count", ""))
	counted.want(t, http.StatusOK, false)
	retryAfter(refused.wantProblem(t, http.StatusConflict, "locked"))
}

// Public reports share two permits. A request that gets none is refused at once.
func TestPublicReports(t *testing.T) {
	t.Parallel()
	i := start(t)
	strangers := rush(12)
	strangers.path = "/api/report/public/rush"
	served, shed := 0, 0
	for line := range strings.Lines(i.do(strangers).want(t, http.StatusOK, false).body) {
		var o struct {
			Status     int
			RetryAfter string `json:"retry_after"`
			Problem    string
		}
		if err := json.Unmarshal([]byte(line), &o); err != nil {
			t.Fatal(err)
		}
		switch {
		case o.Status == http.StatusOK && o.Problem == "":
			served++
		case o.Status == http.StatusServiceUnavailable && strings.HasSuffix(o.Problem, "#temporary-reduced-capacity") && o.RetryAfter != "":
			shed++
		default:
			t.Errorf("an answer is %s", line)
		}
	}
	if served != 2 || shed != 10 {
		t.Errorf("%d were served, and %d turned away", served, shed)
	}
	if p := i.places(); p.Taken != 0 || p.Served != 2 || p.TurnedAway != 10 {
		t.Errorf("the places of a customer are %+v", p)
	}
}

// A customer has places of their own.
func TestPlacesOfACustomer(t *testing.T) {
	t.Parallel()
	i := start(t)
	var wg sync.WaitGroup
	for _, user := range []string{"alice", "bob"} {
		for range 6 {
			wg.Go(func() {
				c := report()
				c.user = user
				if a, err := i.try(c); err != nil || a.status != http.StatusOK {
					t.Errorf("%s: %d, %v", user, a.status, err)
				}
			})
		}
	}
	wg.Wait()
}

// The operator sees the payments at the old provider, too.
func TestOperatorSeesTheOldProvider(t *testing.T) {
	t.Parallel()
	o := operate(start(t, append([]string{"-console"}, unlimited...)...))
	old := crash("k")
	old.path = "/api/checkout/once"
	o.do(old).wantProblem(t, http.StatusBadGateway, "")
	o.resolves(o.only("checkout-once"), "happened", "done")
	o.do(old).want(t, http.StatusCreated, true)
}
