package main

import (
	"context"
	"io"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestMain(m *testing.M) {
	redis.SetLogger(quiet{})
	leaktest.Main(m)
}

// testTTL is long enough for a renewal not to be late on a busy machine.
const testTTL = 1500 * time.Millisecond

// want is the text of every row, in order.
var want = []struct{ classic, keeper string }{
	{"BROKEN: the key has no expiry: locked forever", `ok: the lock and its expiry are one step: B had it after \S+`},
	{"BROKEN: B took A's lock for expired: two holders", `ok: B was refused: clients send durations, never times of their clocks`},
	{"BROKEN: C's GETSET replaced B's expiry, and B could not release: locked, without a holder", `ok: B and C had the lock one after the other, and released it`},
	{lateText, keptText},
	{outlivedText, renewedText},
	{lateText, keptText},
	{outlivedText, renewedText},
	{lateText, keptText},
	{`COSTLY: B sent \d{2,} requests in [0-9.]+s of waiting`, `ok: B sent \d{1,2} requests in [0-9.]+s of waiting`},
	{outlivedText, renewedText},
	{"BROKEN: A, awake again, overwrote what B had written", `FENCED: A's write was refused: its fence was lower than B's`},
	{"BROKEN: the new master knew nothing of A's lock: two holders", `FENCED: two holders for \S+, until A's renewal; A's write was refused: its fence was lower than B's`},
	{"BROKEN: B's majority shared only that master with A's: two holders", `ok: a master that may have forgotten has no vote: B got the lock when A's lease was over`},
	{"BROKEN: the task was gone with A: B found none",
		`ok: B had the task after \S+, when A's lease was over; A got ErrLost`},
	{"BROKEN: the key expired while nobody listened: B was never notified",
		`ok: the store has the task: B, which took it later, had it \S+ late`},
	{`BROKEN: B took one \S+ too early; C left one that had been due for \S+`,
		`ok: B had it \S+ late by the server's clock: clients send durations, never times of their clocks`},
	{`BROKEN: due for \S+, and still in the set: the consumer's list stayed empty`,
		`ok: the consumer had it \S+ late: a take looks at the set itself`},
}

const (
	lateText     = "BROKEN: A deleted B's lock, and C got it: two holders"
	outlivedText = "BROKEN: A's lock expired while it worked, unnoticed: two holders"
	keptText     = "ok: A got ErrLost; B kept the lock, C was refused"
	renewedText  = "ok: A's lease of [0-9.]+s was renewed for [0-9.]+s of work; B waited"
)

func check(t *testing.T, rows []row) {
	t.Helper()
	if len(rows) != len(want) {
		t.Fatalf("%d rows; want %d", len(rows), len(want))
	}
	for i, r := range rows {
		for _, side := range []struct{ by, got, want string }{
			{"the scheme", r.classic.String(), want[i].classic},
			{"Lockkeeper", r.keeper.String(), want[i].keeper},
		} {
			if !regexp.MustCompile("^" + side.want + "$").MatchString(side.got) {
				t.Errorf("%s, %s: %s: %q; want %q", r.trial.scheme, r.trial.name, side.by, side.got, side.want)
			}
		}
	}
}

func TestTrials(t *testing.T) {
	testpace.Parallel(t)
	rows, err := playAll(t.Context(), nil, testTTL)
	if err != nil {
		t.Fatal(err)
	}
	check(t, rows)

	var out strings.Builder
	if err := writeTable(&out, rows); err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSpace(out.String()), "\n")
	for _, line := range lines {
		if len(line) != len(lines[0]) {
			t.Errorf("a line of another length: %q", line)
		}
	}
	for _, words := range []string{"| Redlock on five masters ", "| BROKEN: the key has no expiry: ", " | FENCED: A's write was refused: its "} {
		if !strings.Contains(out.String(), words) {
			t.Errorf("the table does not have %q", words)
		}
	}
}

