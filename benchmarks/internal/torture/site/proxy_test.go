package site

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/benchmarks/internal/pgserver"
	"github.com/lockkeeper/lockkeeper/benchmarks/internal/redisserver"
)

func TestFrames(t *testing.T) {
	frames := []string{
		"+OK\r\n", ":1\r\n", "_\r\n", "$-1\r\n", "*-1\r\n", "$3\r\na\nb\r\n", "*2\r\n$1\r\na\r\n*1\r\n:2\r\n",
		"%1\r\n+a\r\n~2\r\n:1\r\n:2\r\n", ">3\r\n$7\r\nmessage\r\n$1\r\nc\r\n$1\r\nx\r\n", "|1\r\n+k\r\n+v\r\n*0\r\n", "=5\r\ntxt:a\r\n",
	}
	in := bufio.NewReader(strings.NewReader(strings.Join(frames, "")))
	for _, want := range frames {
		if raw, err := readFrame(in); string(raw) != want || err != nil {
			t.Errorf("%q, %v, want %q", raw, err, want)
		}
	}
	if raw, err := readFrame(in); !errors.Is(err, io.EOF) {
		t.Errorf("at the end: %q, %v", raw, err)
	}
	if name := commandName([]byte("*2\r\n$7\r\nEVALSHA\r\n$1\r\nx\r\n")); name != "evalsha" {
		t.Errorf("command %q", name)
	}
}

