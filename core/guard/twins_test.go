package guard_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// answer is what Begin has returned to a twin.
type answer struct {
	attempt *guard.Attempt
	result  *guard.Result
	err     error
	after   time.Duration
}

// twins begins n calls that wait.
func (f fixture) twins(ctx context.Context, n int, wait time.Duration) <-chan answer {
	answers := make(chan answer, n)
	twin := op
	twin.Wait = wait
	for range n {
		go func() {
			began := time.Now()
			a, r, err := f.guard.Begin(ctx, twin)
			answers <- answer{a, r, err, time.Since(began)}
		}()
	}
	synctest.Wait()
	return answers
}

func (f fixture) replayed(a answer, data string) {
	f.Helper()
	if a.err != nil || a.result == nil || string(a.result.Data) != data {
		f.Errorf("a twin got %+v", a)
	}
}

// Twins are answered at once when the attempt ends, and take one call of the store together.
func TestTwinsReplay(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		twins := f.twins(f.Context(), 16, time.Minute)
		_ = f.refused(guard.ErrInFlight) // this one does not wait
		more := f.twins(f.Context(), 1, time.Minute)
		if got := <-more; !errors.Is(got.err, guard.ErrInFlight) || got.after != 0 {
			t.Errorf("the 17th got %+v", got)
		}
		f.sleep(40 * time.Second) // more than a lease
		f.want(a.Complete(f.Context(), guard.Result{Data: []byte("charged")}), nil)
		for range 16 {
			got := <-twins
			if f.replayed(got, "charged"); got.after != 40*time.Second {
				t.Errorf("after %v", got.after)
			}
		}
		if n := f.store.Calls(storetest.AwaitOperation); n != 1 {
			t.Errorf("%d calls of AwaitOperation", n)
		}
		if n := f.store.Calls(storetest.BeginOperation); n != 1+16+1+1+16 {
			t.Errorf("%d calls of BeginOperation", n)
		}
	})
}

func TestTwinsOfSeveralGuards(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		here, there := f.twins(f.Context(), 3, time.Minute), f.other().twins(f.Context(), 3, time.Minute)
		f.want(a.Complete(f.Context(), guard.Result{Data: []byte("charged")}), nil)
		for range 3 {
			f.replayed(<-here, "charged")
			f.replayed(<-there, "charged")
		}
	})
}

// If the attempt is released, one twin runs the operation, and the others wait for that one.
func TestATwinRuns(t *testing.T) {
	for name, release := range map[string]func(f fixture, a *guard.Attempt){
		"abandoned": func(f fixture, a *guard.Attempt) { f.want(a.Abandon(f.Context()), nil) },
		"dead": func(f fixture, a *guard.Attempt) {
			f.want(a.MarkClean(f.Context()), nil)
			f.store.Break(storetest.RenewOperations, storetest.Down)
			f.sleep(lease + time.Second)
			f.store.Mend(storetest.RenewOperations)
			_ = a.Abandon(f.Context())
		},
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				a := f.attempt()
				twins := f.twins(f.Context(), 5, 10*time.Minute)
				release(f, a)
				got := <-twins
				if got.attempt == nil {
					t.Fatalf("a twin got %+v", got)
				}
				synctest.Wait()
				if len(twins) != 0 {
					t.Fatalf("another twin got %+v", <-twins)
				}
				f.sleep(time.Second)
				f.want(got.attempt.Complete(f.Context(), guard.Result{Data: []byte("charged")}), nil)
				for range 4 {
					f.replayed(<-twins, "charged")
				}
			})
		})
	}
}

func TestTwinTimesOut(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		got := <-f.twins(f.Context(), 1, 7*time.Second)
		var inFlight *guard.InFlightError
		if !errors.As(got.err, &inFlight) || inFlight.RetryAfter <= 0 || inFlight.RetryAfter > lease || inFlight.ID != a.OperationID() || got.after != 7*time.Second {
			t.Errorf("a twin got %+v", got)
		}
		ctx, cancel := context.WithTimeout(f.Context(), 2*time.Second)
		defer cancel()
		if got := <-f.twins(ctx, 1, 7*time.Second); !errors.Is(got.err, guard.ErrInFlight) || got.after != 2*time.Second {
			t.Errorf("a twin whose context ended got %+v", got)
		}
		// One that leaves does not end the wait of the others.
		left, stays := f.twins(f.Context(), 1, time.Second), f.twins(f.Context(), 1, time.Minute)
		<-left
		f.want(a.Complete(f.Context(), guard.Result{Data: []byte("charged")}), nil)
		f.replayed(<-stays, "charged")
	})
}

