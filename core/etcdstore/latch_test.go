package etcdstore

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
	"github.com/lockkeeper/lockkeeper/internal/testing/etcdtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// A participant with a longer TTL keeps those before it, also if their processes are dead.
func TestLatchWithALongerTTL(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), WithPrefix(newPrefix())
	c := connect(t, server.URL())
	dead, s := open(t, c, prefix), open(t, c, prefix)
	const participants = inTransaction + 3
	short := store.LatchRequest{Name: naming.NewID(), Count: participants + 1, TTL: testpace.Scale(2 * time.Second)}
	long := short
	long.TTL = time.Minute
	began := time.Now()
	for i := range participants {
		if _, err := dead.CountDownLatch(t.Context(), short, fmt.Sprint(i)); err != nil {
			t.Fatal(err)
		}
	}
	if arrived, err := s.CountDownLatch(t.Context(), long, "last"); err != nil || arrived != participants+1 {
		t.Fatalf("%d have arrived, %v", arrived, err)
	}
	dead.end()
	leaseOf := short.TTL + slack*time.Second
	<-time.After(time.Until(began.Add(2*leaseOf + 2*time.Second))) // when the first lease has ended
	if arrived, err := s.InspectLatch(context.Background(), long); err != nil || arrived != participants+1 {
		t.Errorf("%d are left, %v", arrived, err)
	}
}
