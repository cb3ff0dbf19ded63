package redisstore_test

import (
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/redistest"
)

func configure(t testing.TB, server *redis.Client, setting, value string) {
	t.Helper()
	if err := server.ConfigSet(ctx(), setting, value).Err(); err != nil {
		t.Fatal(err)
	}
}

func TestWhatWasBegunEndsThoughMemoryIsFull(t *testing.T) {
	server := redistest.Start(t)
	direct := server.Client()
	log := new(logbook)
	s := newStore(t, server.Client(), log.option())
	l := newLimiter(t, s)
	completed, small, abandoned, marked := newOp("completed"), newOp("small"), newOp("abandoned"), newOp("marked")
	for _, o := range []op{completed, small, abandoned, marked} {
		o.started(t, s)
	}
	configure(t, direct, "maxmemory", "1")

	for range 10 { // twice what trips the breaker
		_, err := l.Allow(ctx(), "k")
		wantUnavailable(t, err, false)
	}
	_, err := newOp("new").begin(s)
	wantUnavailable(t, err, false)

	for range 2 { // sent twice, all the same
		owned, err := marked.mark(s)
		wantOwned(t, "mark", owned, err)
		owned, err = marked.renew(s)
		wantOwned(t, "renew", owned, err)
		owned, err = abandoned.abandon(s)
		wantOwned(t, "abandon", owned, err)
		owned, err = completed.settle(s, strings.Repeat("large", 10_000))
		wantOwned(t, "settle", owned, err)
		owned, err = s.SettleOperation(ctx(), guard.SettleRequest{
			ID: small.id, Owner: small.owner, Fingerprint: small.fingerprint, Number: 1, State: guard.Unknown, Retention: 1e9,
		})
		wantOwned(t, "settle as unknown", owned, err)
	}
	if log.has(tripped) {
		t.Error("the breaker opened")
	}

	configure(t, direct, "maxmemory", "0")
	reply, err := completed.by("other").begin(s)
	if err != nil || reply.Outcome != guard.Settled || reply.State != guard.NotRetained || reply.Status != 201 || len(reply.Data) != 0 {
		t.Errorf("got %+v, %v; want a result that was not retained, with its status", reply, err)
	}
	abandoned.by("other").started(t, s)
	if got := remaining(t, direct, "k"); got != 100 {
		t.Errorf("%d tokens remain of 100: a refused charge was made", got)
	}
}

func TestEvictionIsRefusedByGuardsOnly(t *testing.T) {
	server := redistest.Start(t)
	direct := server.Client()
	configure(t, direct, "maxmemory-policy", "allkeys-lru")
	log := new(logbook)
	s := newStore(t, server.Client(), log.option())
	l, o := newLimiter(t, s), newOp("evicted")
	for range 10 { // twice what trips the breaker
		_, err := o.begin(s)
		wantUnavailable(t, err, false)
		if err == nil || !strings.Contains(err.Error(), "allkeys-lru") || !strings.Contains(err.Error(), "AllowEviction") {
			t.Fatalf("%v does not say what is wrong and what to do", err)
		}
		if _, err := l.Allow(ctx(), "k"); err != nil {
			t.Errorf("a token bucket: %v", err)
		}
	}
	if log.has(tripped) {
		t.Error("the breaker opened")
	}
	o.started(t, newStore(t, server.Client(), redisstore.AllowEviction()))
	configure(t, direct, "maxmemory-policy", "noeviction")
	newOp("kept").started(t, s)
}

func TestGuardsWarnWhereTheEvictionPolicyIsSecret(t *testing.T) {
	server := redistest.Start(t, "--user", "app", "on", ">secret", "~*", "&*", "+@all", "-config")
	client := redis.NewClient(&redis.Options{Addr: server.Addr(), Username: "app", Password: "secret"})
	t.Cleanup(func() { _ = client.Close() })
	log := new(logbook)
	newOp("secret").started(t, newStore(t, client, log.option()))
	if !log.has("maxmemory-policy") {
		t.Error("no warning")
	}
}
