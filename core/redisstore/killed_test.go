package redisstore_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// Payments by processes that are killed, or whose server is.

const (
	payerServer   = "GUARD_TEST_SERVER"
	payerProvider = "GUARD_TEST_PROVIDER" // its address; without one, effects are lines
	payerKeys     = "GUARD_TEST_KEYS"

	payerLease = time.Second
)

func payment(key string) guard.Operation {
	return guard.Operation{Scope: "alice", Key: key, Fingerprint: []byte(key)}
}

// TestPayer is a process that makes payments.
func TestPayer(t *testing.T) {
	if os.Getenv(payerServer) == "" {
		t.Skip("runs as a process of other tests")
	}
	client := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: os.Getenv(payerServer), PoolSize: 20})
	t.Cleanup(func() { _ = client.Close() })
	g := newGuard(t, newStore(t, client, redisstore.WithTimeout(time.Second)), guard.WithTTL(payerLease), guard.WithLogger(slog.New(slog.DiscardHandler)))
	keys := strings.Fields(os.Getenv(payerKeys))
	if provider := os.Getenv(payerProvider); provider != "" {
		payInSteps(g, provider, keys)
		return
	}
	var all sync.WaitGroup
	for _, key := range keys {
		all.Go(func() { payUntilKilled(g, key) })
	}
	all.Wait()
	fmt.Println("all done")
	_, _ = io.Copy(io.Discard, os.Stdin)
}

// payUntilKilled makes one payment, with pauses in which the process may be killed.
func payUntilKilled(g *guard.Guard, key string) {
	a, _, err := g.Begin(ctx(), payment(key))
	if err != nil {
		fmt.Println("failed", err)
		return
	}
	<-time.After(rand.N(60 * time.Millisecond))
	fmt.Println("effect", a.OperationID())
	<-time.After(rand.N(400 * time.Millisecond))
	_ = a.Complete(ctx(), guard.Result{Status: 201, Data: []byte("by the first")})
}

// payer is a process of TestPayer.
type payer struct {
	*exec.Cmd
	lines *bufio.Scanner
}

func startPayer(t *testing.T, server *redistest.Server, provider string, keys []string) payer {
	t.Helper()
	p := payer{Cmd: exec.Command(os.Args[0], "-test.run", "^TestPayer$", "-test.timeout", "60s")}
	p.Env = append(os.Environ(), payerServer+"="+server.Addr(), payerProvider+"="+provider, payerKeys+"="+strings.Join(keys, " "))
	stdin, err := p.StdinPipe()
	must(t, err)
	t.Cleanup(func() { _ = stdin.Close() })
	stdout, err := p.StdoutPipe()
	must(t, err)
	p.Stderr = os.Stderr
	must(t, p.Start())
	t.Cleanup(func() { _ = p.Process.Kill(); _ = p.Wait() })
	p.lines = bufio.NewScanner(stdout)
	return p
}

// fakeProvider counts the effects of operations.
type fakeProvider struct {
	mu      sync.Mutex
	effects map[string]int // by the operation's ID
}

func (p *fakeProvider) charge(id string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.effects[id]++
}

func (p *fakeProvider) has(id string) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.effects[id] > 0
}

// killed kills processes while they make payments, until there were that many, and returns their keys.
// Each effect is one of the provider's.
func (p *fakeProvider) killed(t *testing.T, server *redistest.Server, name string, payments int) (keys []string) {
	t.Helper()
	const each = 20
	for len(keys) < payments {
		var both sync.WaitGroup
		for range 2 {
			var mine []string
			for range each {
				mine = append(mine, fmt.Sprint(name, len(keys)+len(mine)))
			}
			keys = append(keys, mine...)
			process := startPayer(t, server, "", mine)
			both.Go(func() {
				first := true
				for process.lines.Scan() {
					id, effect := strings.CutPrefix(process.lines.Text(), "effect ")
					if effect {
						p.charge(id)
					}
					if effect && first {
						first = false
						time.AfterFunc(rand.N(200*time.Millisecond), func() { _ = process.Process.Kill() })
					}
				}
			})
		}
		both.Wait() // the provider has every line that was written
	}
	return keys
}

