package main_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/internal/testing/postgrestest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// placement is a call that places an order without a payment.
func placement(key string, quantity int) call {
	return call{
		method: http.MethodPost, path: "/api/orders", user: "alice", keys: []string{key},
		body: fmt.Sprintf(`{"sku":"tea","quantity":%d}`, quantity),
	}
}

// paying is a call that pays it.
func paying(key, id string) call {
	return call{method: http.MethodPost, path: "/api/orders/" + id + "/pay", user: "alice", keys: []string{key}}
}

// placed is an order as the shop shows it.
type placed struct {
	ID       string `json:"order_id"`
	ChargeID string `json:"charge_id"`
	Status   string
	Quantity int
	Left     int `json:"left_seconds"`
}

func (a answer) order(t testing.TB) (o placed) {
	t.Helper()
	if err := json.Unmarshal([]byte(a.body), &o); err != nil || o.ID == "" {
		t.Fatalf("%v: %s", err, a.body)
	}
	return o
}

// orders are those that the instance lists for a user.
func (i *instance) orders(user string) (all []placed) {
	i.t.Helper()
	a := i.do(call{method: http.MethodGet, path: "/api/orders", user: user}).want(i.t, http.StatusOK, false)
	if err := json.Unmarshal([]byte(a.body), &all); err != nil {
		i.t.Fatalf("%v: %s", err, a.body)
	}
	return all
}

func (i *instance) stockUp(n int) {
	i.t.Helper()
	i.do(stockCall(http.MethodPost, "tea", fmt.Sprintf(`{"quantity":%d}`, n))).want(i.t, http.StatusOK, false)
}

func (i *instance) wantStock(n int) {
	i.t.Helper()
	if left := i.stock("tea"); left != n {
		i.t.Errorf("%d left, want %d", left, n)
	}
}

// says checks that a problem has a text in it.
func (a answer) says(t testing.TB, status int, text string) {
	t.Helper()
	if a.wantProblem(t, status, ""); !strings.Contains(a.body, text) {
		t.Errorf("%s has no %q", a.body, text)
	}
}

func TestOrderIsPaidLater(t *testing.T) {
	t.Parallel()
	for name, store := range stores() {
		t.Run(name, func(t *testing.T) { testOrderIsPaidLater(t, start(t, append(store(t), unlimited...)...)) })
	}
}

