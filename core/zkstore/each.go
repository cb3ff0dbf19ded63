package zkstore

import "sync"

// maxTogether is how many calls of one step are in flight together.
const maxTogether = 64

// each calls f for all items, some of them at a time, and returns one of the errors.
func each[T any](items []T, f func(T) error) (failed error) {
	if len(items) == 1 {
		return f(items[0])
	}
	var (
		mu   sync.Mutex
		wg   sync.WaitGroup
		next int
	)
	for range min(len(items), maxTogether) {
		wg.Go(func() {
			for {
				mu.Lock()
				i := next
				next++
				mu.Unlock()
				if i >= len(items) {
					return
				}
				if err := f(items[i]); err != nil {
					mu.Lock()
					failed = err
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	return failed
}
