package pgstore

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/core/storetest"
)

func TestDocuments(t *testing.T) {
	t.Parallel()
	storetest.Documents(t, runner(migrated(t)))
}

// aDocument returns the put of a document of the space "s".
func aDocument(name, data string, version int64) store.DocumentRequest {
	return store.DocumentRequest{Space: "s", Name: name, Data: []byte(data), TTL: time.Hour, Version: version}
}

func putsDocument(t testing.TB, s *Store, req store.DocumentRequest) int64 {
	t.Helper()
	version, ok, err := s.PutDocument(t.Context(), req)
	if err != nil || !ok {
		t.Fatalf("%d, %t, %v", version, ok, err)
	}
	return version
}

// The rows of documents that were removed, or have expired, are deleted an hour later. Until then
// versions grow although the clock steps back.
func TestSweptDocuments(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	rows := func() (names string) {
		t.Helper()
		must(t, s.db.Pool().QueryRow(t.Context(), s.db.Text(
			`SELECT coalesce(string_agg(convert_from(name, 'UTF8') || ' ' || octet_length(data), ',' ORDER BY name), '') FROM lk.documents`)).Scan(&names))
		return names
	}
	shift := func(by time.Duration) { // the clock
		t.Helper()
		_, err := s.db.Pool().Exec(t.Context(), s.db.Text(`UPDATE lk.documents SET version = version + $1, put = put + $1,
			expires = CASE WHEN expires = 0 THEN 0 ELSE expires + $1 END`), by.Microseconds())
		must(t, err)
	}
	for _, name := range []string{"expired", "removed", "stays"} {
		putsDocument(t, s, aDocument(name, "text", store.AnyVersion))
	}
	if gone, err := s.RemoveDocument(t.Context(), "s", "removed", store.AnyVersion); !gone || err != nil {
		t.Fatalf("%t, %v", gone, err)
	}
	s.sweepOnce(t.Context())
	if got := rows(); got != "expired 4,removed 0,stays 4" {
		t.Errorf("rows: %s", got)
	}
	shift(10 * time.Minute)
	if doc, found, err := s.GetDocument(t.Context(), "s", "removed"); found || err != nil {
		t.Errorf("after a step of the clock: %+v, %v", doc, err)
	}
	ahead := time.Now().Add(9 * time.Minute).UnixMicro()
	if version := putsDocument(t, s, aDocument("removed", "new", store.NoDocument)); version < ahead {
		t.Errorf("version %d, although the last one was larger than %d", version, ahead)
	}
	if gone, err := s.RemoveDocument(t.Context(), "s", "removed", store.AnyVersion); !gone || err != nil {
		t.Fatalf("%t, %v", gone, err)
	}
	shift(-3 * time.Hour)
	putsDocument(t, s, aDocument("stays", "text", store.AnyVersion))
	for s.sweepOnce(t.Context()) {
	}
	if got := rows(); got != "stays 4" {
		t.Errorf("rows: %s", got)
	}
}

// Concurrent puts of new documents do not exceed the bound of a space.
func TestPutsOfAFullSpace(t *testing.T) {
	t.Parallel()
	s := newTestStore(t)
	_, err := s.db.Pool().Exec(t.Context(), s.db.Text(`INSERT INTO lk.documents (space, name, version, replaced, put, expires, data)
		SELECT 's', convert_to('k' || i, 'UTF8'), 1, 0, 0, lk.now_us() + 3600000000, '' FROM generate_series(1, $1::int) i`), store.MaxDocuments-3)
	must(t, err)
	var (
		wg  sync.WaitGroup
		put atomic.Int64
	)
	for i := range 20 {
		wg.Go(func() {
			_, ok, err := s.PutDocument(t.Context(), aDocument(fmt.Sprint("further", i), "text", store.AnyVersion))
			switch {
			case ok:
				put.Add(1)
			case !errors.Is(err, store.ErrFull):
				t.Error(err)
			}
		})
	}
	wg.Wait()
	var rows int
	must(t, s.db.Pool().QueryRow(t.Context(), s.db.Text(`SELECT count(*) FROM lk.documents`)).Scan(&rows))
	if put.Load() != 3 || rows != store.MaxDocuments {
		t.Errorf("%d were put, and there are %d rows", put.Load(), rows)
	}
}
