package main

import (
	"encoding/json"
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core"
	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/internal/operate"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// Each command shows what a living process does, as text and as JSON, the same on every store.
func TestLooking(t *testing.T) {
	t.Parallel()
	for name, on := range stores {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := open(t, on, holder)
			_, err := s.locker.Lock(t.Context(), "article/1")
			must(t, err)
			testpace.Eventually(t, time.Second, "the first lock is the one that is held longest", func() bool {
				state, err := s.locker.Inspect(t.Context(), "article/1")
				return err == nil && state.Holders[0].Age > 10*time.Millisecond
			})
			_, err = s.locker.Lock(t.Context(), "article/2")
			must(t, err)
			s.wait("article/1")
			_, err = s.permits.AcquireN(t.Context(), "room", 2)
			must(t, err)
			for range 3 {
				_, err := s.limiter.Allow(t.Context(), "ada")
				must(t, err)
			}
			operation, task, buried := s.unknown("order/1"), s.put("order/2"), s.bury("order/3", "no such order")
			testpace.Eventually(t, 20*time.Second, "the shop's minute, with all that it did, and its findings", func() bool {
				fleet, err := presence.Watch(t.Context(), s.store)
				return err == nil && len(fleet[0].Stores[0].Findings) > 0 && settled(operate.Rows(fleet))
			})
			host, err := os.Hostname()
			must(t, err)
			replace := []string{
				operation, "OPERATION", task, "TASK", buried, "BURIED", "  " + host + "  ", "  HOST  ", `"` + host +
					`"`, `"HOST"`, runtime.Version(), "GO", core.Version, "VERSION",
				fmt.Sprintf(" %d ", os.Getpid()), " PID ", "redis", "STORE", "postgresql", "STORE",
			}
			for _, key := range []string{"article/1", "article/2", "room", "ada", "order/2", "order/3"} {
				replace = append(replace, operate.KeyID(key), "ID-OF-"+key)
			}
			for _, test := range []struct {
				code int
				args string
			}{
				{1, "now"}, {0, "top"}, {0, "top LIM"}, {0, "locks ls"}, {0, "locks ls stock"}, {0,
					"locks ls stock -show-keys"}, {0, "locks ls nothing"},
				{0, "locks show stock article/1"}, {0, "locks show stock id:" + operate.KeyID("article/1") +
					" -show-keys"}, {1, "locks show stock article/3"},
				{0, "permits ls"}, {0, "permits ls seats"}, {0, "permits show seats room"},
				{0, "limits show"}, {0, "limits show api"}, {0, "limits show api ada"}, {0, "limits show api grace"},
				{2, "limits show nothing key"},
				{0, "operations ls"}, {0, "operations ls orders"}, {0, "operations show orders " + operation},
				{0, "operations show orders -key -scope customer order/1 -secret-file " + secretFile(t)}, {1,
					"operations show orders -key -scope customer order/1"},
				{2, "operations show orders x"}, {0, "tasks ls"}, {0, "tasks ls timers"}, {0,
					"tasks ls timers -show-keys"}, {0, "tasks ls nothing"},
				{0, "processes"}, {0, "log"},
			} {
				var text strings.Builder
				a := s.want(test.code, strings.Fields(test.args))
				fmt.Fprintf(&text, "%s\nexit code %d\n", a.out+a.errs, a.code)
				if test.code == 0 {
					a := s.want(test.code, append(strings.Fields(test.args), "-json"))
					var into map[string]any
					if err := json.Unmarshal([]byte(a.out), &into); err != nil || a.errs != "" {
						t.Errorf("%s -json: %v %s", test.args, err, a.errs)
					}
					text.WriteString(a.out)
				}
				switch strings.Fields(test.args)[0] {
				case "top": // the figures change
					sameNames(t, text.String())
				case "now", "processes": // each store has its own findings
					golden(t, "look-"+name+"-"+test.args, text.String(), replace...)
				default:
					golden(t, "look-"+file(test.args, operation), text.String(), replace...)
				}
			}
			s.want(0, []string{"limits", "denied", "api"})
			s.want(1, []string{"limits", "denied", "nothing"}, "No living process")
		})
	}
}

// settled reports whether the rows of a shop have all calls in the minute that has ended, and its holds.
func settled(rows []*operate.Row) bool {
	held := 0
	for _, r := range rows {
		if minute := r.Minute(); minute.Calls() < r.Calls() {
			return false
		}
		held += int(r.Held)
	}
	return held == 4 // two locks, and a permit of weight 2
}

// sameNames checks that a table of top has the mechanisms, each with its kind.
func sameNames(t *testing.T, text string) {
	t.Helper()
	if strings.HasPrefix(text, "1 process, 1 mechanism") == strings.Contains(text, "stock ") {
		t.Errorf("not what was asked for:\n%s", text)
	}
	for name, kind := range map[string]string{"stock": "lock", "seats": "semaphore", "api": "limiter",
		"orders": "guard", "timers": "queue"} {
		for line := range strings.Lines(text) {
			if strings.HasPrefix(line, name+" ") && strings.Fields(line)[1] != kind {
				t.Error(line)
			}
		}
	}
}

// file returns a name of a file for a command.
func file(args, operation string) string {
	args, _, secret := strings.Cut(args, " -secret-file")
	if secret {
		args += " secret"
	}
	return strings.NewReplacer(" ", "-", "/", "_", operation, "OPERATION", "id:"+operate.KeyID("article/1"),
		"ID").Replace(args)
}

