package ratelimit_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/nethttp"
	"github.com/lockkeeper/lockkeeper/nethttp/ratelimit"
)

const crashRedis, crashUses = "RATELIMIT_CRASH_REDIS", "RATELIMIT_CRASH_USES"

// llmOn returns a limiter of a thousand tokens a day.
func llmOn(addr string) (*tokenbucket.Limiter, func()) {
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	store, err := redisstore.New(client, patient)
	if err != nil {
		panic(err)
	}
	limiter, err := tokenbucket.New(store, "tokens", tokenbucket.PerDay(1000))
	if err != nil {
		panic(err)
	}
	return limiter, func() {
		_ = store.Close()
		_ = client.Close()
	}
}

// TestKilledProcess is a process whose handler reports what it has used, and is killed then.
func TestKilledProcess(t *testing.T) {
	addr := os.Getenv(crashRedis)
	if addr == "" {
		t.Skip("runs as a process of another test")
	}
	limiter, _ := llmOn(addr)
	estimate := ratelimit.Costs(func(*http.Request) tokenbucket.Cost { return tokenbucket.Cost{"tokens": 300} })
	server := httptest.NewServer(ratelimit.New(limiter, nethttp.Global(), estimate)(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if used, err := strconv.ParseInt(os.Getenv(crashUses), 10, 64); err == nil {
			reservation, _ := tokenbucket.FromContext(r.Context())
			fmt.Println("reported", reservation.Use("tokens", used))
		}
		_, _ = io.WriteString(w, "first")
		_ = http.NewResponseController(w).Flush()
		select {}
	})))
	fmt.Println("listening on", server.URL)
	select {}
}

// A process that is killed while a handler runs leaves the estimate, whatever was reported to it.
func TestAKilledProcessLeavesTheEstimate(t *testing.T) {
	t.Parallel()
	for _, used := range []string{"", "10", "900"} {
		t.Run("uses "+used, func(t *testing.T) {
			t.Parallel()
			server := redistest.Start(t)
			cmd := exec.Command(os.Args[0], "-test.run=^TestKilledProcess$", "-test.timeout=1m") //nolint:gosec // the test's own binary
			cmd.Env = append(os.Environ(), crashRedis+"="+server.Addr(), crashUses+"="+used)
			out, err := cmd.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := cmd.Start(); err != nil {
				t.Fatal(err)
			}
			kill := func() {
				_ = cmd.Process.Kill()
				_ = cmd.Wait()
			}
			defer kill()
			url := ""
			for lines := bufio.NewScanner(out); url == "" && lines.Scan(); {
				_, url, _ = strings.Cut(lines.Text(), "listening on ")
			}
			req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, nil)
			if err != nil {
				t.Fatal(err)
			}
			resp, err := http.DefaultClient.Do(req)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.ReadFull(resp.Body, make([]byte, len("first"))); err != nil {
				t.Fatal(err)
			}
			kill()
			_ = resp.Body.Close()

			limiter, end := llmOn(server.Addr())
			d, err := limiter.Peek(context.Background(), "global")
			if err != nil {
				t.Fatal(err)
			}
			left := d.Limits()[0].Remaining
			t.Logf("%q reported of 300 estimated: %d of 1000 left", used, left)
			if left != 700 {
				t.Errorf("%d are left, want 700", left)
			}
			end()
		})
	}
}