func testOrderIsPaidLater(t *testing.T, i *instance) {
	i.stockUp(10)
	first := i.do(placement("k", 3)).want(t, http.StatusCreated, false)
	o := first.order(t)
	if o.Status != "unpaid" || o.Left != 15*60 || o.Quantity != 3 || o.ChargeID != "" || first.header.Get("Location") != "/api/orders/"+o.ID {
		t.Errorf("%v %s", first.header, first.body)
	}
	again := i.do(placement("k", 3)).want(t, http.StatusCreated, true)
	if again.body != first.body || again.header.Get("Location") != first.header.Get("Location") {
		t.Errorf("the repeat was answered %v %s", again.header, again.body)
	}
	i.do(placement("k", 2)).wantProblem(t, http.StatusUnprocessableEntity, "key-reused")
	i.wantStock(7)

	look := call{method: http.MethodGet, path: first.header.Get("Location"), user: "alice"}
	seen := i.do(look).want(t, http.StatusOK, false).order(t)
	if seen.Left < 10*60 || seen.Left > 15*60 || seen.Status != "unpaid" || seen.Quantity != 3 {
		t.Errorf("the order is %+v", seen)
	}
	if all := i.orders("alice"); len(all) != 1 || all[0].ID != o.ID || all[0].Left < 10*60 || all[0].Left > 15*60 {
		t.Errorf("alice's orders are %+v", all)
	}
	if all := i.orders("bob"); len(all) != 0 {
		t.Errorf("bob's orders are %+v", all)
	}

	// What others, and bad requests, do to it.
	i.do(placement("more", 8)).says(t, http.StatusConflict, "Sold out")
	gift := placement("gift", 1)
	gift.body = `{"sku":"giftcard","quantity":1}`
	i.do(gift).says(t, http.StatusUnprocessableEntity, "paid at once")
	for _, c := range []struct {
		call
		status int
	}{
		{paying("p1", "ord_unknown"), http.StatusNotFound},
		{paying("p2", "%00%ff"), http.StatusNotFound},
		{call{method: http.MethodGet, path: "/api/orders/%00%ff", user: "alice"}, http.StatusNotFound},
		{call{method: http.MethodPost, path: "/api/orders/" + o.ID + "/pay", user: "bob", keys: []string{"p3"}}, http.StatusNotFound},
		{call{method: http.MethodGet, path: "/api/orders/" + o.ID, user: "bob"}, http.StatusNotFound},
		{call{method: http.MethodPost, path: "/api/orders/" + o.ID + "/pay", user: "alice"}, http.StatusBadRequest},
		{call{method: http.MethodPost, path: "/api/orders/" + o.ID + "/pay", keys: []string{"p4"}}, http.StatusUnauthorized},
		{call{method: http.MethodGet, path: "/api/orders"}, http.StatusUnauthorized},
		{call{method: http.MethodPost, path: "/api/orders", user: "alice", body: `{"sku":"tea","quantity":1}`}, http.StatusBadRequest},
		{call{method: http.MethodPost, path: "/api/orders", user: "alice", body: `{"sku":"tea"}`, keys: []string{"p5"}}, http.StatusBadRequest},
		{call{method: http.MethodPost, path: "/api/orders", user: "alice", body: `{"sku":"unicorn","quantity":1}`, keys: []string{"p6"}}, http.StatusNotFound},
		{paying("k", o.ID), http.StatusUnprocessableEntity}, // the key of the placing
	} {
		i.do(c.call).wantProblem(t, c.status, "")
	}
	i.wantStock(7)
	if all := i.orders("alice"); len(all) != 1 || all[0].Status != "unpaid" {
		t.Errorf("alice's orders are %+v", all)
	}

	paid := i.do(paying("pay", o.ID)).want(t, http.StatusOK, false)
	if p := paid.order(t); p.ID != o.ID || p.Status != "paid" || p.ChargeID == "" || p.Left != 0 {
		t.Errorf("the payment was answered %s", paid.body)
	}
	if again := i.do(paying("pay", o.ID)).want(t, http.StatusOK, true); again.body != paid.body {
		t.Errorf("and its repeat %s", again.body)
	}
	i.do(paying("twice", o.ID)).says(t, http.StatusConflict, "paid already")
	if all := i.orders("alice"); len(all) != 1 || all[0] != paid.order(t) {
		t.Errorf("alice's orders are %+v", all)
	}
	if s := i.stats(); s.Charges != 1 {
		t.Errorf("%d charges", s.Charges)
	}
	i.wantStock(7)
	// The payment has ended the timer.
	if n := i.scrape(`lockkeeper_delay_cancel`, `="prevented"`); n == 0 {
		t.Error("no timer was cancelled")
	}
}

// A payment that is declined, or whose provider fails, leaves the order unpaid.
func TestOrderWhosePaymentFails(t *testing.T) {
	t.Parallel()
	i := start(t, unlimited...)
	for sku, status := range map[string]int{"declined": http.StatusPaymentRequired, "broken": http.StatusBadGateway} {
		i.do(stockCall(http.MethodPost, sku, `{"quantity":1}`)).want(t, http.StatusOK, false)
		c := placement(sku, 1)
		c.body = fmt.Sprintf(`{"sku":%q,"quantity":1}`, sku)
		o := i.do(c).want(t, http.StatusCreated, false).order(t)
		i.do(paying("pay-"+sku, o.ID)).wantProblem(t, status, "")
	}
	for _, o := range i.orders("alice") {
		if o.Status != "unpaid" || o.Left == 0 {
			t.Errorf("%+v", o)
		}
	}
	if s := i.stats(); s.Charges != 0 {
		t.Errorf("%d charges", s.Charges)
	}
}

