package main_test

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"os/exec"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

func TestSignals(t *testing.T) {
	t.Parallel()
	for _, signal := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		i := start(t)
		if i.store != "memory" || !strings.HasPrefix(i.url, "http://127.0.0.1:") {
			t.Errorf("it reports that it listens on %s (store: %s)", i.url, i.store)
		}
		i.do(purchase("k")).want(t, http.StatusCreated, false)
		if code := i.stop(signal); code != 0 {
			t.Errorf("%v: exit code %d\n%s", signal, code, i.stderr)
		}
	}
}

// The program says what to try: buttons that there are, and a command that is charged once.
func TestThreeThingsToTry(t *testing.T) {
	t.Parallel()
	i := start(t)
	var lines []string
	eventually(t, 5*time.Second, "it prints what to try", func() bool {
		lines = strings.Split(strings.TrimSpace(i.stdout.String()), "\n")
		return len(lines) == 4
	})
	page := i.do(call{method: http.MethodGet, path: "/"}).body
	for n, line := range lines[1:] {
		if !strings.HasPrefix(line, fmt.Sprintf("  %d. ", n+1)) {
			t.Errorf("line %d is %q", n+1, line)
		}
		if n == 2 {
			continue
		}
		for _, button := range regexp.MustCompile(`"([^"]+)"`).FindAllStringSubmatch(line, -1) {
			if !strings.Contains(page, "<strong>"+button[1]+"</strong>") {
				t.Errorf("there is no button %q", button[1])
			}
		}
	}
	_, command, ok := strings.Cut(lines[3], "send this twice: ")
	if !ok {
		t.Fatalf("no command in %q", lines[3])
	}
	for n := range 2 {
		if got := shell(t, command); !strings.HasPrefix(got, "HTTP/1.1 201") || strings.Contains(got, "Idempotency-Replayed: true") != (n == 1) {
			t.Errorf("the answer %d to %s is\n%s", n+1, command, got)
		}
	}
	if n := i.stats().Charges; n != 1 {
		t.Errorf("%d charges", n)
	}
}

// Each button of the page has a link to a line of the code, and no other file is shown.
func TestLinksToCode(t *testing.T) {
	t.Parallel()
	i := start(t)
	page := i.do(call{method: http.MethodGet, path: "/"}).body
	links := regexp.MustCompile(`href="(/code/[^"]+)#here"`).FindAllStringSubmatch(page, -1)
	if buttons := strings.Count(page, `class="act`); len(links) != buttons || buttons == 0 {
		t.Errorf("%d buttons have %d links to code", buttons, len(links))
	}
	for _, link := range links {
		if a := i.do(call{method: http.MethodGet, path: link[1]}); a.status != http.StatusOK || strings.Count(a.body, ` id="here"`) != 1 {
			t.Errorf("%s has the status %d, and no line that is marked", link[1], a.status)
		}
	}
	for _, file := range []string{"main_test.go", "..%2fgo.mod", "page%2fapp.js", "."} {
		if a := i.do(call{method: http.MethodGet, path: "/code/" + file}); a.status == http.StatusOK {
			t.Errorf("%s is shown", file)
		}
	}
	if a := i.do(call{method: http.MethodGet, path: "/code/server.go?at=%3Cscript%3E"}); strings.Contains(a.body, "<script>") {
		t.Error("the page of code shows what the client sends")
	}
}

// Behind a proxy each client has a limit of its own, and the word of others about clients does not
// count.
func TestClientsBehindAProxy(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name, proxies string
		denied        bool
	}{
		{"the proxy is trusted", "192.0.2.0/24,127.0.0.0/8", false},
		{"another one is trusted", "192.0.2.0/24", true},
	} {
		i := start(t, "-rate", "1", "-burst", "1", "-proxies", test.proxies)
		denied := 0
		for n := range 20 { // they do not take 20 s
			a := i.do(call{
				method: http.MethodGet, path: "/api/orders/none", user: "alice", header: map[string]string{"X-Forwarded-For": fmt.Sprintf("203.0.113.%d", n)},
			})
			if a.status == http.StatusTooManyRequests {
				denied++
			}
		}
		if denied > 0 != test.denied {
			t.Errorf("%s: of 20 clients %d are denied", test.name, denied)
		}
	}
}

