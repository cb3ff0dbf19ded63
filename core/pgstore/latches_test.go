package pgstore

import (
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// CountDownLatch counts the first participant of a latch although a sweep deletes the latch's row at
// the same time.
func TestLatchesThatAreSwept(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	defer keepCalling(t, 3, func() error {
		for _, statement := range sweeps {
			if strings.HasPrefix(statement, "DELETE FROM lk.latches ") {
				if _, err := s.db.Pool().Exec(t.Context(), s.db.Text(statement)); err != nil {
					return err
				}
			}
		}
		return nil
	})()
	var counting sync.WaitGroup
	for worker := range 4 {
		counting.Go(func() {
			for i := range 500 {
				r := store.LatchRequest{Name: fmt.Sprint(worker, i), TTL: time.Minute}
				if _, err := s.db.Pool().Exec(t.Context(), s.db.Text("SELECT lk.await_latch_1($1, 1, 'inbox', 1000000)"), s.digest("latch", r.Name)); err != nil {
					t.Error(err)
					return
				}
				if n, err := s.CountDownLatch(t.Context(), r, "one"); n != 1 || err != nil {
					t.Errorf("%d participants, %v", n, err)
					return
				}
			}
		})
	}
	counting.Wait()
}
