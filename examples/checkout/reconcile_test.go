package main_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// crash is a purchase in the middle of which the shop dies.
func crash(key string) call {
	c := purchase(key)
	c.body = `{"sku":"crash","quantity":1}`
	return c
}

// A failure before the charge is not unknown: the next request tries again.
func TestFailedPaymentIsTriedAgain(t *testing.T) {
	t.Parallel()
	for _, how := range []string{"-console", "-reconcile"} {
		i := start(t, append([]string{how}, unlimited...)...)
		p := purchase("k")
		p.body = `{"sku":"broken","quantity":1}`
		for range 2 {
			i.do(p).want(t, http.StatusBadGateway, false)
		}
	}
}

func TestReconcile(t *testing.T) {
	t.Parallel()
	i := start(t, append([]string{"-reconcile"}, unlimited...)...)
	i.do(crash("k")).wantProblem(t, http.StatusBadGateway, "")
	a := i.do(crash("k")).want(t, http.StatusCreated, true)
	if again := i.do(crash("k")).want(t, http.StatusCreated, true); again.body != a.body {
		t.Errorf("%s, then %s", a.body, again.body)
	}
	look := call{method: http.MethodGet, path: a.header.Get("Location"), user: "alice"}
	if got := i.do(look).want(t, http.StatusOK, false); got.body != a.body {
		t.Errorf("the order is %s, and the answer %s", got.body, a.body)
	}
	if s := i.stats(); s.Charges != 1 {
		t.Errorf("%d charges", s.Charges)
	}
}

// killed starts two instances, and kills one in the middle of a payment, most likely before the charge.
// It returns the other one, and a function that returns how many charges the provider has.
func killed(t *testing.T, args ...string) (other *instance, charges func() int) {
	t.Helper()
	server := redistest.Start(t)
	args = append(append(args, "-timeout", "10s", "-redis", server.URL(), "-lease", "1s"), unlimited...)
	dying, other := start(t, args...), start(t, args...)
	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = dying.try(purchase("k"))
	}()
	client := server.Client()
	count := func(pattern string) int {
		keys, err := client.Keys(t.Context(), pattern).Result()
		if err != nil {
			t.Fatal(err)
		}
		return len(keys)
	}
	eventually(t, 5*time.Second, "the payment has begun", func() bool { return count("lk:g:{*}:*") == 1 }) // records, and not what counts them
	dying.kill()
	<-gone
	return other, func() int { return count("checkout:charge:*") }
}

func TestKilledPaymentIsReconciled(t *testing.T) {
	t.Parallel()
	i, charges := killed(t, "-reconcile")
	eventually(t, 5*time.Second, "the payment is answered", func() bool { return i.do(purchase("k")).status == http.StatusCreated })
	i.do(purchase("k")).want(t, http.StatusCreated, true)
	if n := charges(); n != 1 {
		t.Errorf("%d charges", n)
	}
}
