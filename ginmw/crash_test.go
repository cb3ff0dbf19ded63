package ginmw_test

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/ginmw"
	"github.com/lockkeeper/lockkeeper/ginmw/idempotency"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// The variables of the process that is to be killed.
const (
	crashRedis = "IDEMPOTENCY_TEST_CRASH_REDIS"
	crashRerun = "IDEMPOTENCY_TEST_CRASH_RERUN"
)

// crashLease is long enough for a request after the process is killed.
var crashLease = testpace.Scale(2 * time.Second)

// instance is a server with a guarded route that counts its runs in Redis; the first run never
// ends.
func instance(client *redis.Client, rerun bool) (http.Handler, error) {
	store, err := redisstore.New(client, redisstore.WithTimeout(10*time.Second)) // a busy machine is no outage
	if err != nil {
		return nil, err
	}
	opts := []guard.Option{guard.WithTTL(crashLease)}
	if rerun {
		opts = append(opts, guard.WithRerun())
	}
	g, err := guard.New(store, "crash", opts...)
	if err != nil {
		return nil, err
	}
	r := gin.New()
	r.POST("/pay", idempotency.New(g, ginmw.Unscoped()), func(c *gin.Context) {
		ctx := c.Request.Context()
		if client.Incr(ctx, "runs").Val() == 1 {
			select {} // until the process is killed
		}
		attempt, _ := guard.FromContext(ctx)
		c.String(http.StatusCreated, "attempt %d", attempt.Number())
	})
	return r, nil
}

// TestCrashingProcess is the process that TestProcessKilled kills.
func TestCrashingProcess(t *testing.T) {
	addr := os.Getenv(crashRedis)
	if addr == "" {
		t.Skip("runs as a process of TestProcessKilled")
	}
	h := must(instance(redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: addr}), os.Getenv(crashRerun) != ""))
	server := httptest.NewServer(h)
	fmt.Println("listening on", server.URL)
	select {}
}

func TestProcessKilled(t *testing.T) {
	for _, rerun := range []bool{true, false} {
		t.Run("rerun="+strconv.FormatBool(rerun), func(t *testing.T) {
			t.Parallel()
			testProcessKilled(t, rerun)
		})
	}
}

func testProcessKilled(t *testing.T, rerun bool) {
	server := redistest.Start(t)
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: server.Addr(), ReadTimeout: 10 * time.Second})
	t.Cleanup(func() { _ = client.Close() })
	kill, url := startCrashing(t, server.Addr(), rerun)

	hung := make(chan struct{})
	go func() {
		defer close(hung)
		if resp, err := (&http.Transport{DisableKeepAlives: true}).RoundTrip(pay(url)); err == nil {
			_ = resp.Body.Close()
		}
	}()
	eventually(t, "the first attempt runs", func() bool { return client.Get(context.Background(), "runs").Val() == "1" })
	kill()
	<-hung

	h := must(instance(client, rerun))
	repeat := func(status int, body string) *httptest.ResponseRecorder {
		t.Helper()
		w := httptest.NewRecorder()
		h.ServeHTTP(w, pay("http://other"))
		if w.Code != status || !strings.Contains(w.Body.String(), body) {
			t.Errorf("%d %s, want %d %s", w.Code, w.Body, status, body)
		}
		return w
	}
	if repeat(http.StatusConflict, "in-flight").Header().Get("Retry-After") == "" {
		t.Error("no Retry-After before the dead attempt's lease has expired")
	}
	<-time.After(crashLease)
	if rerun {
		if isReplay(repeat(http.StatusCreated, "attempt 2")) || !isReplay(repeat(http.StatusCreated, "attempt 2")) {
			t.Error("the second attempt is a replay, or is not replayed")
		}
	} else {
		for range 3 {
			repeat(http.StatusConflict, "outcome-unknown")
			<-time.After(crashLease / 2)
		}
	}
	if runs, want := client.Get(context.Background(), "runs").Val(), map[bool]string{true: "2", false: "1"}[rerun]; runs != want {
		t.Errorf("the handler ran %s times, want %s", runs, want)
	}
}

func pay(url string) *http.Request {
	req, err := http.NewRequest(http.MethodPost, url+"/pay", strings.NewReader("{}"))
	if err != nil {
		panic(err)
	}
	req.GetBody = nil
	req.Host = "shop.example" // whichever process it is sent to
	req.Header.Set("Idempotency-Key", "k1")
	return req
}

// startCrashing starts a process with an instance. It returns a function that kills it.
func startCrashing(t *testing.T, redisAddr string, rerun bool) (kill func(), url string) {
	t.Helper()
	cmd := exec.Command(os.Args[0], "-test.run=^TestCrashingProcess$", "-test.timeout=1m")
	cmd.Env = append(os.Environ(), crashRedis+"="+redisAddr)
	if rerun {
		cmd.Env = append(cmd.Env, crashRerun+"=1")
	}
	out := must(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	kill = func() {
		_ = cmd.Process.Kill() // SIGKILL
		_ = cmd.Wait()
	}
	t.Cleanup(kill)
	for lines := bufio.NewScanner(out); lines.Scan(); {
		if _, url, ok := strings.Cut(lines.Text(), "listening on "); ok {
			return kill, url
		}
	}
	t.Fatal("the process did not come up")
	return nil, ""
}
