package main_test

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

func stockCall(method, path, body string) call {
	return call{method: method, path: "/api/stock/" + path, user: "alice", body: body}
}

func take(query string) call {
	return stockCall(http.MethodPost, "tea/take"+query, `{"quantity":1}`)
}

// stock is the quantity of an article that the instance reports.
func (i *instance) stock(sku string) int {
	i.t.Helper()
	a := i.do(stockCall(http.MethodGet, sku, "")).want(i.t, http.StatusOK, false)
	var s struct {
		SKU  string
		Left *int
	}
	if err := json.Unmarshal([]byte(a.body), &s); err != nil || s.SKU != sku || s.Left == nil {
		i.t.Fatalf("the stock is %s", a.body)
	}
	return *s.Left
}

// sale sends requests of 200 buyers for one of 50 items each, all at once, to each instance in
// turn. It returns the number of sold items.
func sale(t *testing.T, query string, instances ...*instance) int {
	t.Helper()
	const buyers = 200
	instances[0].do(stockCall(http.MethodPost, "tea", `{"quantity":50}`)).want(t, http.StatusOK, false)
	answers := make([]answer, buyers)
	var wg sync.WaitGroup
	for n := range buyers {
		wg.Go(func() {
			c := take(query)
			c.user = fmt.Sprintf("buyer-%d", n)
			var err error
			if answers[n], err = instances[n%len(instances)].try(c); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	sold := 0
	for _, a := range answers {
		switch a.status {
		case http.StatusOK:
			sold++
		case http.StatusConflict:
			if a.header.Get("Retry-After") != "" || strings.Contains(a.body, "locked") || !strings.Contains(a.body, "Sold out") {
				t.Errorf("%d %s", a.status, a.body)
			}
		default:
			t.Errorf("%d %s", a.status, a.body)
		}
	}
	return sold
}

// soldOut checks that all items were sold, and no more.
func soldOut(t *testing.T, instances ...*instance) {
	t.Helper()
	for range 3 { // the next sale begins where an earlier one has ended
		if sold := sale(t, "", instances...); sold != 50 {
			t.Errorf("%d sold", sold)
		}
		for _, i := range instances {
			if left := i.stock("tea"); left != 0 {
				t.Errorf("%d left", left)
			}
		}
	}
}

func TestFlashSaleOnOneInstance(t *testing.T) {
	t.Parallel()
	i := start(t) // with the limit by address that everybody has
	soldOut(t, i)
	if s := i.stats(); s.Denied != 0 {
		t.Errorf("stats %+v", s)
	}
}

func TestFlashSaleOnTwoInstances(t *testing.T) {
	t.Parallel()
	for name, store := range shared {
		t.Run(name, func(t *testing.T) {
			args := store(t)
			soldOut(t, start(t, args...), start(t, args...))
		})
	}
}

// stores are shared, and memory.
func stores() map[string]func(testing.TB) []string {
	all := maps.Clone(shared)
	all["memory"] = func(testing.TB) []string { return nil }
	return all
}

// Without its lock the shop sells too many.
func TestFlashSaleWithoutTheLock(t *testing.T) {
	t.Parallel()
	for name, store := range stores() {
		t.Run(name, func(t *testing.T) {
			i := start(t, store(t)...)
			if sold := sale(t, "?lock=off", i); sold <= 50 {
				t.Errorf("%d sold", sold)
			}
			if sold := sale(t, "", i); sold != 50 {
				t.Errorf("with the lock again: %d sold", sold)
			}
		})
	}
}

func TestStock(t *testing.T) {
	t.Parallel()
	for name, store := range stores() {
		t.Run(name, func(t *testing.T) { testStock(t, start(t, store(t)...)) })
	}
}

func testStock(t *testing.T, i *instance) {
	if left := i.stock("tea"); left != 0 {
		t.Errorf("%d left of what was never stocked", left)
	}
	i.do(take("")).wantProblem(t, http.StatusConflict, "")
	set := i.do(stockCall(http.MethodPost, "tea", `{"quantity":3}`)).want(t, http.StatusOK, false)
	if set.body != `{"sku":"tea","left":3}` {
		t.Errorf("set: %s", set.body)
	}
	two := take("")
	two.body = `{"quantity":2}`
	if a := i.do(two).want(t, http.StatusOK, false); a.body != `{"sku":"tea","left":1}` {
		t.Errorf("two taken: %s", a.body)
	}
	i.do(two).wantProblem(t, http.StatusConflict, "")
	if left := i.stock("tea"); left != 1 {
		t.Errorf("%d left", left)
	}
	if left := i.stock("coffee"); left != 0 {
		t.Errorf("%d left of another article", left)
	}

	for _, c := range []struct {
		path, body string
		status     int
	}{
		{"unicorn", `{"quantity":1}`, http.StatusNotFound},
		{"unicorn/take", `{"quantity":1}`, http.StatusNotFound},
		{"tea/give", `{"quantity":1}`, http.StatusNotFound},
		{"tea/take", ``, http.StatusBadRequest},
		{"tea/take", `{`, http.StatusBadRequest},
		{"tea/take", `{}`, http.StatusBadRequest},
		{"tea/take", `[]`, http.StatusBadRequest},
		{"tea/take", `{"quantity":"1"}`, http.StatusBadRequest},
		{"tea/take", `{"quantity":1.5}`, http.StatusBadRequest},
		{"tea/take", `{"quantity":0}`, http.StatusBadRequest},
		{"tea/take", `{"quantity":-1}`, http.StatusBadRequest},
		{"tea/take", `{"quantity":101}`, http.StatusBadRequest},
		{"tea/take", `{"quantity":99999999999999999999}`, http.StatusBadRequest},
		{"tea/take", `{"quantity":1,"sku":"coffee"}`, http.StatusBadRequest},
		{"tea/take", `{"quantity":1}{}`, http.StatusBadRequest},
		{"tea/take", strings.Repeat(" ", 2000) + `{"quantity":1}`, http.StatusBadRequest},
		{"tea", `{"quantity":-1}`, http.StatusBadRequest},
		{"tea", `{"quantity":1000001}`, http.StatusBadRequest},
		{"tea", `{}`, http.StatusBadRequest},
	} {
		i.do(stockCall(http.MethodPost, c.path, c.body)).wantProblem(t, c.status, "")
	}
	i.do(stockCall(http.MethodGet, "unicorn", "")).wantProblem(t, http.StatusNotFound, "")
	for _, c := range []call{stockCall(http.MethodGet, "tea", ""), take(""), stockCall(http.MethodPost, "tea", `{"quantity":5}`)} {
		c.user = ""
		i.do(c).wantProblem(t, http.StatusUnauthorized, "")
	}
	if left := i.stock("tea"); left != 1 {
		t.Errorf("%d left after requests that were refused", left)
	}
	i.do(stockCall(http.MethodPost, "tea", `{"quantity":0}`)).want(t, http.StatusOK, false)
	if left := i.stock("tea"); left != 0 {
		t.Errorf("%d left", left)
	}
}

// The lock of an instance that dies is free after its lease.
func TestKilledWithTheLock(t *testing.T) {
	t.Parallel()
	const lease = time.Second
	server := redistest.Start(t)
	args := []string{"-redis", server.URL(), "-lease", lease.String()}
	dying, other := start(t, args...), start(t, args...)
	other.do(stockCall(http.MethodPost, "tea", `{"quantity":100}`)).want(t, http.StatusOK, false)

	stop := make(chan struct{})
	var buyers sync.WaitGroup
	for range 10 {
		buyers.Go(func() {
			for {
				select {
				case <-stop:
					return
				default:
				}
				if _, err := dying.try(take("")); err != nil {
					return
				}
			}
		})
	}
	eventually(t, 5*time.Second, "the sale has begun", func() bool { return other.stock("tea") < 100 })
	dying.kill()
	close(stop)
	buyers.Wait()

	left := other.stock("tea")
	began := time.Now()
	other.do(take("")).want(t, http.StatusOK, false)
	if took := time.Since(began); took > lease+3*time.Second {
		t.Errorf("it took %v to get the lock of a dead instance", took)
	}
	if after := other.stock("tea"); after != left-1 {
		t.Errorf("%d left, then one taken, then %d", left, after)
	}
}

func TestStockWithoutRedis(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	i := start(t, "-redis", server.URL())
	i.do(stockCall(http.MethodPost, "tea", `{"quantity":5}`)).want(t, http.StatusOK, false)
	server.Stop()
	for _, c := range []call{take(""), stockCall(http.MethodGet, "tea", ""), stockCall(http.MethodPost, "tea", `{"quantity":9}`), take("?lock=off")} {
		i.do(c).wantProblem(t, http.StatusServiceUnavailable, "")
	}
	server.Restart()
	eventually(t, 5*time.Second, "it sells again", func() bool {
		return i.do(stockCall(http.MethodPost, "tea", `{"quantity":5}`)).status == http.StatusOK
	})
	i.do(take("")).want(t, http.StatusOK, false)
	if left := i.stock("tea"); left != 4 {
		t.Errorf("%d left", left)
	}
}
