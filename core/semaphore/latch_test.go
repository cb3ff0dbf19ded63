package semaphore_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/semaphore"
	"github.com/lockkeeper/lockkeeper/core/store"
)

func newLatch(t *testing.T, st store.Latches, count int, opts ...semaphore.LatchOption) *semaphore.Latch {
	t.Helper()
	return must(semaphore.NewLatch(st, "latch", count, opts...))
}

func TestNewLatchRefuses(t *testing.T) {
	st := memstore.New()
	build := func(st store.Latches, name string, ttl time.Duration) error {
		_, err := semaphore.NewLatch(st, name, 1, nil, semaphore.WithLatchTTL(ttl))
		return err
	}
	for name, err := range map[string]error{
		"nil store":  build(nil, "l", time.Minute),
		"typed nil":  build((*memstore.Store)(nil), "l", time.Minute),
		"no name":    build(st, "", time.Minute),
		"long name":  build(st, strings.Repeat("n", 129), time.Minute),
		"short time": build(st, "l", time.Second-1),
		"long time":  build(st, "l", 30*24*time.Hour+1),
	} {
		if err == nil || !strings.HasPrefix(err.Error(), "semaphore: ") {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, count := range []int{0, -1, store.MaxParticipants + 1} {
		if l, err := semaphore.NewLatch(st, "l", count); l != nil || !errors.Is(err, semaphore.ErrInvalidCapacity) {
			t.Errorf("a count of %d: %v", count, err)
		}
	}
}

func TestLatch(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer st.Close()
		l, same := newLatch(t, st, 3), newLatch(t, st, 3)
		if l.Name() != "latch" {
			t.Errorf("named %q", l.Name())
		}
		var opened [2]error
		done := make(chan struct{}, len(opened))
		for i, l := range []*semaphore.Latch{l, same} {
			go func() {
				opened[i] = l.Wait(t.Context())
				done <- struct{}{}
			}()
		}
		for i, c := range []struct {
			participant string
			remaining   int
		}{{"a", 2}, {"a", 2}, {"b", 1}, {"a", 1}} {
			one := []*semaphore.Latch{l, same}[i%2]
			if n, err := one.CountDown(t.Context(), c.participant); n != c.remaining || err != nil {
				t.Errorf("%q: %d remain, %v; want %d", c.participant, n, err, c.remaining)
			}
		}
		synctest.Wait()
		if len(done) != 0 {
			t.Error("open before the last participant")
		}
		if n, err := l.Remaining(t.Context()); n != 1 || err != nil {
			t.Errorf("%d remain, %v", n, err)
		}
		for _, participant := range []string{"c", "one more"} {
			if n, err := l.CountDown(t.Context(), participant); n != 0 || err != nil {
				t.Errorf("%q: %d remain, %v", participant, n, err)
			}
		}
		<-done
		<-done
		ok(t, errors.Join(opened[0], opened[1], l.Wait(t.Context())))
		if n, err := newLatch(t, st, 1).Remaining(t.Context()); n != 0 || err != nil {
			t.Errorf("%d remain of fewer, %v", n, err)
		}
	})
}

func TestLatchExpires(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer st.Close()
		l := newLatch(t, st, 4, semaphore.WithLatchTTL(time.Minute))
		for i := range 3 {
			if _, err := l.CountDown(t.Context(), fmt.Sprint(i)); err != nil {
				t.Fatal(err)
			}
			time.Sleep(50 * time.Second)
		}
		if n, err := l.Remaining(t.Context()); n != 1 || err != nil {
			t.Errorf("%d remain, %v", n, err)
		}
		time.Sleep(11 * time.Second)
		if n, err := l.Remaining(t.Context()); n != 4 || err != nil {
			t.Errorf("%d remain of a new one, %v", n, err)
		}
	})
}

func TestLatchParticipants(t *testing.T) {
	st := memstore.New()
	defer st.Close()
	l := newLatch(t, st, 3)
	for _, participant := range []string{"", strings.Repeat("p", 1025)} {
		if _, err := l.CountDown(t.Context(), participant); !errors.Is(err, semaphore.ErrInvalidKey) {
			t.Errorf("a participant of %d bytes: %v", len(participant), err)
		}
	}
	if n, err := l.CountDown(t.Context(), strings.Repeat("p", 1024)); n != 2 || err != nil {
		t.Errorf("%d remain, %v", n, err)
	}
}

func TestLatchContextEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer st.Close()
		l := newLatch(t, st, 1)
		why := errors.New("the reason")
		ctx, cancel := context.WithCancelCause(t.Context())
		time.AfterFunc(time.Minute, func() { cancel(why) })
		began := time.Now()
		if err := l.Wait(ctx); !errors.Is(err, why) || !errors.Is(err, context.Canceled) || time.Since(began) != time.Minute {
			t.Errorf("Wait: %v after %v", err, time.Since(began))
		}
		_, err := l.CountDown(ctx, "a")
		for name, err := range map[string]error{"CountDown": err, "Wait": l.Wait(ctx)} {
			if !errors.Is(err, why) {
				t.Errorf("%s: %v", name, err)
			}
		}
		if n, err := l.Remaining(t.Context()); n != 1 || err != nil {
			t.Errorf("%d remain, %v", n, err)
		}
	})
}

func TestLatchOutage(t *testing.T) {
	st := memstore.New()
	l := newLatch(t, st, 1)
	_ = st.Close()
	_, countErr := l.CountDown(t.Context(), "a")
	_, remainingErr := l.Remaining(t.Context())
	for name, err := range map[string]error{"CountDown": countErr, "Remaining": remainingErr, "Wait": l.Wait(t.Context())} {
		if !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("%s: %v", name, err)
		}
	}
}
