package delay_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/leaktest"
)

func TestMain(m *testing.M) { leaktest.Main(m) }

// fixture is a queue in virtual time, on a store that can be broken.
type fixture struct {
	*testing.T
	store *storetest.Faulty
	queue *delay.Queue
}

func inBubble(t *testing.T, test func(f fixture), opts ...delay.Option) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer st.Close()
		f := fixture{T: t, store: storetest.NewFaulty(st)}
		f.queue = f.another(opts...)
		test(f)
	})
}

// another returns the queue of another process.
func (f fixture) another(opts ...delay.Option) *delay.Queue {
	f.Helper()
	q, err := delay.New(f.store, "unpaid", opts...)
	f.want(err, nil)
	return q
}

func (f fixture) want(err, want error) {
	f.Helper()
	if !errors.Is(err, want) {
		f.Fatalf("%v, want %v", err, want)
	}
}

func (f fixture) put(key string, after time.Duration, want delay.Outcome) {
	f.Helper()
	put, err := f.queue.Put(f.Context(), key, []byte("of "+key), after)
	if f.want(err, nil); put.Outcome != want || put.Due != after {
		f.Fatalf("put %+v, want %s", put, want)
	}
}

func (f fixture) cancels(key string, want delay.Cancelled) {
	f.Helper()
	got, err := f.queue.Cancel(f.Context(), key)
	if f.want(err, nil); got != want {
		f.Fatalf("cancelled: %s, want %s", got, want)
	}
}

func (f fixture) state(key, want string) delay.State {
	f.Helper()
	state, err := f.queue.Inspect(f.Context(), key)
	if f.want(err, nil); state.State != want {
		f.Fatalf("%+v, want it %s", state, want)
	}
	return state
}

// run starts a Run, and returns a function that stops it, and returns its error.
func (f fixture) run(q *delay.Queue, n int, fn func(ctx context.Context, t *delay.Task) error) (stop func() error) {
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- q.Run(ctx, n, fn) }()
	synctest.Wait()
	return func() error {
		cancel()
		return <-ended
	}
}

// log has the runs of tasks as text.
type log chan string

func (l log) add(format string, args ...any) { l <- fmt.Sprintf(format, args...) }

// is checks the entries since the last call.
func (l log) is(f fixture, want ...string) {
	f.Helper()
	synctest.Wait()
	for _, w := range want {
		select {
		case got := <-l:
			if got != w {
				f.Fatalf("%q, want %q", got, w)
			}
		default:
			f.Fatalf("nothing, want %q", w)
		}
	}
	select {
	case got := <-l:
		f.Fatalf("%q, want nothing", got)
	default:
	}
}

var errFailed = errors.New("it failed")
