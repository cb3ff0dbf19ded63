package servertest

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/guard"
	"github.com/lockkeeper/lockkeeper/internal/testing/redistest"
)

// Who can write to Redis can give no operation the result of another, nor another status.
func TestCopiedRecordsInRedis(t *testing.T) {
	t.Parallel()
	client := connect(t, redistest.Start(t).Addr())
	st := newStore(t, client)
	begin := func(g *guard.Guard, key string, complete bool) (*guard.Result, error) {
		a, result, err := g.Begin(t.Context(), guard.Operation{Scope: "alice", Key: key, Fingerprint: []byte("tea")})
		if a != nil && complete {
			err = a.Complete(t.Context(), guard.Result{Status: 201, Data: []byte("secret of " + key)})
		}
		return result, err
	}
	key := guard.SealKey{ID: "1", Key: bytes.Repeat([]byte("1"), 32)}
	for name, c := range map[string]struct {
		opts   []guard.Option
		copies bool
	}{"sealed": {[]guard.Option{guard.WithSeal(key)}, false}, "not sealed": {nil, true}} {
		t.Run(name, func(t *testing.T) {
			if err := client.FlushAll(t.Context()).Err(); err != nil {
				t.Fatal(err)
			}
			g := must(guard.New(st, "orders", c.opts...))
			for _, key := range []string{"k1", "k2"} {
				if _, err := begin(g, key, true); err != nil {
					t.Fatal(err)
				}
			}
			keys := must(client.Keys(t.Context(), "*:orders").Result())
			if len(keys) != 2 {
				t.Fatalf("the records are %q", keys)
			}
			for _, key := range keys {
				if record := must(client.Get(t.Context(), key).Result()); strings.Contains(record, "secret") != c.copies {
					t.Errorf("%s has %q", key, record)
				}
			}
			if n := must(client.Copy(t.Context(), keys[0], keys[1], 0, true).Result()); n != 1 {
				t.Fatal("nothing is copied")
			}
			opened := map[string]int{}
			for _, key := range []string{"k1", "k2"} {
				switch result, err := begin(g, key, false); {
				case err == nil && result != nil:
					opened[string(result.Data)]++
				case !errors.Is(err, guard.ErrNotRetained):
					t.Errorf("%s: %v", key, err)
				}
			}
			want := 1 // the record that is where it was
			if c.copies {
				want = 2
			}
			total := 0
			for _, n := range opened {
				total += n
			}
			if total != want {
				t.Errorf("opened %v", opened)
			}
			if c.copies {
				return
			}
			for _, key := range keys { // another status
				record := must(client.Get(t.Context(), key).Result())
				if err := client.Set(t.Context(), key, strings.Replace(record, "0201", "0200", 1), time.Hour).Err(); err != nil {
					t.Fatal(err)
				}
			}
			for _, key := range []string{"k1", "k2"} {
				if result, err := begin(g, key, false); result != nil || !errors.Is(err, guard.ErrNotRetained) {
					t.Errorf("%s with another status: %+v, %v", key, result, err)
				}
			}
		})
	}
}
