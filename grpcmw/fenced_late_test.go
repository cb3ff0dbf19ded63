package grpcmw_test

import (
	"context"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"

	"github.com/lockkeeper/lockkeeper/core/fence/redisfence"
	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/policy"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/grpcmw"
	"github.com/lockkeeper/lockkeeper/grpcmw/fenced"
	"github.com/lockkeeper/lockkeeper/grpcmw/internal/things"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// A holder is paused for longer than its lease, after its last check of the lease and before its
// write. With the interceptors on every server of the resource, the write is refused; without them
// it overwrites a later one.
func TestLateWriteOfAPausedHolder(t *testing.T) {
	server := redistest.Start(t)
	for name, c := range map[string]struct {
		guarded bool
		account string
	}{
		"fenced":   {true, "B"},
		"unfenced": {false, "A"},
	} {
		t.Run(name, func(t *testing.T) {
			client := server.Client()
			ok(t, client.FlushDB(t.Context()).Err())
			// Two instances of a service: nothing in their memory is shared.
			one, two := listenForAccounts(t, server.Client(), c.guarded), listenForAccounts(t, server.Client(), c.guarded)

			a := newHolderOn(t, server.Client(), lock.WithoutRenewal(), lock.WithTTL(testpace.Scale(200*time.Millisecond)))
			b := newHolderOn(t, server.Client())
			leaseOfA := must(a.Lock(t.Context(), "7"))
			before := context.WithoutCancel(leaseOfA.Context()) // A has checked its lease, and is paused
			leaseOfB := must(b.Lock(t.Context(), "7"))
			t.Cleanup(func() { _ = leaseOfB.Unlock(context.Background()) })
			if leaseOfA.Context().Err() == nil || leaseOfB.Fence().Number <= leaseOfA.Fence().Number {
				t.Fatalf("B has the lock with fence %v while A holds it with %v", leaseOfB.Fence(), leaseOfA.Fence())
			}

			byB, late := &things.MakeRequest{Id: "7", Data: []byte("B")}, &things.MakeRequest{Id: "7", Data: []byte("A")}
			thing, err := one.Make(leaseOfB.Context(), byB)
			is(t, thing, err, "written")
			for _, instance := range []things.ThingsClient{two, one} {
				thing, err = instance.Make(before, late)
				if c.guarded {
					denies(t, err, policy.StaleFence)
				} else {
					is(t, thing, err, "written")
				}
			}
			if got := client.Get(t.Context(), "account:7").Val(); got != c.account {
				t.Errorf("the account is %q's, want %q's", got, c.account)
			}
			thing, err = two.Make(leaseOfB.Context(), byB) // B writes on any instance
			is(t, thing, err, "written")
		})
	}
}

// listenForAccounts starts an instance of a service that keeps accounts in Redis, where the last
// write wins, and returns a client that sends the fences of its callers' leases.
func listenForAccounts(t *testing.T, client *redis.Client, guarded bool) things.ThingsClient {
	t.Helper()
	s := service{make: func(ctx context.Context, r *things.MakeRequest) (*things.Thing, error) {
		if err := client.Set(ctx, "account:"+r.GetId(), r.GetData(), time.Minute).Err(); err != nil {
			return nil, err
		}
		return &things.Thing{Text: "written"}, nil
	}}
	var chain []grpcmw.Interceptors
	if guarded {
		chain = append(chain, fenced.New(must(redisfence.New(client)), grpcmw.ByField("id")))
	}
	return dial(t, listen(t, &s, chain...), grpc.WithUnaryInterceptor(fenced.UnaryClientInterceptor()))
}

// newHolderOn returns a Locker of another process.
func newHolderOn(t *testing.T, client *redis.Client, opts ...lock.Option) *lock.Locker {
	t.Helper()
	store := must(redisstore.New(client, redisstore.WithTimeout(2*time.Second)))
	t.Cleanup(func() { _ = store.Close() })
	l := must(lock.New(store, "accounts", opts...))
	t.Cleanup(func() { _ = l.Close() })
	return l
}