func TestMaxWaiting(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		twin := op
		twin.Wait, twin.MaxWaiting = time.Minute, 2
		var all sync.WaitGroup
		refused := 0
		for range 5 {
			all.Go(func() {
				if _, r, err := f.guard.Begin(f.Context(), twin); errors.Is(err, guard.ErrInFlight) {
					refused++
				} else {
					f.replayed(answer{nil, r, err, 0}, "charged")
				}
			})
			synctest.Wait()
		}
		elsewhere := f.twins(f.Context(), 1, time.Minute) // at most 16 of these
		f.want(a.Complete(f.Context(), guard.Result{Data: []byte("charged")}), nil)
		all.Wait()
		f.replayed(<-elsewhere, "charged")
		if refused != 3 {
			t.Errorf("%d were refused", refused)
		}
	})
}

func TestTwinsOfAClosedGuard(t *testing.T) {
	for name, end := range map[string]func(f fixture) error{
		"guard closed":   func(f fixture) error { return f.guard.Close() },
		"store shutdown": func(f fixture) error { return f.store.Shutdown(f.Context()) },
	} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f fixture) {
				a := f.attempt()
				twins := f.twins(f.Context(), 3, time.Minute)
				closed := make(chan error)
				go func() { closed <- end(f) }()
				for range 3 {
					if got := <-twins; !errors.Is(got.err, guard.ErrClosed) || got.after != 0 {
						t.Errorf("a twin got %+v", got)
					}
				}
				f.want(a.Complete(f.Context(), guard.Result{}), nil)
				f.want(<-closed, nil)
			})
		})
	}
}

// If the store cannot wait, twins call Begin at intervals; if Begin fails too, they get its error.
func TestTwinsInAnOutage(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		f.store.Break(storetest.AwaitOperation, storetest.Full)
		twins := f.twins(f.Context(), 1, time.Minute)
		f.sleep(10 * time.Second)
		if n := f.store.Calls(storetest.BeginOperation); n > 45 {
			t.Errorf("asked %d times in 10 s", n)
		}
		f.want(a.Complete(f.Context(), guard.Result{Data: []byte("charged")}), nil)
		got := <-twins
		if f.replayed(got, "charged"); got.after > 11*time.Second {
			t.Errorf("after %v", got.after)
		}
	})
	inBubble(t, func(f fixture) {
		a := f.attempt()
		f.store.Break(storetest.AwaitOperation, storetest.Down)
		twins := f.twins(f.Context(), 3, time.Minute)
		f.store.Break(storetest.BeginOperation, storetest.Down)
		for range 3 {
			if got := <-twins; !errors.Is(got.err, store.ErrUnavailable) {
				t.Errorf("a twin got %+v", got)
			}
		}
		f.want(a.Abandon(f.Context()), nil)
	})
	inBubble(t, func(f fixture) {
		a := f.attempt()
		f.store.Break(storetest.AwaitOperation, storetest.Hung)
		if got := <-f.twins(f.Context(), 2, time.Minute); !errors.Is(got.err, guard.ErrInFlight) || got.after != time.Minute {
			t.Errorf("a twin got %+v", got)
		}
		f.want(a.Abandon(f.Context()), nil)
	})
}

// Twins get an UnknownError if the outcome of the attempt that they wait for is unknown.
func TestTwinsOfAnUnknownOutcome(t *testing.T) {
	inBubble(t, func(f fixture) {
		a := f.attempt()
		twins := f.twins(f.Context(), 2, time.Minute)
		f.want(a.CompleteUnknown(f.Context()), nil)
		for range 2 {
			if got := <-twins; !errors.Is(got.err, guard.ErrOutcomeUnknown) {
				t.Errorf("a twin got %+v", got)
			}
		}
	})
}
