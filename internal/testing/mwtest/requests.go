package mwtest

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/policy"
)

// EventID returns the event of a request whose body is JSON. It reads all of the body.
func EventID(r *http.Request) (string, error) {
	var e struct{ Event string }
	defer r.Body.Close() //nolint:errcheck // as many do, although the server closes it
	text, err := io.ReadAll(r.Body)
	if err != nil {
		return "", fmt.Errorf("read the event: %w", err)
	}
	if json.Unmarshal(text, &e) != nil {
		return "", policy.ErrNoKey
	}
	return e.Event, nil
}

// echoBody is a handler that reads the request's body and answers with the beginning of it.
func echoBody(t *rig) (*counter, http.HandlerFunc) {
	c := &counter{}
	return c, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		w.Header().Set("X-Body", string(body[:min(len(body), 100)]))
		c.handle(w, r)
	}
}

// requestRows are about which requests are the same, and about the memory of their bodies.
var requestRows = []row{
	{"a corrected precondition runs under the same key", func(t *rig) {
		var c counter
		s := orders(t, func(w http.ResponseWriter, r *http.Request) {
			if r.Header.Get("If-Match") != `"v2"` {
				w.WriteHeader(http.StatusPreconditionFailed)
				return
			}
			c.handle(w, r)
		})
		s.send("1", "body", "X-User", "u", keyHeader, "k", "If-Match", `"v1"`).is(http.StatusPreconditionFailed, "")
		for range 2 {
			s.send("1", "body", "X-User", "u", keyHeader, "k", "If-Match", `"v2"`).is(http.StatusCreated, "run 1")
		}
		c.ran(t, 1)
	}},
	{"another host is another request", func(t *rig) {
		var c counter
		s := orders(t, c.handle)
		s.send("1", "", "X-User", "u", keyHeader, "k", "Host", "shop.example").is(http.StatusCreated, "run 1")
		s.send("1", "", "X-User", "u", keyHeader, "k", "Host", "SHOP.example").is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true")
		s.send("1", "", "X-User", "u", keyHeader, "k", "Host", "other.example").denies(policy.KeyReused)
		c.ran(t, 1)
	}},
	{"another spelling of the host is the same request", func(t *rig) {
		for _, hosts := range [][]string{
			{"shop.example", "shop.example:80", "shop.example:443", "Shop.Example.", "shop.example.:80"},
			{"shop.example:8080", "SHOP.example.:8080"},
			{"[2001:db8::1]", "[2001:DB8::1]:443"},
		} {
			var c counter
			s := orders(t, c.handle)
			for _, host := range hosts {
				s.send("1", "", "X-User", "u", keyHeader, "k", "Host", host).is(http.StatusCreated, "run 1")
			}
			for _, host := range []string{"shop.example:81", "shop.example.com", "[2001:db8::2]"} {
				s.send("1", "", "X-User", "u", keyHeader, "k", "Host", host).denies(policy.KeyReused)
			}
		}
	}},
	{"the hosts of one service are one", func(t *rig) {
		var c counter
		s := serve(t, c.handle, Idempotency{Guard: newGuard(t, newStore(t)), By: byUser, Options: []policy.IdempotencyOption{
			policy.OneService("www.shop.example", "SHOP.example"), policy.OneService("a.example", "b.example"),
		}})
		s.send("1", "", "X-User", "u", keyHeader, "k", "Host", "shop.example").is(http.StatusCreated, "run 1")
		s.send("1", "", "X-User", "u", keyHeader, "k", "Host", "www.shop.example:443").is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true")
		s.send("1", "", "X-User", "u", keyHeader, "k", "Host", "a.example").denies(policy.KeyReused)
	}},
	{"other preconditions are another request", func(t *rig) {
		var c counter
		s := orders(t, c.handle)
		for name, values := range map[string][2]string{
			"If-Match":            {`"v1"`, `"v2"`},
			"If-None-Match":       {`"v1"`, "*"},
			"If-Modified-Since":   {"Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 02 Jan 1970 00:00:00 GMT"},
			"If-Unmodified-Since": {"Thu, 01 Jan 1970 00:00:00 GMT", "Fri, 02 Jan 1970 00:00:00 GMT"},
			"If-Range":            {`"v1"`, `"v2"`},
			"Range":               {"bytes=0-9", "bytes=10-"},
		} {
			first := s.send("1", "", "X-User", "u", keyHeader, name, name, values[0])
			s.send("1", "", "X-User", "u", keyHeader, name, name, values[0]).is(first.status, first.body).has("Idempotency-Replayed", "true")
			s.send("1", "", "X-User", "u", keyHeader, name, name, values[1]).denies(policy.KeyReused)
			s.send("1", "", "X-User", "u", keyHeader, name).denies(policy.KeyReused)
		}
		c.ran(t, 6)
	}},
	{"the application can define the fingerprint", func(t *rig) {
		c, handler := echoBody(t)
		s := orders(t, handler, policy.Fingerprint(func(r *http.Request, body []byte) ([]byte, error) {
			var order struct{ Amount int }
			if err := json.NewDecoder(r.Body).Decode(&order); err != nil {
				return nil, err
			}
			for i := range body {
				body[i] = 'x' // which must not harm the handler
			}
			return fmt.Append(nil, r.Header.Get("X-Tenant"), " ", order.Amount), nil
		}))
		body := `{"amount": 450, "sent": 1}`
		s.send("1", body, "X-User", "u", keyHeader, "k", "X-Tenant", "a").is(http.StatusCreated, "run 1").has("X-Body", body)
		again := `{"amount": 450, "sent": 2}`
		s.send("1", again, "X-User", "u", keyHeader, "k", "X-Tenant", "a").is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true")
		s.send("1", `{"amount": 451}`, "X-User", "u", keyHeader, "k", "X-Tenant", "a").denies(policy.KeyReused)
		s.send("1", body, "X-User", "u", keyHeader, "k", "X-Tenant", "b").denies(policy.KeyReused)
		s.send("1?more=1", body, "X-User", "u", keyHeader, "k", "X-Tenant", "a").denies(policy.KeyReused)
		s.send("1", "no JSON", "X-User", "u", keyHeader, "l").denies(policy.BodyUnreadable)
		c.ran(t, 1)
	}},
	{"fields of a JSON body can be the fingerprint", func(t *rig) {
		c, handler := echoBody(t)
		s := orders(t, handler, policy.JSONFingerprint("amount", "account.id"))
		s.send("1", `{"amount": 9007199254740992, "account": {"id": "a"}, "sent": 1}`, "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1")
		s.send("1", `{"sent": 2, "account":{"id":"\u0061"},"amount":9007199254740992.0}`, "X-User", "u", keyHeader, "k").
			is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true")
		for _, other := range []string{
			`{"amount": 9007199254740993, "account": {"id": "a"}}`, `{"amount": 9007199254740992, "account": {"id": "b"}}`, `{}`, "no JSON", "",
		} {
			s.send("1", other, "X-User", "u", keyHeader, "k").denies(policy.KeyReused)
		}
		s.send("1", `{"amount": 1, "amount": 2}`, "X-User", "u", keyHeader, "l").denies(policy.BodyUnreadable)
		c.ran(t, 1)
	}},
	{"the key alone can identify the request", func(t *rig) {
		c, handler := echoBody(t)
		s := orders(t, handler, policy.KeyAlone())
		s.send("1", "body", "X-User", "u", keyHeader, "k").is(http.StatusCreated, "run 1").has("X-Body", "body")
		s.send("1?more=1", "another body", "X-User", "u", keyHeader, "k", "Content-Type", "text/plain", "If-Match", `"v1"`).
			is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true").has("X-Body", "body")
		s.send("2", "body", "X-User", "u", keyHeader, "k").denies(policy.KeyReused)
		s.send("1", "body", "X-User", "u", keyHeader, "k", "Host", "other.example").denies(policy.KeyReused)
		c.ran(t, 1)
	}},
	{"a key can come from another header", func(t *rig) {
		c, handler := echoBody(t)
		s := serve(t, handler, Idempotency{Guard: newGuard(t, newStore(t)), KeyFrom: Key{Kind: ByHeader, Name: "X-Event"}})
		for n := range 2 {
			s.send("1", "body", keyHeader, "k").is(http.StatusCreated, "run "+strconv.Itoa(n+1)).has("X-Body", "body").has("Idempotency-Replayed", "")
		}
		s.send("1", "body", "X-Event", "e").is(http.StatusCreated, "run 3").has("X-Body", "body")
		s.send("1", "body", "X-Event", "e").is(http.StatusCreated, "run 3").has("Idempotency-Replayed", "true")
		s.send("1", "body", "X-Event", strings.Repeat("e", 256)).denies(policy.KeyMalformed)
		s.send("1", "body", "X-Event", "é").denies(policy.KeyMalformed)
		c.ran(t, 3)
	}},
	{"a key can come from the body", func(t *rig) {
		c, handler := echoBody(t)
		s := serve(t, handler, Idempotency{
			Guard: newGuard(t, newStore(t)), KeyFrom: Key{Kind: InBody},
			Options: []policy.IdempotencyOption{policy.KeyAlone(), policy.Required(), policy.MaxBody(100)},
		})
		first := `{"event": "e1", "attempt": 1}`
		s.send("1", first).is(http.StatusCreated, "run 1").has("X-Body", first)
		s.send("1", `{"event": "e1", "attempt": 2}`).is(http.StatusCreated, "run 1").has("Idempotency-Replayed", "true")
		s.send("1", `{"event": "e2"}`).is(http.StatusCreated, "run 2")
		s.send("1", `{"attempt": 1}`).denies(policy.KeyMissing)
		s.send("1", "no JSON").denies(policy.KeyMissing)
		s.send("1", `{"event": "e1`+strings.Repeat(" ", 100)+`"}`).denies(policy.BodyTooLarge)
		s.send("1", `{"event": "\n"}`).denies(policy.KeyMalformed)
		c.ran(t, 2)
	}},
	{"a failing key function is an internal error", func(t *rig) {
		var c counter
		s := serve(t, c.handle, Idempotency{Guard: newGuard(t, newStore(t)), KeyFrom: Key{Kind: Failing, Err: errKey}})
		s.send("1", "body", keyHeader, "k").denies(policy.InternalError)
		c.ran(t, 0)
	}},
	{"unfinished bodies are limited in memory", func(t *rig) {
		c, handler := echoBody(t)
		s := orders(t, handler, policy.MaxBody(30_000), policy.MaxBodies(90_000))
		slow := make([]net.Conn, 3)
		for i := range slow {
			slow[i] = s.slow(30_000, "slow"+strconv.Itoa(i))
		}
		body := strings.Repeat("x", 20_000)
		n := 0
		try := func() answer {
			n++
			return s.send("1", body, "X-User", "u", keyHeader, strconv.Itoa(n))
		}
		var a answer
		eventually(t, "what has arrived takes the room", func() bool {
			for i, conn := range slow { // one is refused if it arrives while another request takes the room
				_ = conn.SetReadDeadline(time.Now().Add(time.Millisecond))
				if n, _ := conn.Read(make([]byte, 1)); n > 0 {
					slow[i] = s.slow(30_000, "slow"+strconv.Itoa(i))
				}
				_ = conn.SetReadDeadline(time.Time{})
			}
			a = try()
			return a.status == http.StatusServiceUnavailable
		})
		a.denies(policy.ReducedCapacity)
		s.send("1", "a little", "X-User", "u", keyHeader, "little").has("X-Body", "a little")

		_, _ = slow[0].Write([]byte("x"))
		reply := make([]byte, 12)
		if _, err := io.ReadFull(slow[0], reply); err != nil || string(reply) != "HTTP/1.1 201" {
			t.Errorf("the first is answered %q, %v", reply, err)
		}
		for _, conn := range slow {
			_ = conn.Close()
		}
		eventually(t, "there is room again", func() bool { return try().status == http.StatusCreated })
		c.mu.Lock()
		defer c.mu.Unlock()
		if c.runs == n {
			t.Error("a request that was refused has run")
		}
	}},
	{"announced bodies take no memory", func(t *rig) {
		_, handler := echoBody(t)
		s := orders(t, handler, policy.MaxBody(30_000), policy.MaxBodies(30_000))
		for i := range 100 {
			defer s.slow(30_000, "slow"+strconv.Itoa(i), "").Close() //nolint:errcheck // a test's
		}
		s.send("1", strings.Repeat("x", 30_000), "X-User", "u", keyHeader, "k").has("X-Body", strings.Repeat("x", 100))
		s.send("1", "", "X-User", "u", keyHeader, "k").denies(policy.KeyReused)
	}},
}

// slow begins a request, and sends all but its last byte, or the given part of the body.
func (s server) slow(size int, key string, part ...string) net.Conn {
	s.t.Helper()
	conn, err := net.Dial("tcp", strings.TrimPrefix(s.URL, "http://"))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { _ = conn.Close() })
	body := strings.Repeat("x", size-1)
	if len(part) > 0 {
		body = part[0]
	}
	_, err = fmt.Fprintf(conn, "POST %s1 HTTP/1.1\r\nHost: example.com\r\nX-User: %[3]s\r\n%[2]s: %[3]s\r\nContent-Length: %d\r\n\r\n%s", Path, keyHeader, key, size, body)
	if err != nil {
		s.t.Fatal(err)
	}
	return conn
}

// eventually waits until a condition holds.
func eventually(t *rig, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(t.patience); !holds(); <-time.After(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("not so: " + what)
		}
	}
}
