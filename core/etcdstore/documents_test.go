package etcdstore

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.etcd.io/etcd/api/v3/v3rpc/rpctypes"
	clientv3 "go.etcd.io/etcd/client/v3"
	"go.uber.org/zap"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
	"github.com/lockkeeper/lockkeeper/internal/testing/etcdtest"
	"github.com/lockkeeper/lockkeeper/internal/testing/faultproxy"
	"github.com/lockkeeper/lockkeeper/internal/testing/testpace"
)

func TestDocuments(t *testing.T) {
	t.Parallel()
	storetest.Documents(t, runner(t, nil))
}

// aDocument returns the put of a document of the space "s".
func aDocument(name, data string, version int64) store.DocumentRequest {
	return store.DocumentRequest{Space: "s", Name: name, Data: []byte(data), TTL: time.Hour, Version: version}
}

func putsDocument(t testing.TB, s *Store, req store.DocumentRequest) int64 {
	t.Helper()
	version, ok, err := s.PutDocument(t.Context(), req)
	if err != nil || !ok {
		t.Fatalf("PutDocument: %d, %t, %v", version, ok, err)
	}
	return version
}

// hasDocument checks that a store has a document of the space "s", or has none if data are "".
func hasDocument(t testing.TB, s *Store, name, data string) store.Document {
	t.Helper()
	doc, found, err := s.GetDocument(t.Context(), "s", name)
	if err != nil || found != (data != "") || string(doc.Data) != data {
		t.Fatalf("GetDocument of %s: %q, %t, %v, want %q", name, doc.Data, found, err, data)
	}
	return doc
}

func removesDocument(t testing.TB, s *Store, name string) {
	t.Helper()
	if gone, err := s.RemoveDocument(t.Context(), "s", name, store.AnyVersion); !gone || err != nil {
		t.Fatalf("RemoveDocument: %t, %v", gone, err)
	}
}

