package script

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"slices"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/internal/breaker"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// newTestClient returns a client of a server.
func newTestClient(t *testing.T, server redis.UniversalClient) *Client {
	c := New(Config{
		Redis: server, PoolSize: 4, Timeout: time.Second, ProbeKey: "probe",
		CheckServer: func(context.Context, *redis.Client) error { return nil },
		Attach:      func(*Node) any { return nil },
		Logger:      slog.New(slog.DiscardHandler), ScopeName: "test", Operations: []Operation{{Name: "test"}},
	})
	t.Cleanup(c.Close)
	return c
}

// A refused password opens the breaker as well if all calls of a pipeline have it: every call
// fails, and each costs a connection.
func TestRefusedPasswordInAPipeline(t *testing.T) {
	script := NewScript("#!lua\nreturn 1")
	for name, password := range map[string]string{"refused": "secret", "not required": ""} {
		t.Run(name, func(t *testing.T) {
			process := redistest.Start(t)
			if err := process.Client().ConfigSet(t.Context(), "requirepass", password).Err(); err != nil {
				t.Fatal(err)
			}
			server := redis.NewClient(&redis.Options{ContextTimeoutEnabled: true, Addr: process.Addr()})
			t.Cleanup(func() { _ = server.Close() })
			c := newTestClient(t, server)
			n := c.Whole()
			n.loaded.Store(true) // otherwise loading finds the password
			results, _ := EvalEachOnce(t.Context(), n, Operation{Name: "test"}, Ordinary, []Call{script.Call([]string{"a"}), script.Call([]string{"b"})})
			for _, r := range results {
				if refused := store.CauseOf(r.Err) == store.Authentication; refused != (password != "") {
					t.Errorf("replied %v, %v", r.Reply, r.Err)
				}
			}
			if password != "" {
				testpace.Eventually(t, 5*time.Second, "the breaker opens", n.isDown)
			}
			if down := n.isDown(); down != (password != "") || len(results) != 2 {
				t.Errorf("%d results, the breaker is open: %v", len(results), down)
			}
		})
	}
}

// named is a request of this urgency.
type named struct {
	batch.Queued
	name    string
	urgency Urgency
}

func (*named) Work() int { return 1 }

// Queued requests fail at once when the breaker opens, unless they finish something.
func TestQueuedRequestsWhenTheBreakerOpens(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		server := redis.NewClient(&redis.Options{
			ContextTimeoutEnabled: true, Addr: "127.0.0.1:1", // a name would be looked up
			Dialer: func(context.Context, string, string) (net.Conn, error) { return nil, errors.New("no network") },
		})
		t.Cleanup(func() { _ = server.Close() })
		n := newTestClient(t, server).Whole()
		release := make(chan struct{})
		var sent []string
		b := NewBatcher(n, 10, func(_ context.Context, batch []*named) bool {
			for _, r := range batch {
				sent = append(sent, r.name)
				r.Finish(nil)
			}
			<-release
			return false
		})
		b.Few, b.Most = 1, 1
		ended := make(map[string]chan error)
		start := func(name string, u Urgency) {
			result := make(chan error, 1)
			ended[name] = result
			go func() { result <- b.Do(context.Background(), &named{name: name, urgency: u}, u) }()
			synctest.Wait()
		}
		start("in flight", Ordinary)
		start("ordinary", Ordinary)
		start("finishing", Finishing)

		call, err := n.breaker.Allow(false)
		if err != nil {
			t.Fatal(err)
		}
		call.End(syscall.ECONNREFUSED)
		close(release)
		for name, refused := range map[string]bool{"in flight": false, "ordinary": true, "finishing": false} {
			if err := <-ended[name]; breaker.Refused(err) != refused || !refused && err != nil {
				t.Errorf("%s: got %v; want it refused: %v", name, err, refused)
			}
		}
		if !slices.Equal(sent, []string{"in flight", "finishing"}) {
			t.Errorf("sent %q", sent)
		}
	})
}

// reply is an error that a server replies.
type reply string

func (r reply) Error() string { return string(r) }

func (reply) RedisError() {}

func TestAMovingSlotOpensNoBreaker(t *testing.T) {
	for text, works := range map[reply]bool{
		"TRYAGAIN Multiple keys request during rehashing of slot": true,
		"LOADING Redis is loading the dataset in memory":          false,
	} {
		if got := verdict(text) == nil; got != works {
			t.Errorf("%q means that the server works: %v", text, got)
		}
	}
}
