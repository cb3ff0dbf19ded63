package migration

import (
	"context"
	"errors"
	"log/slog"
	"math/rand/v2"
	"testing"
	"time"

	peer "github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/redisstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
	"github.com/lockkeeper/lockkeeper/migrate/redsync"
)

// mutex is what the bridge keeps of redsync's Mutex.
type mutex interface {
	Name() string
	Until() time.Time
	Lock() error
	LockContext(context.Context) error
	TryLock() error
	TryLockContext(context.Context) error
	Unlock() (bool, error)
	UnlockContext(context.Context) (bool, error)
	Extend() (bool, error)
	ExtendContext(context.Context) (bool, error)
	Valid() (bool, error)
	ValidContext(context.Context) (bool, error)
}

var (
	_ mutex = (*peer.Mutex)(nil)
	_ mutex = (*redsync.Mutex)(nil)
)

// Random calls of three mutexes, two of them of one name, have the same results in both libraries.
func TestMutexesDoWhatThoseOfRedsyncDo(t *testing.T) {
	client := redistest.Start(t).Client()
	st, err := redisstore.New(client, redisstore.WithTimeout(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	locker, err := lock.New(st, "jobs", lock.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close() })
	theirs, ours := peer.New(goredis.NewPool(client)), redsync.New(locker)
	const expiry, soon = 10 * time.Minute, time.Millisecond

	type pair struct{ theirs, ours mutex }
	var pairs []pair
	for _, name := range []string{"a", "a", "b"} {
		pairs = append(pairs, pair{
			theirs.NewMutex(name, peer.WithExpiry(expiry), peer.WithTries(2), peer.WithRetryDelay(soon)),
			ours.NewMutex(name, redsync.WithExpiry(expiry), redsync.WithTries(2), redsync.WithRetryDelay(soon)),
		})
	}
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	random := rand.New(rand.NewPCG(seed, 0))
	results := map[string]int{}
	for i := range 600 {
		p := pairs[random.IntN(len(pairs))]
		what := [...]string{"Lock", "TryLock", "Unlock", "Extend", "Valid", "Lose"}[random.IntN(6)]
		var want, got bool
		switch what {
		case "Lock":
			if want, got = locked(t, p.theirs.Lock(), p.ours.Lock()); !got {
				leftTheQueue(t, locker, p.ours.Name())
			}
		case "TryLock":
			want, got = locked(t, p.theirs.TryLock(), p.ours.TryLock())
		case "Unlock":
			want, _ = p.theirs.Unlock()
			var err error
			if got, err = p.ours.Unlock(); got != (err == nil) || !got && !errors.Is(err, redsync.ErrLockAlreadyExpired) {
				t.Fatalf("Unlock = %t, %v", got, err)
			}
		case "Extend":
			want, _ = p.theirs.Extend()
			var err error
			if got, err = p.ours.Extend(); got != (err == nil) || !got && !errors.Is(err, redsync.ErrExtendFailed) {
				t.Fatalf("Extend = %t, %v", got, err)
			}
			// Their expiry begins anew; ours is renewed at a third of it.
			if left := time.Until(p.ours.Until()); want && left < expiry/2 {
				t.Fatalf("after Extend, the lock is valid for %v", left)
			}
		case "Valid":
			want, _ = p.theirs.Valid()
			got, _ = p.ours.Valid()
		case "Lose": // both locks of the name go, as by an operator
			name := p.theirs.Name()
			if err := client.Del(t.Context(), name).Err(); err != nil {
				t.Fatal(err)
			}
			state, err := locker.Inspect(t.Context(), name)
			if err != nil {
				t.Fatal(err)
			}
			for _, h := range state.Holders {
				if _, err := locker.ForceUnlock(t.Context(), name, h.Fence); err != nil {
					t.Fatal(err)
				}
			}
			for _, p := range pairs { // a process that asks need not be told
				if p.ours.Name() == name {
					_, _ = p.ours.Valid()
				}
			}
		}
		if got != want {
			t.Fatalf("step %d: %s of %q = %t; redsync: %t", i, what, p.theirs.Name(), got, want)
		}
		results[what+map[bool]string{true: " true", false: " false"}[got]]++
	}
	t.Log(results)
	for _, what := range []string{"Lock", "TryLock", "Unlock", "Extend", "Valid"} {
		if results[what+" true"] == 0 || results[what+" false"] == 0 {
			t.Errorf("%s had only one result", what)
		}
	}
	for _, p := range pairs {
		_, _ = p.ours.Unlock()
	}
}

// leftTheQueue waits until a Lock that has given up has left the queue, which it does in the background.
func leftTheQueue(t *testing.T, locker *lock.Locker, name string) {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		switch state, err := locker.Inspect(t.Context(), name); {
		case err != nil:
			t.Fatal(err)
		case state.Waiting == 0:
			return
		case time.Now().After(deadline):
			t.Fatalf("%q still has waiters: %+v", name, state)
		}
	}
}

// locked reports which lock was acquired. If it was not, both errors say that others hold it.
func locked(t *testing.T, theirs, ours error) (bool, bool) {
	t.Helper()
	var theirTaken *peer.ErrTaken
	var ourTaken *redsync.ErrTaken
	if theirs != nil && !errors.As(theirs, &theirTaken) || ours != nil && !errors.As(ours, &ourTaken) {
		t.Fatalf("%v; redsync: %v", ours, theirs)
	}
	return theirs == nil, ours == nil
}

// The end of a context while others hold the lock is ErrFailed in both.
func TestTheEndOfAContextIsErrFailed(t *testing.T) {
	client := redistest.Start(t).Client()
	st, err := redisstore.New(client, redisstore.WithTimeout(5*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = st.Close() })
	locker, err := lock.New(st, "jobs")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = locker.Close() })
	theirs, ours := peer.New(goredis.NewPool(client)), redsync.New(locker)
	for what, row := range map[string]struct {
		mutex func() mutex
		want  error
	}{
		"redsync":    {func() mutex { return theirs.NewMutex("k", peer.WithRetryDelay(time.Hour)) }, peer.ErrFailed},
		"the bridge": {func() mutex { return ours.NewMutex("k") }, redsync.ErrFailed},
	} {
		if err := row.mutex().Lock(); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
		defer cancel()
		if err := row.mutex().LockContext(ctx); !errors.Is(err, row.want) {
			t.Errorf("%s: %v", what, err)
		}
	}
}
