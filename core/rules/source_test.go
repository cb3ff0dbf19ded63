package rules_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/lockkeeper/lockkeeper/core/memstore"
	"github.com/lockkeeper/lockkeeper/core/rules"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

// limitOf returns a document with this limit.
func limitOf(n int) string {
	return fmt.Sprintf("version: %d\nlimits:\n  api:\n    limit: %d/1m\n", n, n)
}

// directory is a directory with a file of rules that a process follows.
type directory struct {
	t    *testing.T
	path string
}

func (d directory) at(name string) string { return filepath.Join(d.path, name) }

func (d directory) write(name, text string) {
	d.t.Helper()
	ok(d.t, os.WriteFile(d.at(name), []byte(text), 0o600))
}

func (d directory) rename(from, to string) {
	d.t.Helper()
	ok(d.t, os.Rename(d.at(from), d.at(to)))
}

// Whatever replaces a file, the right document comes into force, and never a part of one.
func TestFile(t *testing.T) {
	for name, c := range map[string]struct {
		path    string
		prepare func(d directory)
		change  func(d directory, n int) // to limitOf(n)
	}{
		"written in place": {"rules.yaml", func(d directory) { d.write("rules.yaml", limitOf(1)) }, func(d directory, n int) { d.write("rules.yaml", limitOf(n)) }},
		"a rename onto the file": {"rules.yaml", func(d directory) { d.write("rules.yaml", limitOf(1)) }, func(d directory, n int) {
			d.write("new", limitOf(n))
			d.rename("new", "rules.yaml")
		}},
		"a ConfigMap": {"rules.yaml", func(d directory) { // the file is a link through ..data, a link to a directory
			ok(d.t, os.Mkdir(d.at("..1"), 0o700))
			d.write("..1/rules.yaml", limitOf(1))
			ok(d.t, os.Symlink("..1", d.at("..data")))
			ok(d.t, os.Symlink("..data/rules.yaml", d.at("rules.yaml")))
		}, func(d directory, n int) {
			of := fmt.Sprint("..", n)
			ok(d.t, os.Mkdir(d.at(of), 0o700))
			d.write(of+"/rules.yaml", limitOf(n))
			ok(d.t, os.Symlink(of, d.at("..data_tmp")))
			old, err := os.Readlink(d.at("..data"))
			ok(d.t, err)
			d.rename("..data_tmp", "..data")
			ok(d.t, os.RemoveAll(d.at(old)))
		}},
		"a mount of the file alone": {"mount/rules.yaml", func(d directory) { // another path to the same inode
			d.write("rules.yaml", limitOf(1))
			ok(d.t, os.Mkdir(d.at("mount"), 0o700))
			ok(d.t, os.Link(d.at("rules.yaml"), d.at("mount/rules.yaml")))
		}, func(d directory, n int) { d.write("rules.yaml", limitOf(n)) }},
		"removed, and made anew": {"rules.yaml", func(d directory) { d.write("rules.yaml", limitOf(1)) }, func(d directory, n int) {
			ok(d.t, os.Remove(d.at("rules.yaml")))
			d.write("rules.yaml", limitOf(n))
		}},
		"emptied, and written piece by piece": {"rules.yaml", func(d directory) { d.write("rules.yaml", limitOf(1)) }, func(d directory, n int) {
			f, err := os.Create(d.at("rules.yaml"))
			ok(d.t, err)
			for _, c := range limitOf(n) {
				_, err := f.WriteString(string(c))
				ok(d.t, err)
				<-time.After(time.Millisecond) // a reader finds parts
			}
			ok(d.t, f.Close())
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := directory{t, t.TempDir()}
			c.prepare(d)
			s := newService(t)
			var mu sync.Mutex
			var seen []string
			open(t, rules.File(d.at(c.path)), s.all(), rules.Every(10*time.Millisecond), rules.OnChange(func(a rules.Applied) {
				mu.Lock()
				defer mu.Unlock()
				seen = append(seen, fmt.Sprint(a.Version, s.api.Rule().Plan))
			}))
			for n := 2; n <= 4; n++ {
				c.change(d, n*1000)
				testpace.Eventually(t, 10*time.Second, fmt.Sprint(n*1000, " a minute"), func() bool { return s.api.Rule().Plan == tokenbucket.PerMinute(int64(n*1000)) })
			}
			mu.Lock()
			defer mu.Unlock()
			for _, text := range seen {
				version, plan, _ := strings.Cut(text, "0")
				if !strings.HasPrefix(plan, "00"+version+"000/1m") && text != "11/1m" {
					t.Errorf("there was a part of a document: %s, all: %q", text, seen)
				}
			}
		})
	}
}