// The outcomes of a killed process are found out by asking the provider: none stays unknown, and no
// customer pays twice.
func TestKilledPaymentsAreReconciled(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	provider := &fakeProvider{effects: make(map[string]int)}
	keys := provider.killed(t, server, "k", 200)

	var mu sync.Mutex
	asked := 0
	ask := guard.WithReconcile(func(_ context.Context, r guard.Record) (guard.Resolution, error) {
		mu.Lock()
		defer mu.Unlock()
		if asked++; provider.has(r.ID) {
			return guard.Happened(guard.Result{Status: 201, Data: []byte("found")}), nil
		}
		return guard.NeverHappened(), nil
	})
	var all sync.WaitGroup
	ran, replayed := 0, 0
	for range 2 { // instances
		g := newGuard(t, newStore(t, server.Client()), guard.WithTTL(payerLease), guard.WithLogger(slog.New(slog.DiscardHandler)), ask)
		for _, key := range keys {
			all.Go(func() {
				op := payment(key)
				op.Wait = 20 * time.Second
				a, r, err := g.Begin(ctx(), op)
				mu.Lock()
				defer mu.Unlock()
				switch {
				case err != nil:
					t.Errorf("%s: %v", key, err)
				case r != nil:
					replayed++
				default:
					ran++
					provider.charge(a.OperationID())
					if err := a.Complete(ctx(), guard.Result{Status: 201}); err != nil {
						t.Errorf("%s: %v", key, err)
					}
				}
			})
		}
	}
	all.Wait()
	t.Logf("%d payments: %d outcomes were found out, %d ran again, %d were replayed", len(keys), asked, ran, replayed)
	if asked < 20 {
		t.Errorf("only %d outcomes were unknown", asked)
	}
	provider.wantOnce(t, len(keys))
}

func (p *fakeProvider) wantOnce(t *testing.T, payments int) {
	t.Helper()
	if len(p.effects) != payments {
		t.Errorf("%d of %d payments had an effect", len(p.effects), payments)
	}
	for id, n := range p.effects {
		if n != 1 {
			t.Errorf("%s had %d effects", id, n)
		}
	}
}

// Without a function that finds it out, what a killed process leaves is listed, and an operator settles
// it.
func TestKilledPaymentsAreListed(t *testing.T) {
	t.Parallel()
	server := redistest.Start(t)
	provider := &fakeProvider{effects: make(map[string]int)}
	g := newGuard(t, newStore(t, server.Client()), guard.WithTTL(payerLease), guard.WithLogger(slog.New(slog.DiscardHandler)))
	keys := provider.killed(t, server, "k", 80)
	killed := time.Now()
	left := make(map[string]string) // the keys of those in flight, by ID
	for _, key := range keys {
		r, err := g.Inspect(ctx(), payment(key))
		if err == nil && r.State == guard.InFlight {
			left[r.ID] = key
		} else if err != nil && !errors.Is(err, guard.ErrNoRecord) {
			t.Fatal(err)
		}
	}
	if len(left) < 10 {
		t.Fatalf("only %d payments were killed in flight", len(left))
	}
	var listed []guard.Record
	eventually(t, time.Until(killed.Add(payerLease+time.Second)), "all are listed", func() bool {
		listed = listed[:0]
		for r, err := range g.Unresolved(ctx()) {
			must(t, err)
			listed = append(listed, r)
		}
		return len(listed) == len(left)
	})
	for i, r := range listed {
		key, ok := left[r.ID]
		if !ok {
			t.Fatalf("listed %+v, which is not in flight", r)
		}
		happened := provider.has(r.ID)
		how := guard.NeverHappened()
		switch {
		case happened && i%2 == 0:
			how = guard.Happened(guard.Result{Status: 201, Data: []byte("found")})
		case happened:
			how = guard.HappenedAnswerLost(201)
		}
		must(t, g.Resolve(ctx(), r, how, "ops", "asked the provider"))
		if err := g.Resolve(ctx(), r, guard.NeverHappened(), "ops", "stale"); !errors.Is(err, guard.ErrChanged) {
			t.Errorf("resolved from a stale view: %v", err)
		}
		a, result, err := g.Begin(ctx(), payment(key))
		switch {
		case !happened:
			if a == nil || a.Number() != 2 {
				t.Fatalf("never happened: %v, %v, %v", a, result, err)
			}
			provider.charge(a.OperationID())
			must(t, a.Complete(ctx(), guard.Result{}))
		case i%2 == 0:
			if result == nil || string(result.Data) != "found" {
				t.Errorf("happened: %v, %v, %v", a, result, err)
			}
		case !errors.Is(err, guard.ErrNotRetained):
			t.Errorf("answer lost: %v, %v, %v", a, result, err)
		}
	}
	for r, err := range g.Unresolved(ctx()) {
		t.Errorf("still listed: %+v, %v", r, err)
	}
	for id, n := range provider.effects {
		if n != 1 {
			t.Errorf("%s had %d effects", id, n)
		}
	}
	t.Logf("%d payments, %d in flight when their processes were killed", len(keys), len(left))
}

