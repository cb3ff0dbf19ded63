package etcdstore

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/lock"
	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/internal/testing/etcdtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

const heldTTL = 2 * time.Second

// TestStoppedHolder is the process that TestHeld stops. It locks, takes the comparison, and writes by it
// when it may continue.
func TestStoppedHolder(t *testing.T) {
	if os.Getenv(historyEndpoints) == "" || os.Getenv("ETCDSTORE_TEST_HOLDER") == "" {
		t.Skip("runs as a process of TestHeld")
	}
	c := connect(t, os.Getenv(historyEndpoints))
	s := open(t, c, WithPrefix(os.Getenv(historyPrefix)))
	l := must(lock.New(s, "held", lock.WithTTL(heldTTL)))
	lines := bufio.NewScanner(os.Stdin)
	prefix := os.Getenv(historyPrefix)
	for lines.Scan() { // some keys
		leases := make(map[string]*lock.Lease)
		conditions := make(map[string]clientv3.Cmp)
		for key := range strings.SplitSeq(lines.Text(), ",") {
			leases[key] = must(l.Lock(context.Background(), key))
			conditions[key] = must(Held(leases[key]))
		}
		fmt.Println("locked")
		lines.Scan() // stopped in between, until another process holds
		written := 0
		for key, held := range conditions {
			reply, err := c.Txn(context.Background()).If(held).Then(clientv3.OpPut(prefix+"-data/"+key, "stopped")).Commit()
			if err == nil {
				_, err = c.Put(context.Background(), prefix+"-unguarded/"+key, "stopped")
			}
			if err != nil {
				t.Fatal(err)
			}
			if reply.Succeeded {
				written++
			}
			_ = leases[key].Unlock(context.Background())
		}
		fmt.Println("wrote", written)
	}
}

// A holder that is stopped until another process holds writes nothing by Held afterwards.
func TestHeld(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), newPrefix()
	c := connect(t, server.URL())
	l := must(lock.New(open(t, c, WithPrefix(prefix)), "held"))
	cmd := exec.Command(os.Args[0], "-test.run=^TestStoppedHolder$")
	cmd.Env = append(os.Environ(), historyEndpoints+"="+server.URL(), historyPrefix+"="+prefix, "ETCDSTORE_TEST_HOLDER=1")
	cmd.Stderr = os.Stderr
	in, out := must(cmd.StdinPipe()), must(cmd.StdoutPipe())
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	}()
	lines := bufio.NewScanner(out)
	until := func(begin string) string {
		for lines.Scan() {
			if strings.HasPrefix(lines.Text(), begin) {
				return lines.Text()
			}
		}
		t.Fatalf("the process has ended before %q", begin)
		return ""
	}
	for round := range max(rounds()/3, 1) {
		var keys []string
		for i := range 20 {
			keys = append(keys, fmt.Sprint("k", round, ".", i))
		}
		_, _ = fmt.Fprintln(in, strings.Join(keys, ","))
		until("locked")
		_ = cmd.Process.Signal(syscall.SIGSTOP)
		var (
			all    sync.WaitGroup
			leases = make([]*lock.Lease, len(keys))
		)
		for i, key := range keys {
			all.Go(func() { leases[i] = must(l.Lock(context.Background(), key)) }) // once the other's lease has ended
		}
		all.Wait()
		for i, key := range keys {
			reply, err := c.Txn(t.Context()).If(must(Held(leases[i]))).Then(clientv3.OpPut(prefix+"-data/"+key, "mine")).Commit()
			if err != nil || !reply.Succeeded {
				t.Fatalf("a write by the holder: %+v, %v", reply, err)
			}
		}
		_ = cmd.Process.Signal(syscall.SIGCONT)
		_, _ = fmt.Fprintln(in, "write")
		if text := until("wrote"); text != "wrote 0" {
			t.Errorf("round %d: a holder that was stopped %s times", round, text)
		}
		for i, key := range keys {
			data := must(c.Get(t.Context(), prefix+"-data/"+key))
			without := must(c.Get(t.Context(), prefix+"-unguarded/"+key))
			if len(data.Kvs) != 1 || string(data.Kvs[0].Value) != "mine" || len(without.Kvs) != 1 {
				t.Errorf("key %s: by Held %v, without %v", key, data.Kvs, without.Kvs)
			}
			if err := leases[i].Unlock(t.Context()); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestHeldOfOtherLeases(t *testing.T) {
	t.Parallel()
	if _, err := Held(nil); err == nil {
		t.Error("no error for nil")
	}
	elsewhere := must(lock.New(memstore.New(), "l"))
	lease := must(elsewhere.Lock(t.Context(), "k"))
	if _, err := Held(lease); err == nil || !strings.Contains(err.Error(), "not an *etcdstore.Store") {
		t.Errorf("of another store: %v", err)
	}
	l := must(lock.New(newTestStore(t), "l"))
	shared := must(l.RLock(t.Context(), "k"))
	if _, err := Held(shared); err == nil {
		t.Error("no error for a shared lease")
	}
	if err := shared.Unlock(t.Context()); err != nil {
		t.Error(err)
	}
	mine := must(l.Lock(t.Context(), "k"))
	fence := mine.Fence().Number
	if ended, err := l.ForceUnlock(t.Context(), "k", fence); err != nil || !ended {
		t.Fatal(ended, err)
	}
	testpace.Eventually(t, 5*time.Second, "Held fails after a release by force", func() bool {
		_, err := Held(mine)
		return errors.Is(err, lock.ErrLost)
	})
}