func TestProxy(t *testing.T) {
	if _, err := exec.LookPath("redis-server"); err != nil {
		if os.Getenv("LOCKKEEPER_REQUIRE_REDIS") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	ctx := context.Background()
	server, err := redisserver.Start(ctx)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Stop()
	p, err := NewProxy(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	direct := redis.NewClient(&redis.Options{Addr: server.Addr()})
	client := redis.NewClient(&redis.Options{
		Addr: p.Addr(), MaxRetries: -1, ReadTimeout: time.Second, ContextTimeoutEnabled: true, DisableIdentity: true,
	})
	defer func() { _, _ = direct.Close(), client.Close() }()
	increment := func() (int, error) {
		return client.Eval(ctx, "return redis.call('INCR', KEYS[1])", []string{"n"}).Int()
	}
	want := 0
	// with increments once without a fault, which connects the client, and once with one.
	with := func(r Rules) (int, error) {
		t.Helper()
		p.Set(Rules{})
		want++
		if n, err := increment(); n != want || err != nil {
			t.Errorf("without a fault: %d, %v, want %d", n, err, want)
		}
		p.Set(r)
		return increment()
	}
	has := func() {
		t.Helper()
		if err := Until(deadline(t), func() bool { n, _ := direct.Get(ctx, "n").Int(); return n == want }); err != nil {
			t.Errorf("it has not become %d: %v", want, direct.Get(ctx, "n"))
		}
	}
	n, err := with(Rules{RepeatRequests: 100})
	if want += 2; n != want || err != nil {
		t.Errorf("repeated: %d, %v, want %d", n, err, want)
	}
	for name, r := range map[string]Rules{
		"lost": {CutReplies: 100}, "silence": {Silence: 100}, "late": {LateRequests: 1500 * time.Millisecond},
	} {
		if n, err := with(r); err == nil {
			t.Errorf("%s: %d", name, n)
		}
		want++
		has()
	}
	if n, err := with(Rules{BlackHole: true}); err == nil {
		t.Errorf("black hole: %d", n)
	}
	has() // it has let nothing through
	p.Set(Rules{})
	want++
	has()

	inbox := client.Subscribe(ctx, "c")
	defer func() { _ = inbox.Close() }()
	if _, err := inbox.Receive(ctx); err != nil {
		t.Fatal(err)
	}
	var got string
	receive := func() {
		if m, err := inbox.ReceiveMessage(deadline(t)); err == nil {
			got += m.Payload
		}
	}
	before := p.Hits()
	p.Set(Rules{LosePushes: true})
	direct.Publish(ctx, "c", "a")
	if err := Until(deadline(t), func() bool { return p.Hits() > before }); err != nil {
		t.Error("the push has not been lost")
	}
	p.Set(Rules{RepeatPushes: true})
	direct.Publish(ctx, "c", "b")
	receive()
	receive()
	if got != "bb" {
		t.Errorf("received %q", got)
	}
	before = p.Hits()
	p.Cut()
	if p.Hits() == before {
		t.Error("no connection was cut")
	}
	want++
	if n, err := increment(); n != want || err != nil {
		t.Errorf("by a new connection: %d, %v, want %d", n, err, want)
	}
	p.Strand()
	if n, err := increment(); err == nil {
		t.Errorf("by a connection that leads nowhere: %d", n)
	}
	want++
	if n, err := increment(); n != want || err != nil {
		t.Errorf("by a new connection: %d, %v, want %d", n, err, want)
	}
}

func deadline(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func TestClock(t *testing.T) {
	if _, err := exec.LookPath("cc"); err != nil {
		t.Skip(err)
	}
	ctx := context.Background()
	s, err := Start(ctx, "redis", 1)
	if err != nil {
		t.Skip(err)
	}
	defer s.Stop()
	if s.Clock == nil {
		t.Fatal(s.Missing)
	}
	ahead := func() time.Duration {
		now, err := s.Servers[0].Admin.Time(ctx).Result()
		if err != nil {
			t.Fatal(err)
		}
		return time.Until(now).Round(5 * time.Second)
	}
	for _, step := range []time.Duration{time.Hour, -2 * time.Hour} {
		before := ahead()
		if err := s.Clock.Step(step); err != nil {
			t.Fatal(err)
		}
		if after := ahead(); after-before != step {
			t.Errorf("the clock was ahead by %v, and by %v after a step of %v", before, after, step)
		}
	}
}

// A PostgreSQL server behind a proxy: whatever is lost is the reply, and not the statement.
func TestPostgresProxy(t *testing.T) {
	ctx := context.Background()
	server, err := pgserver.Start(ctx)
	if err != nil {
		if os.Getenv("LOCKKEEPER_REQUIRE_POSTGRES") == "1" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	defer server.Stop()
	p, err := NewPostgresProxy(server.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	connect := func(addr string) *pgx.Conn {
		settings, err := pgx.ParseConfig(pgserver.DSN(addr, pgserver.Superuser))
		if err != nil {
			t.Fatal(err)
		}
		// By another connection the client would cancel what it has given up.
		var dialled atomic.Bool
		dial := settings.DialFunc
		settings.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
			if dialled.Swap(true) {
				return nil, net.ErrClosed
			}
			return dial(ctx, network, addr)
		}
		conn, err := pgx.ConnectConfig(ctx, settings)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close(ctx) })
		return conn
	}
	direct := connect(server.Addr())
	for _, sql := range []string{"CREATE TABLE counter (n int)", "INSERT INTO counter VALUES (0)"} {
		if _, err := direct.Exec(ctx, sql); err != nil {
			t.Fatal(err)
		}
	}
	increment := func(conn *pgx.Conn) (n int, err error) {
		ctx, cancel := context.WithTimeout(ctx, time.Second) // less than what is late, and enough for a statement
		defer cancel()
		err = conn.QueryRow(ctx, "UPDATE counter SET n = n + 1 RETURNING n", pgx.QueryExecModeExec).Scan(&n)
		return n, err
	}
	want := 0
	has := func(after string) {
		t.Helper()
		if err := Until(deadline(t), func() bool {
			var n int
			return direct.QueryRow(ctx, "SELECT n FROM counter").Scan(&n) == nil && n == want
		}); err != nil {
			t.Errorf("%s: it has not become %d: %v", after, want, err)
		}
	}
	for name, r := range map[string]Rules{
		"lost": {CutReplies: 100}, "silence": {Silence: 100}, "late request": {LateRequests: 2 * time.Second}, "late reply": {LateReplies: 2 * time.Second},
		"black hole": {BlackHole: true},
	} {
		p.Set(Rules{})
		conn := connect(p.Addr())
		want++
		if n, err := increment(conn); n != want || err != nil {
			t.Errorf("without a fault: %d, %v, want %d", n, err, want)
		}
		before := p.Hits()
		p.Set(r)
		if n, err := increment(conn); err == nil {
			t.Errorf("%s: %d", name, n)
		}
		if p.Hits() == before {
			t.Errorf("%s: no hit", name)
		}
		if r.BlackHole {
			has(name) // it has let nothing through
			p.Set(Rules{})
		}
		want++
		has(name)
	}

	p.Set(Rules{})
	stranded, other := connect(p.Addr()), connect(server.Addr())
	p.Strand()
	p.MoveTo("127.0.0.1:1")
	if n, err := increment(stranded); err == nil {
		t.Errorf("by a connection that leads nowhere: %d", n)
	}
	if conn, err := pgx.Connect(deadline(t), pgserver.DSN(p.Addr(), pgserver.Superuser)); err == nil {
		_ = conn.Close(ctx)
		t.Error("a new connection has not moved")
	}
	p.MoveTo(server.Addr())
	want++
	if n, err := increment(other); n != want || err != nil {
		t.Errorf("beside the proxy: %d, %v, want %d", n, err, want)
	}
	listening := connect(p.Addr())
	if _, err := listening.Exec(ctx, "LISTEN c"); err != nil {
		t.Fatal(err)
	}
	notify := func(text string) {
		if _, err := direct.Exec(ctx, "SELECT pg_notify('c', $1)", text); err != nil {
			t.Fatal(err)
		}
	}
	before := p.Hits()
	p.Set(Rules{LosePushes: true})
	notify("a")
	if err := Until(deadline(t), func() bool { return p.Hits() > before }); err != nil {
		t.Error("the notification has not been lost")
	}
	p.Set(Rules{RepeatPushes: true})
	notify("b")
	var got string
	for range 2 {
		if n, err := listening.WaitForNotification(deadline(t)); err == nil {
			got += n.Payload
		}
	}
	if got != "bb" {
		t.Errorf("received %q", got)
	}
	p.Cut()
	if n, err := increment(listening); err == nil {
		t.Errorf("over a cut connection: %d", n)
	}
}