// payInSteps makes payments, each of which is a charge and a shipment, and prints their results. It
// repeats the ones that fail.
func payInSteps(g *guard.Guard, provider string, keys []string) {
	var all sync.WaitGroup
	room := make(chan struct{}, 16)
	for _, key := range keys {
		room <- struct{}{}
		all.Go(func() {
			defer func() { <-room }()
			for began := time.Now(); ; <-time.After(20 * time.Millisecond) {
				result, err := payOnce(g, provider, key)
				if err == nil {
					fmt.Println("paid", key, result)
					return
				}
				if time.Since(began) > 20*time.Second { // unknown is one whose abandon the server has not confirmed yet
					fmt.Println("failed", key, err)
					return
				}
			}
		})
	}
	all.Wait()
	http.DefaultClient.CloseIdleConnections()
}

func payOnce(g *guard.Guard, provider, key string) (string, error) {
	op := payment(key)
	op.Wait = 5 * time.Second
	a, r, err := g.Begin(ctx(), op)
	if err != nil {
		return "", err
	}
	if r != nil {
		return string(r.Data), nil
	}
	var result []string
	for _, name := range []string{"charge", "ship"} {
		got, err := guard.Step(a.Context(), a, name, func(context.Context) (string, error) {
			reply, err := http.Get(provider + "?key=" + url.QueryEscape(a.DownstreamKey("psp", name)))
			if err != nil {
				return "", err
			}
			defer func() { _ = reply.Body.Close() }()
			body, err := io.ReadAll(reply.Body)
			return string(body), err
		})
		if err != nil {
			_ = a.Abandon(ctx()) // its effects are all in steps
			return "", err
		}
		result = append(result, got)
	}
	data := strings.Join(result, ",")
	_ = a.Complete(ctx(), guard.Result{Data: []byte(data)}) // retried in the background
	return data, nil
}

// With steps, and a provider that recognises repeats, every effect happens once, whatever happens to
// the server.
func TestStepsWhileTheServerIsKilled(t *testing.T) {
	t.Parallel()
	const operations, duplicates, processes = 1000, 5, 3
	server := redistest.Start(t, "--appendonly", "yes")
	var mu sync.Mutex
	calls, effects := 0, make(map[string]int)
	reached := []chan struct{}{make(chan struct{}), make(chan struct{})}
	provider := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		key := r.FormValue("key")
		if calls++; effects[key] == 0 {
			effects[key] = len(effects) + 1 // the first call has the effect, and all have its answer
			for i, c := range reached {
				if len(effects) == (i+1)*2*operations/3 {
					close(c)
				}
			}
		}
		_, _ = fmt.Fprint(w, effects[key])
	}))
	t.Cleanup(provider.Close)

	var keys []string
	for i := range operations * duplicates {
		keys = append(keys, fmt.Sprint("k", i%operations))
	}
	rand.Shuffle(len(keys), func(i, j int) { keys[i], keys[j] = keys[j], keys[i] })
	results := make(map[string][]string)
	var all sync.WaitGroup
	for i := range processes {
		process := startPayer(t, server, provider.URL, keys[i*len(keys)/processes:(i+1)*len(keys)/processes])
		all.Go(func() {
			for process.lines.Scan() {
				words := strings.Fields(process.lines.Text())
				mu.Lock()
				switch {
				case len(words) == 3 && words[0] == "paid":
					results[words[1]] = append(results[words[1]], words[2])
				case len(words) > 0 && words[0] == "failed":
					t.Error(process.lines.Text())
				}
				mu.Unlock()
			}
		})
	}
	for _, c := range reached {
		select {
		case <-c:
		case <-time.After(30 * time.Second):
			t.Fatal("the payments take too long")
		}
		server.Stop()
		<-time.After(rand.N(500 * time.Millisecond))
		server.Restart()
	}
	all.Wait()
	if len(effects) != 2*operations {
		t.Errorf("%d effects, want %d", len(effects), 2*operations)
	}
	for key, all := range results {
		if slices.Sort(all); len(all) != duplicates || all[0] != all[len(all)-1] {
			t.Errorf("%s: results %q", key, all)
		}
	}
	if len(results) != operations {
		t.Errorf("%d operations have results", len(results))
	}
	t.Logf("%d operations, %d requests: %d effects by %d calls of the provider", operations, operations*duplicates, len(effects), calls)
}