// A fence that JavaScript would round is as it is, as text and as JSON, and can be released.
func TestALargeFence(t *testing.T) {
	t.Parallel()
	s := open(t, onPostgres, holder)
	lease, err := s.locker.Lock(t.Context(), "key")
	must(t, err)
	must(t, lease.Unlock(t.Context()))
	conn, err := pgx.Connect(t.Context(), s.operator.store)
	must(t, err)
	_, err = conn.Exec(t.Context(), "UPDATE lk.leases SET fence = 9007199254740992")
	must(t, err)
	must(t, conn.Close(t.Context()))
	lease, err = s.locker.Lock(t.Context(), "key")
	must(t, err)
	s.want(0, []string{"locks", "ls", "stock"}, "9007199254740993")
	s.want(0, []string{"locks", "ls", "stock", "-json"}, `"fence": "9007199254740993"`)
	release := []string{"locks", "release", "stock", "key", "-why", "it hangs", "-yes", "-fence"}
	s.want(1, append(release, "9007199254740992"), "9007199254740993")
	s.want(0, append(release, "9007199254740993"), "Done")
	<-lease.Context().Done()
	s.want(0, []string{"log"}, "fence 9007199254740993")
}

// hostile is a text that turns a terminal upside down.
const hostile = "\x1b[2J\x1b]0;title\x07\u009b31m\u202eadmin\u2066\u200b\u2028\t\"x\""

// No text of the store controls the terminal, and each of them can be told from an honest one.
func TestHostileTexts(t *testing.T) {
	t.Parallel()
	s := open(t, onRedis, hostile)
	lease, err := s.locker.Lock(t.Context(), hostile)
	must(t, err)
	_, err = s.permits.Acquire(t.Context(), hostile)
	must(t, err)
	s.wait(hostile)
	operation := s.unknown("x")
	s.bury("buried", "no order "+hostile)
	s.want(0, []string{"limits", "hold", "api", hostile, "-show-keys", "-why", "it floods " + hostile, "-as", hostile,
		"-yes"})
	for _, args := range [][]string{
		{"now"}, {"top"}, {"locks", "ls", "stock", "-show-keys"}, {"locks", "show", "stock", hostile, "-show-keys"},
		{"permits", "ls", "seats", "-show-keys"},
		{"limits", "show", "api", hostile, "-show-keys"}, {"operations", "ls", "orders"}, {"operations", "show",
			"orders", operation},
		{"tasks", "ls", "timers", "-show-keys"}, {"processes"}, {"log"}, {hostile}, {"locks", hostile}, {"locks",
			"ls", "-" + hostile},
		{"locks", "release", "stock", hostile, "-show-keys", "-why", hostile, "-as", hostile, "-yes", "-fence", "1"},
		{"locks", "release", "stock", "-" + hostile, "-why", hostile, "-yes"},
	} {
		harmless(t, args, s.run(args...))
		if strings.HasSuffix(args[min(len(args), 2)-1], "s") || args[0] == "log" { // it has such texts
			harmless(t, args, s.run(append(args, "-json")...))
		}
	}
	s.want(0, []string{"locks", "ls", "stock"}, `"\x1b[2J\x1b]0;title\a\u009b31m\u202eadmin\u2066\u200b\u2028\t\"x\""`)
	var got struct {
		Items []struct {
			Key     operate.ShownKey
			Holders []struct{ Label, Fence string }
		}
	}
	must(t, json.Unmarshal([]byte(s.run("locks", "ls", "stock", "-json", "-show-keys").out), &got))
	if one := got.Items[0]; one.Key.Key != hostile || one.Holders[0].Label != hostile ||
		one.Holders[0].Fence != fmt.Sprint(lease.Fence().Number) {
		t.Errorf("%+v", got)
	}
}

// harmless checks that an answer has nothing but lines of printable characters.
func harmless(t *testing.T, args []string, a answer) {
	t.Helper()
	if i := strings.IndexFunc(a.out+a.errs, func(r rune) bool { return r != '\n' && !unicode.IsPrint(r) }); i >= 0 {
		t.Errorf("%q: %q", args, (a.out + a.errs)[i:])
	}
}

func TestQuoted(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "", "shop-1": "shop-1", "host 7, pid 3": "host 7, pid 3", "Ωμέγα": "Ωμέγα", " x": `" x"`,
		"a\x1b[0m": `"a\x1b[0m"`,
		"a\u202eb": `"a\u202eb"`, `"a"`: `"\"a\""`, "a  b": `"a  b"`, "a\xffb": `"a\xffb"`,
	} {
		if got := quoted(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}

// The reader of the log, of JSON and of keys sees the keys of a limiter only as the processes show them.
func TestDeniedKeys(t *testing.T) {
	t.Parallel()
	fleet := []presence.Process{{Stores: []presence.Store{{Kind: "redis"}}, Mechanisms: []presence.Mechanism{{
		Kind: "rate_limit", Name: "api", DeniedKeys: []presence.DeniedKey{{Key: "a\x1b[2J", Denials: 7}, {Key: "b",
			Denials: 9}},
	}}}}
	v := &deniedView{Name: "api"}
	for _, k := range operate.Rows(fleet)[0].DeniedKeys() {
		v.Keys = append(v.Keys, deniedLine{k.Key, k.Denials})
	}
	var b strings.Builder
	v.text(printer{&b})
	if want := "DENIALS  KEY\n9        b\n7        \"a\\x1b[2J\"\n"; b.String() != want {
		t.Errorf("%s", b.String())
	}
}