// An order that is not paid in time is cancelled, also by an instance that has not placed it.
func TestOrderIsNotPaid(t *testing.T) {
	t.Parallel()
	for name, store := range stores() {
		t.Run(name, func(t *testing.T) {
			args := append(store(t), append(unlimited, "-unpaid", "1s")...)
			i := start(t, args...)
			i.stockUp(10)
			o := i.do(placement("k", 3)).want(t, http.StatusCreated, false).order(t)
			if o.Left != 1 {
				t.Errorf("%+v", o)
			}
			if i.store != "memory" {
				i.kill()
				i = start(t, args...)
			}
			eventually(t, 10*time.Second, "the order is cancelled", func() bool { return i.orders("alice")[0].Status == "cancelled" })
			i.wantStock(10)
			i.do(paying("late", o.ID)).says(t, http.StatusConflict, "not paid in time")
			if all := i.orders("alice"); len(all) != 1 || all[0].ChargeID != "" || all[0].Left != 0 {
				t.Errorf("%+v", all)
			}
			if s := i.stats(); s.Charges != 0 {
				t.Errorf("%d charges", s.Charges)
			}
			i.wantStock(10)
			i.do(placement("k", 3)).want(t, http.StatusCreated, true) // what was answered
			i.wantStock(10)
		})
	}
}

// ledgers open the provider's ledger of each shared store, and return its entries by name.
var ledgers = map[string]func(t *testing.T) (args []string, entries func() map[string]string){
	"redis": func(t *testing.T) ([]string, func() map[string]string) {
		server := redistest.Start(t)
		client := server.Client()
		return []string{"-redis", server.URL()}, func() map[string]string { return redisLedger(t, client) }
	},
	"postgres": func(t *testing.T) ([]string, func() map[string]string) {
		dsn := postgrestest.Start(t).DSN()
		var db database
		return []string{"-postgres", dsn}, func() map[string]string {
			if db.Conn == nil {
				db = connect(t, dsn)
			}
			entries := map[string]string{}
			rows, err := db.Query(t.Context(), "SELECT name, text FROM checkout.charges")
			if err != nil {
				t.Fatal(err)
			}
			for rows.Next() {
				var name, text string
				if err := rows.Scan(&name, &text); err != nil {
					t.Fatal(err)
				}
				entries[name] = text
			}
			return entries
		}
	},
	"memory": func(*testing.T) ([]string, func() map[string]string) { return nil, nil },
}

func redisLedger(t *testing.T, client *redis.Client) map[string]string {
	t.Helper()
	entries := map[string]string{}
	for _, kind := range []string{"charge:", "refund:"} {
		keys, err := client.Keys(t.Context(), "checkout:"+kind+"*").Result()
		if err != nil {
			t.Fatal(err)
		}
		for _, key := range keys {
			entries[strings.TrimPrefix(key, "checkout:")] = client.Get(t.Context(), key).Val()
		}
	}
	return entries
}

// Half of the orders are paid in the second in which their time is over, and an instance is killed
// meanwhile: each order ends paid or cancelled, and its stock and its charge with it.
func TestOrdersArePaidAsTheirTimeEnds(t *testing.T) {
	t.Parallel()
	for name, ledger := range ledgers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			store, entries := ledger(t)
			r := &race{T: t, within: testpace.Scale(3 * time.Second), orders: 300}
			if testing.Short() {
				r.within, r.orders = testpace.Scale(time.Second), 60
			}
			args := slices.Concat(store, unlimited, []string{
				"-timeout", "10s", "-lease", testpace.Scale(1500 * time.Millisecond).String(), "-unpaid", r.within.String(),
			})
			r.instances = []*instance{start(t, args...)}
			if name != "memory" {
				r.instances = append(r.instances, start(t, args...), start(t, args...))
			}
			r.run(entries)
		})
	}
}

// race is a shop whose customers pay as late as they can.
type race struct {
	*testing.T
	instances []*instance // the first of several is killed
	within    time.Duration
	orders    int
	killed    atomic.Bool
}

// outcome is what became of an order, as its customer was answered.
type outcome struct {
	user string
	placed
	answered int // to the payment; 0 if there was none
}

const stocked = 1000

