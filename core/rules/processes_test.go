package rules_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/core/rules"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

const followerRedis = "LOCKKEEPER_TEST_FOLLOWER_REDIS"

func redisStore(t *testing.T, addr string) store.Store {
	t.Helper()
	client := redis.NewClient(&redis.Options{Addr: addr, ContextTimeoutEnabled: true})
	st, err := redisstore.New(client, redisstore.WithTimeout(10*time.Second)) // of a busy machine
	ok(t, err)
	t.Cleanup(func() { _, _ = st.Close(), client.Close() })
	return st
}

// TestFollower is a process of TestOffReachesAllProcesses: it denies until its rules are off, and then
// allows without the store.
func TestFollower(t *testing.T) {
	addr := os.Getenv(followerRedis)
	if addr == "" {
		t.Skip("part of TestOffReachesAllProcesses")
	}
	st := redisStore(t, addr)
	api := must(tokenbucket.New(st, "api", tokenbucket.PerDay(1)))
	open(t, rules.Store(st, "shop"), rules.For(api))
	must(api.Allow(t.Context(), "k"))
	for denied := false; ; <-time.After(time.Millisecond) {
		d := must(api.Allow(t.Context(), "k"))
		if !denied && !d.Allowed {
			denied = true
			fmt.Println("follower denies")
		}
		if denied && d.Allowed {
			fmt.Println("follower allows")
			return
		}
	}
}

// A switch at the top of the document, as for an incident, is in force in all processes within 6 s.
func TestOffReachesAllProcesses(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	st := redisStore(t, server.Addr())
	version := must(rules.Push(t.Context(), st, "shop", []byte(limitOf(1)), 0, "ann", ""))
	var followers []*bufio.Scanner
	says := func(i int, want string) {
		t.Helper()
		for followers[i].Scan() {
			if _, text, found := strings.Cut(followers[i].Text(), "follower "); found && text == want {
				return
			}
		}
		t.Fatalf("process %d has ended before it %s", i, want)
	}
	for range 4 {
		cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestFollower$", "-test.timeout=2m") //nolint:gosec // the test's own binary
		cmd.Env = append(os.Environ(), followerRedis+"="+server.Addr())
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		ok(t, err)
		ok(t, cmd.Start())
		t.Cleanup(func() { _ = cmd.Wait() })
		followers = append(followers, bufio.NewScanner(out))
	}
	for i := range followers {
		says(i, "denies")
	}
	must(rules.Push(t.Context(), st, "shop", []byte("mode: off\n"+limitOf(1)), version, "ann", "an incident"))
	pushed := time.Now()
	for i := range followers {
		says(i, "allows")
	}
	took := time.Since(pushed)
	t.Logf("it is in force everywhere after %v", took)
	if took > testpace.Scale(6*time.Second) {
		t.Errorf("it takes %v", took)
	}
}