func TestRunOnRedis(t *testing.T) {
	testpace.Parallel(t)
	server := redistest.Start(t)
	client := server.Client()
	if err := client.Set(t.Context(), "mine", "kept", 0).Err(); err != nil {
		t.Fatal(err)
	}
	var out, errs strings.Builder
	code := run([]string{"-redis", server.URL(), "-ttl", testTTL.String()}, &out, &errs)
	if code != 0 || errs.Len() > 0 {
		t.Fatalf("exit code %d\n%s%s", code, out.String(), errs.String())
	}
	want := "\n17 trials: 16 broken and 1 costly; with Lockkeeper 0 and 0, and 2 left to the fence\n"
	if !strings.HasSuffix(out.String(), want) {
		t.Errorf("%s\nshould end with %q", out.String(), want)
	}
	if keys, err := client.Keys(t.Context(), "*").Result(); err != nil || len(keys) != 1 || keys[0] != "mine" {
		t.Errorf("left on the server: %v, %v", keys, err)
	}
}

func TestRunRefuses(t *testing.T) {
	for _, args := range [][]string{{"-redis", "nowhere"}, {"-ttl", "1ms"}, {"more"}, {"-unknown"}} {
		if code := run(args, io.Discard, io.Discard); code != 2 {
			t.Errorf("%v: exit code %d; want 2", args, code)
		}
	}
	if code := run([]string{"-redis", "redis://127.0.0.1:1/0"}, io.Discard, io.Discard); code != 1 {
		t.Error("no server is no failure")
	}
}

func TestSummary(t *testing.T) {
	for v, want := range map[verdict]bool{sound: true, fenced: true, costly: false, broken: false, "": false} {
		if text, ok := summary([]row{{keeper: finding{sound, ""}}, {keeper: finding{v, ""}}}); ok != want {
			t.Errorf("%q: %v, %s", v, ok, text)
		}
	}
}

// A row claims that the clients of Lockkeeper send no times: a client that sends one is detected.
func TestTimesSent(t *testing.T) {
	s, err := newStage(nil, "test", testTTL)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	p := s.process()
	l := &setnxGetset{client: p.client, key: s.key("lock"), ttl: s.ttl, now: time.Now}
	if err := got(l.lock(t.Context())); err != nil {
		t.Fatal(err)
	}
	if len(p.timesSent()) == 0 {
		t.Error("a lock that is a time was not seen")
	}
	now := time.Now()
	for _, n := range []any{now.Unix(), now.UnixMilli() + 5000, now.UnixMicro(), now.UnixNano(), float64(now.UnixMicro()) / 1e6} {
		if len(timesIn([]any{"set", n}, now)) != 1 {
			t.Errorf("%v is a time", n)
		}
	}
	if times := timesIn([]any{"set", 0, 2_000_000, "2000000", "x", []byte("1")}, now); len(times) > 0 {
		t.Errorf("durations are no times: %v", times)
	}
}

func TestProcess(t *testing.T) {
	s, err := newStage(nil, "test", testTTL)
	if err != nil {
		t.Fatal(err)
	}
	defer s.close()
	p, other := s.process(), s.process()
	late, err := p.lateCall(t.Context(), "set", func(ctx context.Context) error { return p.client.Set(ctx, "key", "late", 0).Err() })
	if err != nil {
		t.Fatal(err)
	}
	// The whole process is paused, and only for as long as its context lasts.
	soon, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := p.client.Ping(soon).Err(); err == nil {
		t.Error("a paused process sent something")
	}
	if got := other.client.Exists(t.Context(), "key").Val(); got != 0 {
		t.Error("a paused process wrote")
	}
	if err := late(); err != nil {
		t.Error(err)
	}
	if got := other.client.Get(t.Context(), "key").Val(); got != "late" {
		t.Errorf("a process that woke wrote %q", got)
	}
	p.dieBefore("get")
	if err := p.client.Ping(t.Context()).Err(); err != nil {
		t.Errorf("it ends too early: %v", err)
	}
	for range 2 {
		if err := p.client.Get(t.Context(), "key").Err(); err != errDied {
			t.Errorf("a dead process replies: %v", err)
		}
	}
}
