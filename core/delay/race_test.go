package delay_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/delay"
	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// A cancel at the time at which a task is due either prevents it or finds it running.
func TestCancelsAtTheDueTime(t *testing.T) {
	races := 20_000
	if testpace.Raced {
		races /= 10
	}
	inBubble(t, func(f fixture) {
		var (
			mu        sync.Mutex
			ran       = make(map[string]bool)
			prevented = make(map[string]bool)
			stops     []func() error
		)
		for range 4 {
			stops = append(stops, f.run(f.another(), 8, func(_ context.Context, t *delay.Task) error {
				mu.Lock()
				defer mu.Unlock()
				ran[t.Key()] = true
				return nil
			}))
		}
		var wg sync.WaitGroup
		for n := range races {
			key := fmt.Sprint(n)
			after := time.Duration(1+n%100) * time.Second
			f.put(key, after, delay.Created)
			wg.Go(func() {
				time.Sleep(after + time.Duration(n%3-1)*time.Microsecond)
				outcome, err := f.queue.Cancel(f.Context(), key)
				if err != nil {
					f.Error(err)
				}
				mu.Lock()
				defer mu.Unlock()
				prevented[key] = outcome == delay.Prevented
			})
		}
		wg.Wait()
		time.Sleep(time.Minute)
		for _, stop := range stops {
			f.want(stop(), context.Canceled)
		}
		both := 0
		for key, was := range prevented {
			if was == ran[key] {
				f.Errorf("task %s was prevented: %t, and ran: %t", key, was, ran[key])
			}
			if was {
				both++
			}
		}
		if both == 0 || both == races {
			f.Errorf("%d of %d were prevented", both, races)
		}
	})
}

// Puts to keys that run: one worker has a key at a time, and the last put runs after the others.
func TestPutsWhileTasksRun(t *testing.T) {
	const keys, puts = 100, 10_000
	inBubble(t, func(f fixture) {
		var (
			mu      sync.Mutex
			running = make(map[string]bool)
			last    = make(map[string]string) // what ran last
			stops   []func() error
		)
		for range 4 {
			stops = append(stops, f.run(f.another(), 16, func(ctx context.Context, t *delay.Task) error {
				mu.Lock()
				if running[t.Key()] {
					f.Errorf("two workers have %s", t.Key())
				}
				running[t.Key()], last[t.Key()] = true, string(t.Payload())
				mu.Unlock()
				time.Sleep(rand.N(3 * time.Second))
				mu.Lock()
				defer mu.Unlock()
				running[t.Key()] = false
				if rand.N(10) == 0 {
					return errFailed
				}
				return nil
			}))
		}
		put := make(map[string]string)
		for n := range puts {
			key := fmt.Sprint(n % keys)
			put[key] = fmt.Sprint(n)
			_, err := f.queue.Put(f.Context(), key, []byte(put[key]), rand.N(time.Second))
			f.want(err, nil)
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(10 * time.Minute)
		for _, stop := range stops {
			f.want(stop(), context.Canceled)
		}
		for key, want := range put {
			if last[key] != want {
				f.Errorf("%s ran last for the put %s, want %s", key, last[key], want)
			}
		}
	})
}

func aSecond(int) time.Duration { return time.Second }

// Processes die, pause and are cut off. Each task has its effect once, by a guard with the task's
// ID, and none is lost or early.
func TestTasksOfProcessesThatDie(t *testing.T) {
	const tasks, processes = 2_000, 8
	inBubble(t, func(f fixture) {
		var (
			mu      sync.Mutex
			effects = make(map[string]int)
			due     = make(map[string]time.Time)
		)
		ctx, end := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		for p := range processes {
			wg.Go(func() {
				for ctx.Err() == nil {
					st := storetest.NewFaulty(f.store.Store)
					q, err := delay.New(st, "unpaid", delay.WithAttempts(1000), delay.WithBackoff(aSecond))
					f.want(err, nil)
					g, err := guard.New(st, "effects", guard.WithRerun())
					f.want(err, nil)
					life, die := context.WithTimeout(ctx, time.Duration(5+rand.IntN(40))*time.Second)
					dead := make(chan struct{})
					go func() {
						<-life.Done()
						if ctx.Err() == nil {
							st.Break(storetest.Any, storetest.Fault(1+p%2)) // Down, or replies are lost
						}
						close(dead)
					}()
					err = q.Run(life, 4, func(ctx context.Context, t *delay.Task) error {
						return guard.Once(ctx, g, guard.Operation{Key: t.ID()}, func(context.Context) error {
							time.Sleep(rand.N(2 * time.Second))
							mu.Lock()
							defer mu.Unlock()
							if time.Now().Before(due[t.Key()]) {
								f.Errorf("task %s is early", t.Key())
							}
							if st.Calls(storetest.PutTask) == 0 && rand.N(20) == 0 {
								return errFailed
							}
							effects[t.Key()]++
							return nil
						})
					})
					die()
					<-dead
					if !errors.Is(err, life.Err()) && !errors.Is(err, store.ErrUnavailable) {
						f.Errorf("Run: %v", err)
					}
					_, _ = q.Close(), g.Close()
				}
			})
		}
		for n := range tasks {
			key, after := fmt.Sprint(n), rand.N(10*time.Minute)
			mu.Lock()
			due[key] = time.Now().Add(after)
			mu.Unlock()
			_, err := f.queue.Put(f.Context(), key, nil, after)
			f.want(err, nil)
		}
		time.Sleep(30 * time.Minute)
		end()
		wg.Wait()
		synctest.Wait()
		counts, err := f.queue.Count(f.Context())
		if f.want(err, nil); counts != (delay.Counts{}) {
			f.Errorf("left: %+v", counts)
		}
		for n := range tasks {
			if key := fmt.Sprint(n); effects[key] == 0 {
				f.Errorf("task %s had no effect", key)
			}
		}
	})
}