// countLeases returns how many leases the server has.
func countLeases(t testing.TB, c *clientv3.Client) int {
	t.Helper()
	reply, err := c.Leases(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return len(reply.Leases)
}

// The server has a lease for each document, and no other: of puts that were replaced, renewed,
// refused, repeated, removed, or have expired.
func TestLeasesOfDocuments(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	c := connect(t, server.URL())
	s, other := open(t, c), open(t, c)
	for _, name := range []string{"a", "b"} {
		version := putsDocument(t, s, aDocument(name, "one", store.NoDocument))
		putsDocument(t, other, aDocument(name, "one", store.NoDocument)) // a repeat
		putsDocument(t, other, aDocument(name, "one", version))          // a renewal
		if _, ok, err := other.PutDocument(t.Context(), aDocument(name, "two", store.NoDocument)); ok || err != nil {
			t.Errorf("PutDocument: %t, %v", ok, err)
		}
		putsDocument(t, s, aDocument(name, "two", store.AnyVersion))
	}
	var wg sync.WaitGroup
	for i := range 8 {
		wg.Go(func() {
			st := []*Store{s, other}[i%2]
			for n := range 10 {
				version := []int64{store.AnyVersion, store.NoDocument, hasDocument(t, st, "a", "two").Version}[rand.N(3)]
				if _, _, err := st.PutDocument(t.Context(), aDocument("a", "two", version)); err != nil {
					t.Errorf("put %d: %v", n, err)
				}
			}
		})
	}
	wg.Wait()
	if n := countLeases(t, c); n != 2 {
		t.Errorf("%d leases of 2 documents", n)
	}
	removesDocument(t, other, "a")
	short := aDocument("b", "short", store.AnyVersion)
	short.TTL = 10 * time.Millisecond
	putsDocument(t, s, short)
	testpace.Eventually(t, 5*time.Second, "the lease of a document ends with it", func() bool { return countLeases(t, c) == 0 })
	for _, st := range []*Store{s, other} {
		st.ends.mu.Lock()
		if n := len(st.ends.of); n > 2 {
			t.Errorf("a process keeps the ends of %d documents, of 2", n)
		}
		st.ends.mu.Unlock()
	}
}

// The end of a document, by the process that has put it, does not take what another has put since.
func TestAPutBesideAnEnd(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), WithPrefix(newPrefix())
	one, two := open(t, connect(t, server.URL()), prefix), open(t, connect(t, server.URL()), prefix)
	var wg sync.WaitGroup
	for i := range 20 {
		wg.Go(func() {
			name := fmt.Sprint("k", i)
			for range 5 {
				short := aDocument(name, "short", store.AnyVersion)
				short.TTL = 20 * time.Millisecond
				first := putsDocument(t, one, short)
				<-time.After(short.TTL - 5*time.Millisecond + rand.N(10*time.Millisecond))
				version := []int64{store.AnyVersion, store.NoDocument, first}[i%3]
				data := "long"
				if version == first && i%2 == 0 {
					data = "short" // a renewal
				}
				put, ok, err := two.PutDocument(t.Context(), aDocument(name, data, version))
				if err != nil || !ok && version == store.AnyVersion {
					t.Errorf("PutDocument: %d, %t, %v", put, ok, err)
					return
				}
				<-time.After(30 * time.Millisecond) // as long as the end may take
				doc, found, err := two.GetDocument(t.Context(), "s", name)
				if err != nil || ok && (!found || doc.Version != put || string(doc.Data) != data) {
					t.Errorf("with version %d put: %+v, %t, %v", put, doc, found, err)
				}
				if _, err := two.RemoveDocument(t.Context(), "s", name, store.AnyVersion); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait()
}

// A process that dies leaves its documents until their TTL is over, and not for long after it; one
// that closes its store leaves them, too.
func TestDocumentsOfADeadProcess(t *testing.T) {
	t.Parallel()
	server, prefix := etcdtest.Shared(t), WithPrefix(newPrefix())
	proxy := faultproxy.New(t, bytes{}, server.Addr())
	dies, closes := open(t, connect(t, proxy.Addr()), prefix, WithTimeout(testpace.Scale(3*time.Second))), open(t, connect(t, server.URL()), prefix)
	other := open(t, connect(t, server.URL()), prefix)
	stays := aDocument("stays", "text", store.AnyVersion)
	stays.TTL = 0
	version := putsDocument(t, dies, stays)
	putsDocument(t, closes, aDocument("closed", "text", store.AnyVersion))
	ends := aDocument("ends", "text", store.AnyVersion)
	ends.TTL = 2 * time.Second
	before := time.Now()
	putsDocument(t, dies, ends)
	proxy.BlackHole()
	proxy.CutAll()
	if err := closes.Close(); err != nil {
		t.Error(err)
	}
	testpace.Eventually(t, ends.TTL+10*time.Second, "the document of a dead process ends", func() bool {
		doc, found, err := other.GetDocument(t.Context(), "s", "ends")
		past := time.Since(before)
		switch {
		case err != nil:
			t.Fatal(err)
		case found && (doc.Age < 0 || doc.Expires <= 0 || doc.Expires > ends.TTL):
			t.Fatalf("%v old, expires in %v", doc.Age, doc.Expires)
		case !found && past < ends.TTL:
			t.Fatalf("it has ended after %v", past)
		}
		return !found
	})
	if doc := hasDocument(t, other, "stays", "text"); doc.Version != version {
		t.Errorf("%+v", doc)
	}
	hasDocument(t, other, "closed", "text")
}

// The replies to steps are lost: a put and a remove repeat them, and have the result that they
// would have had.
func TestDocumentsAfterLostReplies(t *testing.T) {
	t.Parallel()
	for _, silent := range []bool{false, true} {
		for _, call := range []string{"Txn", "Range", "LeaseGrant", "LeaseRevoke"} {
			for n := 1; n <= 3; n++ {
				t.Run(fmt.Sprintf("%s %d, silent %v", call, n, silent), func(t *testing.T) {
					t.Parallel()
					server, prefix := etcdtest.Shared(t), WithPrefix(newPrefix())
					p := newProxy(t, server.Addr())
					s := open(t, connect(t, p.address), prefix, WithTimeout(testpace.Scale(500*time.Millisecond)))
					other := open(t, connect(t, server.URL()), prefix)
					version := putsDocument(t, other, aDocument("a", "one", store.AnyVersion))
					sure := func(what string, err error) bool {
						t.Helper()
						if err != nil && !errors.Is(err, store.ErrUnavailable) {
							t.Errorf("%s: %v", what, err)
						}
						return err == nil
					}
					for i, req := range []store.DocumentRequest{
						aDocument("a", "two", version), aDocument("b", "new", store.NoDocument), aDocument("a", "three", store.AnyVersion),
					} {
						p.lose(call, n, silent)
						put, ok, err := s.PutDocument(t.Context(), req)
						p.lose(call, 0, false)
						if sure("PutDocument", err) && !ok && i < 2 {
							t.Errorf("put %d is refused", i)
						}
						if doc, found, err := other.GetDocument(t.Context(), "s", req.Name); ok && (err != nil || !found || doc.Version != put || string(doc.Data) != string(req.Data)) {
							t.Errorf("put %d as version %d: %+v, %t, %v", i, put, doc, found, err)
						}
						if again, ok, err := other.PutDocument(t.Context(), req); err != nil || !ok {
							t.Errorf("the repeat of put %d: %d, %t, %v", i, again, ok, err)
						}
					}
					p.lose(call, n, silent)
					gone, err := s.RemoveDocument(t.Context(), "s", "a", store.AnyVersion)
					p.lose(call, 0, false)
					if sure("RemoveDocument", err) && !gone {
						t.Error("it is not removed")
					}
					removesDocument(t, other, "a")
					hasDocument(t, other, "a", "")
				})
			}
		}
	}
}

// A put is sent twice, and the first request reaches the server late: after the second one, and after
// its document was replaced, removed or has ended. It changes nothing.
func TestALatePut(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	p := newProxy(t, server.Addr())
	c := connect(t, server.URL())
	s, other := open(t, connect(t, p.address)), open(t, c)
	putsDocument(t, s, aDocument("first", "text", store.AnyVersion))
	const put = 2 // after the read
	t.Run("after a remove", func(t *testing.T) {
		arrive := p.keep(t, "Txn", put, func() {})
		putsDocument(t, s, aDocument("a", "text", store.NoDocument))
		removesDocument(t, other, "a")
		arrive()
		hasDocument(t, other, "a", "")
	})
	t.Run("after its end", func(t *testing.T) {
		arrive := p.keep(t, "Txn", put, func() {})
		short := aDocument("a", "text", store.NoDocument)
		short.TTL = 10 * time.Millisecond
		putsDocument(t, s, short)
		testpace.Eventually(t, 5*time.Second, "it ends", func() bool {
			_, found, err := other.GetDocument(t.Context(), "s", "a")
			return err == nil && !found
		})
		arrive()
		hasDocument(t, other, "a", "")
	})
	t.Run("after another put", func(t *testing.T) {
		putsDocument(t, s, aDocument("a", "before", store.AnyVersion))
		arrive := p.keep(t, "Txn", put, func() {})
		putsDocument(t, s, aDocument("a", "text", store.AnyVersion))
		putsDocument(t, other, aDocument("a", "other", store.AnyVersion))
		arrive()
		hasDocument(t, other, "a", "other")
		removesDocument(t, other, "a")
	})
	t.Run("after it was refused", func(t *testing.T) {
		arrive := p.keep(t, "Txn", put, func() { putsDocument(t, other, aDocument("a", "other", store.NoDocument)) })
		if version, ok, err := s.PutDocument(t.Context(), aDocument("a", "text", store.NoDocument)); ok || err != nil {
			t.Errorf("PutDocument: %d, %t, %v", version, ok, err)
		}
		removesDocument(t, other, "a")
		arrive()
		hasDocument(t, other, "a", "")
	})
	if n := countLeases(t, c); n != 1 {
		t.Errorf("%d leases of one document", n)
	}
}

// Documents survive a restart of the server. A document whose TTL ends during the outage ends after
// it.
func TestDocumentsAfterARestart(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	c := connect(t, server.URL())
	s, brief := open(t, c), open(t, c, WithTimeout(time.Second))
	version := putsDocument(t, s, aDocument("stays", "text", store.AnyVersion))
	short := aDocument("short", "text", store.AnyVersion)
	short.TTL = testpace.Scale(500 * time.Millisecond)
	putsDocument(t, s, short)
	server.Stop()
	if _, _, err := brief.PutDocument(t.Context(), aDocument("new", "text", store.AnyVersion)); !store.Down(err) {
		t.Errorf("PutDocument: %v", err)
	}
	<-time.After(short.TTL)
	server.Restart()
	testpace.Eventually(t, 20*time.Second, "the server replies", func() bool {
		_, found, err := s.GetDocument(t.Context(), "s", "stays")
		return err == nil && found
	})
	hasDocument(t, s, "short", "")
	testpace.Eventually(t, 5*time.Second, "its lease is gone", func() bool { return countLeases(t, c) == 1 })
	if doc := hasDocument(t, s, "stays", "text"); doc.Version != version {
		t.Errorf("version %d, before it was %d", doc.Version, version)
	}
	if next := putsDocument(t, s, aDocument("stays", "new", version)); next <= version {
		t.Errorf("version %d after %d", next, version)
	}
}

// A restore from a backup sets revisions back, and with RaiseFences versions grow all the same.
func TestVersionsAfterARestore(t *testing.T) {
	t.Parallel()
	c, prefix := connect(t, etcdtest.Shared(t).URL()), WithPrefix(newPrefix())
	s, other := open(t, c, prefix), open(t, c, prefix)
	before := putsDocument(t, s, aDocument("a", "text", store.AnyVersion))
	if err := other.RaiseFences(t.Context()); err != nil {
		t.Fatal(err)
	}
	base := other.base.Load()
	after := putsDocument(t, s, aDocument("a", "text", store.AnyVersion))
	if after <= base || base < before { // equal if revisions are ahead of the clock
		t.Errorf("version %d, base %d, version %d", before, base, after)
	}
	if renewed := putsDocument(t, other, aDocument("a", "text", after)); renewed != after {
		t.Errorf("renewed as %d, want %d", renewed, after)
	}
}

// A server without room takes no document. It still reads, removes and ends its documents, also if it
// refuses all transactions.
func TestDocumentsOfAFullServer(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t, "--quota-backend-bytes", fmt.Sprint(16<<20))
	p := newProxy(t, server.Addr())
	c := connect(t, server.URL())
	s := open(t, connect(t, p.address))
	putsDocument(t, s, aDocument("a", "text", store.AnyVersion))
	putsDocument(t, s, aDocument("b", "text", store.AnyVersion))
	short := aDocument("short", "text", store.AnyVersion)
	short.TTL = testpace.Scale(time.Second)
	putsDocument(t, s, short)
	fill(t, c)
	for _, req := range []store.DocumentRequest{aDocument("new", "text", store.NoDocument), aDocument("a", "more", store.AnyVersion)} {
		if _, ok, err := s.PutDocument(t.Context(), req); ok || !errors.Is(err, store.ErrFull) {
			t.Errorf("PutDocument: %t, %v", ok, err)
		}
	}
	removesDocument(t, s, "a")
	hasDocument(t, s, "a", "")
	hasDocument(t, s, "b", "text")
	p.refuse("Txn", rpctypes.ErrGRPCNoSpace)
	testpace.Eventually(t, 10*time.Second, "a document ends", func() bool {
		return countLeases(t, c) == 1
	})
	removesDocument(t, s, "b")
	if n := countLeases(t, c); n != 0 {
		t.Errorf("%d leases of no document", n)
	}
}

// A user who may only read cannot put, and leaves no lease behind. Names and data are text, and
// spaces are not.
func TestRightsOnDocuments(t *testing.T) {
	t.Parallel()
	server := etcdtest.Start(t)
	c := connect(t, server.URL())
	ctx := t.Context()
	putsDocument(t, open(t, c, WithPrefix("mine")), aDocument("named", "text", store.AnyVersion))
	for _, err := range []error{
		second(c.UserAdd(ctx, "root", "secret")), second(c.UserGrantRole(ctx, "root", "root")), second(c.RoleAdd(ctx, "reads")),
		second(c.RoleGrantPermission(ctx, "reads", "mine/", clientv3.GetPrefixRangeEnd("mine/"), clientv3.PermissionType(clientv3.PermRead))),
		second(c.UserAdd(ctx, "reader", "secret")), second(c.UserGrantRole(ctx, "reader", "reads")), second(c.AuthEnable(ctx)),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	as := func(user string) *clientv3.Client {
		c, err := clientv3.New(clientv3.Config{
			Endpoints: []string{server.URL()}, Username: user, Password: "secret", DialTimeout: 5 * time.Second, Logger: zap.NewNop(),
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	s := open(t, as("reader"), WithPrefix("mine"))
	hasDocument(t, s, "named", "text")
	for _, req := range []store.DocumentRequest{aDocument("new", "text", store.NoDocument), aDocument("named", "more", store.AnyVersion)} {
		if _, ok, err := s.PutDocument(ctx, req); ok || !errors.Is(err, store.ErrMisconfigured) || store.CauseOf(err) != store.Permission {
			t.Errorf("PutDocument: %t, %v", ok, err)
		}
	}
	if _, err := s.RemoveDocument(ctx, "s", "named", store.AnyVersion); !errors.Is(err, store.ErrMisconfigured) {
		t.Errorf("RemoveDocument: %v", err)
	}
	root := as("root")
	if n := countLeases(t, root); n != 1 {
		t.Errorf("%d leases of one document", n)
	}
	all, err := root.Get(ctx, "mine/d/", clientv3.WithPrefix())
	if err != nil || len(all.Kvs) != 1 || strings.Contains(string(all.Kvs[0].Key), "named") || !strings.HasSuffix(string(all.Kvs[0].Value), "namedtext") {
		t.Errorf("%v, %v", all, err)
	}
}

// Damaged documents, and those of another release, are none, and are replaced. Ages by a clock that
// is wrong are within bounds, and end nothing. A document that has lost its lease can be removed.
func TestOddDocuments(t *testing.T) {
	t.Parallel()
	c := connect(t, etcdtest.Shared(t).URL())
	s := open(t, c, WithPrefix(newPrefix()))
	put := func(name, value string) {
		t.Helper()
		if _, err := c.Put(t.Context(), s.documentKey("s", name), value); err != nil {
			t.Fatal(err)
		}
	}
	whole := func(name string, change func(*documentHead)) string {
		now := time.Now().UnixMicro()
		head := documentHead{Layout: documentLayout, Base: 1, TTL: time.Hour.Microseconds(), Made: now, Put: now, Name: uint16(len(name))} //nolint:gosec // short
		change(&head)
		return string(must(binary.Append(nil, binary.BigEndian, &head))) + name + "text"
	}
	for name, value := range map[string]string{
		"empty": "", "short": whole("short", func(*documentHead) {})[:20], "layout": whole("layout", func(h *documentHead) { h.Layout = 2 }),
		"name": whole("name", func(h *documentHead) { h.Name = 1000 }),
	} {
		put(name, value)
		hasDocument(t, s, name, "")
		if version, ok, err := s.PutDocument(t.Context(), aDocument(name, "new", 1)); ok || version != 0 || err != nil {
			t.Errorf("%s: %d, %t, %v", name, version, ok, err)
		}
		putsDocument(t, s, aDocument(name, "new", store.NoDocument))
		hasDocument(t, s, name, "new")
	}
	for name, shift := range map[string]time.Duration{"slow": 365 * 24 * time.Hour, "fast": -365 * 24 * time.Hour} {
		put(name, whole(name, func(h *documentHead) {
			h.Made, h.Put = h.Made+shift.Microseconds(), h.Put+shift.Microseconds()
		}))
		if doc := hasDocument(t, s, name, "text"); doc.Age < 0 || doc.Expires <= 0 || doc.Expires > time.Hour {
			t.Errorf("%s: %v old, expires in %v", name, doc.Age, doc.Expires)
		}
	}
	var listed []string
	for doc, err := range s.ListDocuments(t.Context(), "s") {
		if err != nil {
			t.Fatal(err)
		}
		listed = append(listed, doc.Name)
	}
	slices.Sort(listed)
	if want := []string{"empty", "fast", "layout", "name", "short", "slow"}; !slices.Equal(listed, want) {
		t.Errorf("listed: %q", listed)
	}
	removesDocument(t, s, "slow")
	hasDocument(t, s, "slow", "")
}

// Concurrent puts of new documents, of two processes, do not exceed the bound of a space.
func TestPutsOfAFullSpace(t *testing.T) {
	t.Parallel()
	c, prefix := connect(t, etcdtest.Shared(t).URL()), WithPrefix(newPrefix())
	stores := []*Store{open(t, c, prefix), open(t, c, prefix)}
	const room = 3
	for n := 0; n < store.MaxDocuments-room; {
		var steps []clientv3.Op
		for ; n < store.MaxDocuments-room && len(steps) < inTransaction; n++ {
			steps = append(steps, clientv3.OpPut(stores[0].space("s")+fmt.Sprint(n), ""))
		}
		if _, err := c.Txn(t.Context()).Then(steps...).Commit(); err != nil {
			t.Fatal(err)
		}
	}
	var (
		wg  sync.WaitGroup
		put atomic.Int64
	)
	for i := range 20 {
		wg.Go(func() {
			_, ok, err := stores[i%2].PutDocument(t.Context(), aDocument(fmt.Sprint("further", i), "text", store.AnyVersion))
			switch {
			case ok:
				put.Add(1)
			case !errors.Is(err, store.ErrFull):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	all, err := c.Get(context.Background(), stores[0].space("s"), clientv3.WithPrefix(), clientv3.WithCountOnly())
	if err != nil || put.Load() != room || all.Count != store.MaxDocuments {
		t.Errorf("%d were put, and there are %d: %v", put.Load(), all.Count, err)
	}
}