// A file that is bad, empty or gone leaves the last good document in force, and says so until there
// is a good one.
func TestFileThatIsBad(t *testing.T) {
	t.Parallel()
	d := directory{t, t.TempDir()}
	d.write("rules.yaml", limitOf(7))
	s := newService(t)
	r := open(t, rules.File(d.at("rules.yaml")), s.all(), rules.Every(10*time.Millisecond))
	is := func(state rules.State, why string) {
		t.Helper()
		testpace.Eventually(t, 10*time.Second, fmt.Sprint(state, " because of ", why), func() bool {
			a := r.Applied()
			return a.State == state && (a.Err == nil) == (why == "") && (why == "" || strings.Contains(a.Err.Error(), why))
		})
		if got := s.api.Rule().Plan; got != tokenbucket.PerMinute(7) {
			t.Errorf("the limit is %v", got)
		}
	}
	for _, c := range []struct {
		why string
		set func()
	}{
		{"it is empty", func() { d.write("rules.yaml", "") }},
		{"it has no value", func() { d.write("rules.yaml", limitOf(8)[:25]) }}, // the first half
		{"at most 1044480", func() { d.write("rules.yaml", limitOf(8)+strings.Repeat("#\n", 1<<20)) }},
		{"no such file", func() { ok(t, os.Remove(d.at("rules.yaml"))) }},
		{"no regular file", func() {
			ok(t, os.Remove(d.at("rules.yaml")))
			ok(t, os.Mkdir(d.at("rules.yaml"), 0o700))
		}},
		{"no regular file", func() {
			ok(t, os.Remove(d.at("rules.yaml")))
			ok(t, syscall.Mkfifo(d.at("rules.yaml"), 0o600))
		}},
		{"no such file", func() {
			ok(t, os.Remove(d.at("rules.yaml")))
			ok(t, os.Symlink("nothing", d.at("rules.yaml")))
		}},
		{"rules.yaml", func() { // a link to itself
			ok(t, os.Remove(d.at("rules.yaml")))
			ok(t, os.Symlink("rules.yaml", d.at("rules.yaml")))
		}},
	} {
		c.set()
		is(rules.Stale, c.why)
		d.write("good", limitOf(7))
		if info, err := os.Lstat(d.at("rules.yaml")); err == nil && info.IsDir() {
			ok(t, os.Remove(d.at("rules.yaml")))
		}
		d.rename("good", "rules.yaml")
		is(rules.Current, "")
	}
}

// A file that never stays the same is not read.
func TestFileThatAlwaysChanges(t *testing.T) {
	t.Parallel()
	d := directory{t, t.TempDir()}
	d.write("rules.yaml", limitOf(1))
	stop, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		for n := 2; ; n++ {
			select {
			case <-stop:
				return
			case <-time.After(5 * time.Millisecond):
				d.write("new", limitOf(n))
				d.rename("new", "rules.yaml")
			}
		}
	}()
	defer func() {
		close(stop)
		<-ended
	}()
	for range 100 { // on a busy machine the file may stay the same for a while
		r, err := rules.Open(t.Context(), rules.File(d.at("rules.yaml")), quiet(), rules.Optional("api"))
		if err == nil {
			_ = r.Close()
		} else if strings.Contains(err.Error(), "changes while it is read") {
			return
		} else {
			t.Fatal(err)
		}
	}
	t.Error("it is always read")
}