func TestBadFlags(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{
		{"-rate", "0"}, {"-rate", "x"}, {"-burst", "-1"}, {"-redis", "nonsense"}, {"-postgres", "nonsense"}, {"-postgres", "postgres://x@127.0.0.1:1/x"}, {"-lease", "1ns"}, {"-wait", "2ns"}, {"-wait", "-1s"},
		{"-proxies", "nonsense"}, {"-proxies", "10.0.0.1"}, {"-rules", "/no/such/file"},
		{"-addr", "300.0.0.1:x"}, {"extra"}, {"-redis", "redis://127.0.0.1:1", "-postgres", "postgres://x@127.0.0.1:1/x"},
	} {
		out, err := exec.Command(binary, args...).CombinedOutput()
		if err == nil || len(out) == 0 || strings.Contains(string(out), "panic") || !strings.Contains(string(out), args[0]) {
			t.Errorf("%v: %v\n%s", args, err, out)
		}
	}
}

// storm sends the same purchase many times at once, to each instance in turn, and checks that there
// is one answer.
func storm(t *testing.T, n int, instances ...*instance) {
	t.Helper()
	answers := make([]answer, n)
	var wg sync.WaitGroup
	for j := range n {
		wg.Go(func() {
			var err error
			if answers[j], err = instances[j%len(instances)].try(purchase("storm")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	kept := instances[0].do(purchase("storm")).want(t, http.StatusCreated, true)
	fresh := 0
	for _, a := range answers {
		switch {
		case a.status == http.StatusCreated && a.body == kept.body:
			if !a.replayed() {
				fresh++
			}
		case a.status == http.StatusConflict:
			if after, err := strconv.Atoi(a.header.Get("Retry-After")); err != nil || after < 1 {
				t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
			}
		default:
			t.Errorf("answer %d %s, want %s or a conflict", a.status, a.body, kept.body)
		}
	}
	charges, requests := 0, 0
	for _, i := range instances {
		s := i.stats()
		charges += s.Charges
		requests += s.Requests
		i.do(purchase("storm")).want(t, http.StatusCreated, true)
	}
	if fresh != 1 || charges != 1 || requests != n+1 {
		t.Errorf("%d answers that are no replays and %d charges for %d requests", fresh, charges, requests)
	}
}

func TestStormOnOneInstance(t *testing.T) { storm(t, 200, start(t, unlimited...)) }

func TestStormOnTwoInstances(t *testing.T) {
	for name, store := range shared {
		t.Run(name, func(t *testing.T) {
			args := append(store(t), unlimited...)
			a, b := start(t, args...), start(t, args...)
			if a.store != name {
				t.Errorf("store: %s", a.store)
			}
			storm(t, 200, a, b)
		})
	}
}

// With -wait, payments with one key on two instances wait for the first one, and get its answer.
func TestStormThatWaits(t *testing.T) {
	for name, store := range shared {
		t.Run(name, func(t *testing.T) { stormThatWaits(t, append(store(t), append(unlimited, "-wait", "10s")...)...) })
	}
}

func stormThatWaits(t *testing.T, args ...string) {
	instances := []*instance{start(t, args...), start(t, args...)}
	answers := make([]answer, 20)
	var wg sync.WaitGroup
	for j := range answers {
		wg.Go(func() {
			var err error
			if answers[j], err = instances[j%2].try(purchase("storm")); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	fresh := 0
	for _, a := range answers {
		if a.status != http.StatusCreated || a.body != answers[0].body {
			t.Errorf("answer %d %s", a.status, a.body)
		}
		if !a.replayed() {
			fresh++
		}
	}
	if fresh != 1 {
		t.Errorf("%d answers that are no replays", fresh)
	}
}

func TestOrder(t *testing.T) {
	t.Parallel()
	i := start(t)
	a := i.do(purchase("k1")).want(t, http.StatusCreated, false)
	var order struct {
		OrderID     string `json:"order_id"`
		ChargeID    string `json:"charge_id"`
		SKU         string
		Quantity    int
		AmountCents int `json:"amount_cents"`
	}
	if err := json.Unmarshal([]byte(a.body), &order); err != nil {
		t.Fatal(err)
	}
	if order.OrderID == "" || order.ChargeID == "" || order.SKU != "tea" || order.Quantity != 1 || order.AmountCents != 450 {
		t.Errorf("order %+v", order)
	}
	if a.header.Get("Location") != "/api/orders/"+order.OrderID || a.header.Get("X-Attempt") != "1" {
		t.Errorf("header %v", a.header)
	}
	look := call{method: http.MethodGet, path: a.header.Get("Location"), user: "alice"}
	if got := i.do(look).want(t, http.StatusOK, false); got.body != a.body {
		t.Errorf("the order is %s", got.body)
	}
	look.user = "bob"
	i.do(look).wantProblem(t, http.StatusNotFound, "")
	look.user = ""
	i.do(look).wantProblem(t, http.StatusUnauthorized, "")
}

func TestScopesOfKeys(t *testing.T) {
	t.Parallel()
	i := start(t)
	first := i.do(purchase("k1")).want(t, http.StatusCreated, false)
	i.do(purchase(`"k1"`)).want(t, http.StatusCreated, true)

	other := purchase("k1")
	other.body = `{"sku":"tea","quantity":2}`
	i.do(other).wantProblem(t, http.StatusUnprocessableEntity, "key-reused")

	bob := purchase("k1")
	bob.user = "bob"
	his := i.do(bob).want(t, http.StatusCreated, false)
	for _, name := range []string{"order_id", "charge_id"} {
		var a, b map[string]any
		_, _ = json.Unmarshal([]byte(first.body), &a), json.Unmarshal([]byte(his.body), &b)
		if a[name] == b[name] {
			t.Errorf("bob was given alice's %s", name)
		}
	}
	if s := i.stats(); s.Charges != 2 || s.Replayed != 1 || s.Requests != 4 {
		t.Errorf("stats %+v", s)
	}
}

func TestBadKeys(t *testing.T) {
	t.Parallel()
	i := start(t)
	for name, keys := range map[string][]string{
		"none": nil, "empty": {""}, "two": {"a", "b"}, "300 characters": {strings.Repeat("k", 300)},
	} {
		c := purchase("")
		c.keys = keys
		if a := i.do(c); a.status != http.StatusBadRequest {
			t.Errorf("%s: %d %s", name, a.status, a.body)
		}
	}
	for _, control := range []string{"\x01", "\x7f", "\t"} { // which no client library sends
		conn, err := net.Dial("tcp", strings.TrimPrefix(i.url, "http://"))
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "POST /api/checkout HTTP/1.1\r\nHost: x\r\nX-User: alice\r\nConnection: close\r\n"+
			"Idempotency-Key: a"+control+"b\r\nContent-Length: 26\r\n\r\n{\"sku\":\"tea\",\"quantity\":1}")
		raw, err := io.ReadAll(conn)
		_ = conn.Close()
		if err != nil || !strings.HasPrefix(string(raw), "HTTP/1.1 400 ") {
			t.Errorf("a control character %q: %v, %.60s", control, err, raw)
		}
	}
	if s := i.stats(); s.Charges != 0 {
		t.Errorf("%d charges", s.Charges)
	}
}

func TestAnswersOfTheShop(t *testing.T) {
	t.Parallel()
	i := start(t, unlimited...)
	for _, c := range []struct {
		body   string
		status int
		kept   bool
	}{
		{`{"sku":"declined","quantity":1}`, http.StatusPaymentRequired, true},
		{`{"sku":"broken","quantity":1}`, http.StatusBadGateway, false},
		{`{"sku":"unicorn","quantity":1}`, http.StatusNotFound, true},
		{`{"sku":"tea","quantity":0}`, http.StatusBadRequest, true},
		{`{"sku":"tea","quantity":1e9}`, http.StatusBadRequest, true},
		{`{"sku":"tea","quantity":1}{}`, http.StatusBadRequest, true},
		{`{"sku":"tea","quantity":1,"admin":true}`, http.StatusBadRequest, true},
		{`{`, http.StatusBadRequest, true},
		{``, http.StatusBadRequest, true},
	} {
		p := purchase("key-" + strconv.Itoa(len(c.body)) + c.body[:min(len(c.body), 1)])
		p.keys[0] = strings.Trim(strings.Map(func(r rune) rune {
			if r > ' ' && r != '"' && r != ',' {
				return r
			}
			return '-'
		}, "k"+c.body), "-")
		p.body = c.body
		i.do(p).wantProblem(t, c.status, "")
		if a := i.do(p); a.status != c.status || a.replayed() != c.kept {
			t.Errorf("%s again: %d, replayed %v, want %v", c.body, a.status, a.replayed(), c.kept)
		}
	}
	anonymous := purchase("k")
	anonymous.user = ""
	i.do(anonymous).wantProblem(t, http.StatusUnauthorized, "")
	i.do(call{method: http.MethodGet, path: "/api/nothing", user: "alice"}).wantProblem(t, http.StatusNotFound, "")
	if s := i.stats(); s.Charges != 0 {
		t.Errorf("%d charges", s.Charges)
	}
}

func TestRateLimit(t *testing.T) {
	i := start(t, "-rate", "1", "-burst", "3")
	look := call{method: http.MethodGet, path: "/api/orders/x", user: "alice"}
	for n := range 5 { // whatever address a client claims to have
		look.header = map[string]string{"X-Forwarded-For": "203.0.113." + strconv.Itoa(n), "Forwarded": "for=203.0.113." + strconv.Itoa(n)}
		a := i.do(look)
		if want := map[bool]int{true: http.StatusNotFound, false: http.StatusTooManyRequests}[n < 3]; a.status != want {
			t.Fatalf("request %d: %d, want %d", n, a.status, want)
		}
		if a.header.Get("RateLimit") == "" || a.header.Get("RateLimit-Policy") != `"api";q=3;w=3` {
			t.Errorf("header %v", a.header)
		}
		if a.status == http.StatusTooManyRequests {
			a.wantProblem(t, http.StatusTooManyRequests, "quota-exceeded")
			if a.header.Get("Retry-After") != "1" {
				t.Errorf("Retry-After %q", a.header.Get("Retry-After"))
			}
		}
	}
	if s := i.stats(); s.Denied != 2 || s.Requests != 5 {
		t.Errorf("stats %+v", s)
	}
	for range 10 {
		i.stats() // is not limited
	}
}

// If an instance dies during a payment, another takes over after its lease, and the customer is
// charged once.
func TestKilledDuringAPayment(t *testing.T) {
	t.Parallel()
	const lease = 1500 * time.Millisecond
	server := redistest.Start(t)
	args := append([]string{"-redis", server.URL(), "-lease", lease.String()}, unlimited...)
	dying, other := start(t, args...), start(t, args...)

	gone := make(chan struct{})
	go func() {
		defer close(gone)
		_, _ = dying.try(purchase("k1"))
	}()
	client := server.Client()
	eventually(t, 5*time.Second, "the payment has begun", func() bool {
		keys, err := client.Keys(t.Context(), "lk:g:{*}:*").Result() // records, and not what counts them
		return err == nil && len(keys) == 1
	})
	dying.kill()
	<-gone

	twin := other.do(purchase("k1")).wantProblem(t, http.StatusConflict, "in-flight")
	if twin.header.Get("Retry-After") == "" {
		t.Error("no Retry-After")
	}
	<-time.After(lease)
	if a := other.do(purchase("k1")).want(t, http.StatusCreated, false); a.header.Get("X-Attempt") != "2" {
		t.Errorf("attempt %q, want 2", a.header.Get("X-Attempt"))
	}
	other.do(purchase("k1")).want(t, http.StatusCreated, true)
	charges, err := client.Keys(t.Context(), "checkout:charge:*").Result()
	if err != nil || len(charges) != 1 {
		t.Errorf("the provider has charges %v, %v", charges, err)
	}
}

// Redis stops and starts again.
func TestRedisStopped(t *testing.T) {
	server := redistest.Start(t)
	i := start(t, append([]string{"-redis", server.URL()}, unlimited...)...)
	i.do(purchase("before")).want(t, http.StatusCreated, false)
	look := call{method: http.MethodGet, path: "/api/orders/x", user: "alice"}

	server.Stop()
	refused := func() time.Duration {
		t.Helper()
		begun := time.Now()
		a := i.do(look).wantProblem(t, http.StatusServiceUnavailable, "temporary-reduced-capacity")
		if a.header.Get("Retry-After") == "" {
			t.Error("no Retry-After")
		}
		return time.Since(begun)
	}
	for range 10 { // until the breaker opens
		if took := refused(); took > time.Second {
			t.Errorf("a refusal took %v", took)
		}
	}
	var wg sync.WaitGroup
	for range 4 { // under load
		wg.Go(func() {
			for range 100 {
				if a, err := i.try(purchase("during")); err != nil || a.status != http.StatusServiceUnavailable {
					t.Errorf("%d, %v", a.status, err)
				}
			}
		})
	}
	wg.Wait()
	quick := 0
	for range 100 {
		if refused() < 5*time.Millisecond {
			quick++
		}
	}
	if quick < 95 {
		t.Errorf("with the breaker open, %d of 100 refusals were within 5ms", quick)
	}

	server.Restart()
	eventually(t, 5*time.Second, "it serves again", func() bool { return i.do(look).status == http.StatusNotFound })
	i.do(purchase("after")).want(t, http.StatusCreated, false)
	if code := i.stop(syscall.SIGTERM); code != 0 {
		t.Errorf("exit code %d", code)
	}
}