func (r *race) run(entries func() map[string]string) {
	r.instances[0].stockUp(stocked)
	outcomes := make([]outcome, r.orders)
	var customers sync.WaitGroup
	kill := sync.OnceFunc(func() {
		if len(r.instances) > 1 {
			r.killed.Store(true)
			r.instances[0].kill()
		}
	})
	var payments atomic.Int64
	for n := range outcomes {
		customers.Go(func() {
			o := &outcomes[n]
			o.user = fmt.Sprintf("customer-%d", n/10) // who has ten orders
			o.placed = r.insist(n, o.user, placement(fmt.Sprint("order-", n), n%3+1)).order(r)
			if n%2 == 0 {
				return
			}
			<-time.After(r.within - 600*time.Millisecond + time.Duration(n%20)*50*time.Millisecond)
			if payments.Add(1) == int64(r.orders/8) {
				defer kill()
			}
			o.answered = r.insist(n, o.user, paying(fmt.Sprint("pay-", n), o.ID)).status
		})
	}
	customers.Wait()
	if r.Failed() {
		return
	}
	r.verify(outcomes, entries)
}

// insist sends a request until it has a final answer, to another instance each time.
func (r *race) insist(n int, user string, c call) (a answer) {
	c.user = user
	ctx, cancel := context.WithTimeout(r.Context(), testpace.Scale(30*time.Second))
	defer cancel()
	for ; ctx.Err() == nil; n++ {
		k := n % len(r.instances)
		if k == 0 && r.killed.Load() {
			continue
		}
		var err error
		a, err = r.instances[k].try(c)
		switch {
		case err != nil && k != 0:
			r.Errorf("an instance that lives: %v", err)
			return answer{}
		case err == nil && a.status != http.StatusServiceUnavailable && a.header.Get("Retry-After") == "":
			return a
		}
		<-time.After(50 * time.Millisecond)
	}
	r.Errorf("no final answer: %d %s", a.status, a.body)
	return answer{body: `{"order_id":"none"}`}
}

// verify compares answers, lists, stock and charges.
func (r *race) verify(outcomes []outcome, entries func() map[string]string) {
	last := r.instances[len(r.instances)-1]
	final := map[string]placed{}
	eventually(r, 30*time.Second, "all orders are paid or cancelled", func() bool {
		for n := 0; n < len(outcomes); n += 10 {
			for _, o := range last.orders(outcomes[n].user) {
				final[o.ID] = o
				if o.Status == "unpaid" {
					return false
				}
			}
		}
		return true
	})
	want, count := stocked, map[string]int{}
	for _, o := range outcomes {
		is, ok := final[o.ID]
		count[is.Status]++
		if is.Status == "paid" {
			want -= is.Quantity
		}
		if !ok || (o.answered == http.StatusOK) != (is.Status == "paid") || (is.Status == "paid") != (is.ChargeID != "") ||
			o.answered != 0 && o.answered != http.StatusOK && o.answered != http.StatusConflict {
			r.Errorf("order %s: the payment was answered %d, and it is %+v", o.ID, o.answered, is)
		}
	}
	if len(final) != len(outcomes) || count["paid"]+count["cancelled"] != len(outcomes) || count["cancelled"] < len(outcomes)/2 {
		r.Errorf("%d orders: %v", len(final), count)
	}
	r.Logf("%v", count)
	eventually(r, 10*time.Second, "the stock adds up", func() bool { return last.stock("tea") == want })
	if entries == nil {
		return
	}
	// An order's money is given back after its cancellation.
	eventually(r, 30*time.Second, "the charges add up", func() bool { return balanced(final, entries()) })
	late := 0
	for name := range entries() {
		if strings.HasPrefix(name, "refund:") {
			late++
		}
	}
	r.Logf("%d were charged and given back", late)
}

// balanced reports whether what is paid is charged and not given back, and what is cancelled is
// not charged, or given back.
func balanced(orders map[string]placed, ledger map[string]string) bool {
	for id, o := range orders {
		charge, refund := ledger["charge:"+id], ledger["refund:"+id]
		kept := charge != "" && !strings.Contains(charge, `"withdrawn"`) && refund == ""
		if kept != (o.Status == "paid") || kept && !strings.Contains(charge, o.ChargeID) || charge == "" {
			return false
		}
	}
	return true
}