// replica is the store as another process has it.
type replica struct{ store.Documents }

// A push is in force in its own process at once, and in others within the interval, also when the
// store was down for a minute.
func TestStore(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer st.Close()
		one, two, faulty := newService(t), newService(t), storetest.NewFaulty(st)
		version := must(rules.Push(t.Context(), st, "shop", []byte(limitOf(1)), 0, "ann", ""))
		r1 := open(t, rules.Store(st, "shop"), one.all())
		r2 := open(t, rules.Store(&replica{faulty}, "shop"), two.all())
		push := func(n int) {
			t.Helper()
			version = must(rules.Push(t.Context(), st, "shop", []byte(limitOf(n)), version, "ann", "more"))
		}
		for n := range 5 {
			push(n + 2)
			synctest.Wait()
			if a := r1.Applied(); a.Revision != version || a.Version != fmt.Sprint(n+2) || one.api.Rule().Plan != tokenbucket.PerMinute(int64(n+2)) {
				t.Errorf("not at once: %+v", a)
			}
			if r2.Applied().Revision == version {
				t.Error("the other process has it before it has read the store")
			}
			time.Sleep(5 * time.Second)
			if a := r2.Applied(); a.Revision != version || two.api.Rule().Plan != tokenbucket.PerMinute(int64(n+2)) || a.Hash != r1.Applied().Hash {
				t.Errorf("not within 5 s: %+v", a)
			}
		}
		for _, how := range []storetest.Fault{storetest.Down, storetest.Hung, storetest.LostReply} {
			before := r2.Applied()
			faulty.Break(storetest.GetDocument, how)
			push(100 + int(how))
			time.Sleep(time.Minute)
			if a := r2.Applied(); a.State != rules.Stale || a.Err == nil || a.Hash != before.Hash || two.api.Rule().Plan == one.api.Rule().Plan {
				t.Errorf("in an outage: %+v", a)
			}
			faulty.Mend(storetest.Any)
			time.Sleep(6 * time.Second)
			if a := r2.Applied(); a.State != rules.Current || a.Revision != version || two.api.Rule().Plan != one.api.Rule().Plan {
				t.Errorf("after it: %+v", a)
			}
		}
		text, hash := limitOf(999), r1.Applied().Hash
		before := version // the same text again is a new version of the same document
		push(100 + int(storetest.LostReply))
		time.Sleep(5 * time.Second)
		if a := r2.Applied(); a.Revision != version || version <= before || a.Hash != hash || a.State != rules.Current {
			t.Errorf("%+v", a)
		}
		_, _, err := st.PutDocument(t.Context(), store.DocumentRequest{Space: "rules", Name: "shop", Data: []byte(text)}) // by other means
		ok(t, err)
		ok(t, r1.Reload(t.Context()))
		if got := one.api.Rule().Plan; got != tokenbucket.PerMinute(999) {
			t.Errorf("%v", got)
		}
		_, err = st.RemoveDocument(t.Context(), "rules", "shop", store.AnyVersion)
		ok(t, err)
		time.Sleep(time.Minute)
		if a := r1.Applied(); a.State != rules.Stale || a.Err == nil || a.Version != "999" {
			t.Errorf("without a document: %+v", a)
		}
	})
}

// A document that is never replaced outlives the store's longest time for one.
func TestStoreKeepsTheDocument(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer st.Close()
		version := must(rules.Push(t.Context(), st, "shop", []byte(limitOf(1)), 0, "ann", ""))
		r := open(t, rules.Store(st, "shop"), newService(t).all(), rules.Every(24*time.Hour))
		time.Sleep(3 * store.MaxDocumentTTL)
		if present := must(rules.Present(t.Context(), st, "shop")); present.Number != version || string(present.Document) != limitOf(1) {
			t.Errorf("%+v", present)
		}
		wantState(t, r, rules.Current)
	})
}

