package httpmw

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/policy"
)

// guarded returns a middleware, and a handler behind it.
func guarded(t *testing.T, next http.HandlerFunc, opts ...policy.IdempotencyOption) (*idempotency[pair], http.Handler) {
	t.Helper()
	store := memstore.New()
	t.Cleanup(func() { _ = store.Close() })
	g := must(guard.New(store, "orders"))
	m := newIdempotency(netHTTP{}, "nethttp", g, byUser{}, opts)
	return m, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { _ = recover() }()
		_ = m.serve(pair{w, r}, func(c pair) error {
			next(c.w, c.r)
			return nil
		})
	})
}

// Every end of a request returns the budget of its body.
func TestBudgetOfABodyIsReturned(t *testing.T) {
	own := policy.Fingerprint(func(*http.Request, []byte) ([]byte, error) { return nil, nil })
	failing := policy.Fingerprint(func(*http.Request, []byte) ([]byte, error) { return nil, errors.New("no") })
	panicking := policy.Fingerprint(func(*http.Request, []byte) ([]byte, error) { panic("no") })
	keyed := KeyFrom(func(c pair) (string, error) { return c.r.Header.Get("X-Event"), nil })
	long := strings.Repeat("x", 5000)
	for name, c := range map[string]struct {
		body   io.Reader
		next   http.HandlerFunc
		opts   []policy.IdempotencyOption
		event  string
		status int
		room   int64 // 0 for enough
		share  int64 // of the scope, 0 for enough
	}{
		"answered":         {body: strings.NewReader(long), status: 200},
		"a panic":          {body: strings.NewReader(long), next: func(http.ResponseWriter, *http.Request) { panic("no") }, status: 200},
		"too large":        {body: strings.NewReader(long + long), status: 413},
		"no length":        {body: iotest.OneByteReader(strings.NewReader(long + long)), status: 413},
		"broken off":       {body: io.MultiReader(strings.NewReader(long), iotest.ErrReader(io.ErrUnexpectedEOF)), status: 400},
		"no room":          {body: strings.NewReader(long), status: 503, room: 500},
		"no room for two":  {body: strings.NewReader(long), opts: []policy.IdempotencyOption{own}, status: 503, room: 5000},
		"no share":         {body: strings.NewReader(long), status: 429, share: 500},
		"no share for two": {body: strings.NewReader(long), opts: []policy.IdempotencyOption{own}, status: 429, share: 5000},
		"no share at last": {body: strings.NewReader(long), opts: []policy.IdempotencyOption{keyed}, event: "k", status: 429, share: 500},
		"a key in it":      {body: strings.NewReader(long), opts: []policy.IdempotencyOption{keyed}, event: "k", status: 200},
		"a fingerprint":    {body: strings.NewReader(long), opts: []policy.IdempotencyOption{own}, status: 200},
		"no fingerprint":   {body: strings.NewReader(long), opts: []policy.IdempotencyOption{failing}, status: 400},
		"panic over it":    {body: strings.NewReader(long), opts: []policy.IdempotencyOption{panicking}, status: 200},
		"without a key":    {body: strings.NewReader(long), opts: []policy.IdempotencyOption{keyed}, status: 200},
		"a key is missing": {body: strings.NewReader(long), opts: []policy.IdempotencyOption{keyed, policy.Required()}, status: 400},
	} {
		t.Run(name, func(t *testing.T) {
			used := int64(-1)
			var m *idempotency[pair]
			next := func(w http.ResponseWriter, r *http.Request) {
				used = m.bodies.used.Load()
				if c.next != nil {
					c.next(w, r)
				}
			}
			m, h := guarded(t, next, append([]policy.IdempotencyOption{policy.MaxBody(8000)}, c.opts...)...)
			if c.room > 0 {
				m.bodies.max = c.room
			}
			if c.share > 0 {
				m.shares.max = c.share
			}
			for n := range 3 {
				r := httptest.NewRequest(http.MethodPost, "/", c.body)
				r.Header.Set("Idempotency-Key", fmt.Sprint("k", n))
				r.Header.Set("X-Event", c.event)
				r.Header.Set("X-User", "u")
				w := httptest.NewRecorder()
				h.ServeHTTP(w, r)
				if n == 0 && w.Code != c.status {
					t.Errorf("status %d, want %d", w.Code, c.status)
				}
				if n == 0 && used >= 0 && used < 5000-free {
					t.Errorf("a body of 5000 bytes has taken %d", used)
				}
			}
			if left := m.bodies.used.Load(); left != 0 {
				t.Errorf("%d bytes are not given back", left)
			}
			if left := m.shares.byScope; len(left) != 0 {
				t.Errorf("not given back are %v", left)
			}
		})
	}
}

// Clients that do not end their bodies take bounded memory, and a body counts as its bytes.
func TestSlowClientsTakeBoundedMemory(t *testing.T) {
	const bodies, clients = 8 << 20, 40
	m, h := guarded(t, func(http.ResponseWriter, *http.Request) {}, policy.MaxBodies(bodies))
	server := httptest.NewServer(h)
	defer server.Close()
	before := heap()
	sent := strings.Repeat("x", 1<<20-1)
	refused := make(chan struct{}, clients)
	for i := range clients {
		conn := must(net.Dial("tcp", server.Listener.Addr().String()))
		defer conn.Close() //nolint:errcheck // a test's
		_, err := fmt.Fprintf(conn, "POST / HTTP/1.1\r\nHost: example.com\r\nIdempotency-Key: %d\r\nContent-Length: %d\r\n\r\n", i, 1<<20)
		if err != nil {
			t.Fatal(err)
		}
		go func() {
			_, _ = io.WriteString(conn, sent)
			answer := make([]byte, 12)
			_, _ = io.ReadFull(conn, answer)
			if string(answer) == "HTTP/1.1 503" {
				refused <- struct{}{}
			}
		}()
	}
	for range clients - bodies>>20 {
		select {
		case <-refused:
		case <-time.After(10 * time.Second):
			t.Fatalf("%d clients are refused, %d bytes are taken", clients-len(refused), m.bodies.used.Load())
		}
	}
	used := m.bodies.used.Load()
	grown := heap() - before
	t.Logf("%d clients take %d bytes, the heap grew by %d", clients, used, grown)
	if used > bodies || grown > bodies+clients<<16 {
		t.Errorf("%d bytes are taken, and the heap grew by %d", used, grown)
	}
}

func heap() int64 {
	var s runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&s)
	return int64(s.HeapAlloc) //nolint:gosec // it is not that large
}
