package storetest_test

import (
	"context"
	"os"
	"os/exec"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

// whichException names what the process of TestExceptionsAreChecked excepts.
const whichException = "STORETEST_EXCEPTION"

// smallLatches has small latches only.
type smallLatches struct{ store.Latches }

func (s smallLatches) CountDownLatch(ctx context.Context, req store.LatchRequest, participant string) (int, error) {
	if req.Count == store.MaxParticipants {
		return 0, store.ErrNotSupported
	}
	return s.Latches.CountDownLatch(ctx, req, participant)
}

func TestLatchesWithAnException(t *testing.T) {
	except := map[string]map[string]string{
		"what fails":  {"the largest count": "it is too large"},
		"what passes": {"the largest count": "it is too large", "a latch counts its participants": "it does not"},
		"no test":     {"the largest count": "it is too large", "the smallest count": "it does not"},
	}[os.Getenv(whichException)]
	if except == nil {
		t.Skip("runs as a process of TestExceptionsAreChecked")
	}
	storetest.Latches(t, func(t *testing.T, test func(*testing.T, storetest.Harness[smallLatches])) {
		synctest.Test(t, func(t *testing.T) {
			st := memstore.New()
			defer st.Close()
			test(t, storetest.Harness[smallLatches]{Store: smallLatches{st}, Advance: time.Sleep, Except: except})
		})
	})
}

// An exception is of a test that fails, and of one that is there.
func TestExceptionsAreChecked(t *testing.T) {
	for what, text := range map[string]string{
		"what fails":  "",
		"what passes": `a_latch_counts_its_participants`,
		"no test":     `no test "the smallest count"`,
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestLatchesWithAnException$")
			cmd.Env = append(os.Environ(), whichException+"="+what)
			out, err := cmd.CombinedOutput()
			if (err == nil) != (text == "") || !strings.Contains(string(out), text) {
				t.Errorf("%v, want %q:\n%s", err, text, out)
			}
		})
	}
}