// A process that starts beside a bad document begins with the last good one only with LastGood.
func TestLastGood(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		st := memstore.New()
		defer st.Close()
		put := func(text string) {
			t.Helper()
			_, _, err := st.PutDocument(t.Context(), store.DocumentRequest{Space: "rules", Name: "shop", Data: []byte(text)})
			ok(t, err)
		}
		begin := func(opts ...rules.Option) (*service, *logs, *rules.Rules, error) {
			s, l := newService(t), &logs{}
			r, err := rules.Open(t.Context(), rules.Store(st, "shop"), append(opts, s.all(), l.option())...)
			return s, l, r, err
		}
		put("bad: 0")
		if _, _, _, err := begin(rules.LastGood()); len(errorsIn(err)) != 1 {
			t.Errorf("without a history: %v", err)
		}
		version := must(rules.Present(t.Context(), st, "shop")).Number
		for _, text := range []string{limitOf(1), limitOf(2), "limits: { next: { limit: 5/1m } }"} { // the last is of another release
			version = must(rules.Push(t.Context(), st, "shop", []byte(text), version, "ann", ""))
		}
		good := must(rules.History(t.Context(), st, "shop"))[1].Number
		put("bad: 1")
		s, _, _, err := begin()
		if list := errorsIn(err); len(list) != 1 || list[0].Line != 1 || s.api.Rule().Plan != tokenbucket.PerMinute(10) {
			t.Errorf("without LastGood: %v, and the limit is %v", err, s.api.Rule().Plan)
		}
		s, l, r, err := begin(rules.LastGood())
		ok(t, err)
		defer func() { ok(t, r.Close()) }()
		a := r.Applied()
		if a.State != rules.Stale || len(errorsIn(a.Err)) != 1 || a.Version != "2" || a.Revision != good || s.api.Rule().Plan != tokenbucket.PerMinute(2) {
			t.Errorf("%+v, and the limit is %v", a, s.api.Rule().Plan)
		}
		if in := r.Inspect(); string(in.Refused) != "bad: 1" || string(in.Document) != limitOf(2) {
			t.Errorf("%+v", in)
		}
		if log := l.String(); strings.Count(log, "\n") != 2 || !strings.Contains(log, "are in force") || !strings.Contains(log, "are stale") {
			t.Errorf("%s", log)
		}
		time.Sleep(time.Minute)
		if n := strings.Count(l.String(), "\n"); n != 2 {
			t.Errorf("%d lines:\n%s", n, l)
		}
		put(limitOf(3))
		time.Sleep(5 * time.Second)
		wantState(t, r, rules.Current)
		put(limitOf(4))
		if _, _, r, err := begin(rules.LastGood()); err != nil || r.Applied().State != rules.Current || r.Applied().Version != "4" || r.Close() != nil {
			t.Errorf("with a good document: %v", err)
		}
		faulty := storetest.NewFaulty(st)
		put("bad: 2")
		faulty.Break(storetest.ListDocuments, storetest.Down)
		if _, err := rules.Open(t.Context(), rules.Store(faulty, "shop"), rules.LastGood(), quiet(), rules.Optional("api")); !errors.Is(err, store.ErrUnavailable) {
			t.Errorf("with a history that cannot be read: %v", err)
		}
	})
}

// The context of Open and Reload is that of their read alone.
func TestContexts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d := document("{}")
		ctx, cancel := context.WithCancelCause(t.Context())
		r, err := rules.Open(ctx, d.source(), quiet())
		ok(t, err)
		cause := errors.New("the caller left")
		cancel(cause)
		if err := r.Reload(ctx); !errors.Is(err, cause) {
			t.Error(err)
		}
		for range 10 {
			_ = r.Reload(ctx)
		}
		wantState(t, r, rules.Current)
		before := d.reads.Load()
		time.Sleep(time.Minute)
		if d.reads.Load() < before+10 {
			t.Error("it is not followed any more")
		}
		ok(t, r.Close())
	})
}
