package pgstore

import (
	"context"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/lockkeeper/lockkeeper/core/internal/batch"
	"github.com/lockkeeper/lockkeeper/core/pgstore/internal/statement"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// PutDocument implements store.Documents: one statement.
func (s *Store) PutDocument(ctx context.Context, req store.DocumentRequest) (version int64, ok bool, err error) {
	if s.hooks.Begun() {
		return 0, false, store.ErrClosed
	}
	if err := req.Check(); err != nil {
		return 0, false, err
	}
	call := statement.Call{Operation: opDocuments, Writes: true}
	outcome, err := statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (outcome int, err error) {
		err = c.QueryRow(ctx, s.db.Text(`SELECT outcome, version FROM lk.put_document_1($1, $2, $3, $4, $5, $6)`),
			[]byte(req.Space), []byte(req.Name), append([]byte{}, req.Data...), (req.Life()+time.Microsecond-1).Microseconds(), req.Version, store.MaxDocuments).
			Scan(&outcome, &version)
		return outcome, err
	})
	switch {
	case err != nil:
		return 0, false, err
	case outcome < 0:
		return 0, false, fmt.Errorf("%w: a space has at most %d documents", store.ErrFull, store.MaxDocuments)
	}
	return version, outcome == 1, nil
}

// GetDocument implements store.Documents: one statement, which changes nothing.
func (s *Store) GetDocument(ctx context.Context, space, name string) (doc store.Document, found bool, err error) {
	if err := store.CheckDocumentName(space, name); err != nil {
		return doc, false, err
	}
	page, err := s.documents(ctx, `SELECT name, version, greatest(at - put, 0), expires - at, data, 1
		FROM lk.now_us() at, lk.documents WHERE space = $1 AND name = $2 AND expires > at`, []byte(space), []byte(name))
	if err != nil || len(page.docs) == 0 {
		return doc, false, err
	}
	return page.docs[0], true, nil
}

// documentPage is the result of a statement that reads documents: these, and how many it has found.
type documentPage struct {
	docs  []store.Document
	found int
}

// documents runs a statement that reads documents.
func (s *Store) documents(ctx context.Context, text string, args ...any) (documentPage, error) {
	call := statement.Call{Operation: opDocuments, Urgency: batch.Reading}
	return statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (p documentPage, err error) {
		rows, err := c.Query(ctx, s.db.Text(text), args...)
		if err != nil {
			return p, err
		}
		p.docs, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (doc store.Document, err error) {
			var (
				name      []byte
				age, left int64
			)
			err = row.Scan(&name, &doc.Version, &age, &left, &doc.Data, &p.found)
			doc.Name, doc.Age, doc.Expires = string(name), micros(age), micros(left)
			return doc, err
		})
		return p, err
	})
}

// listDocumentsSQL returns a page of documents, which ends when it has four MiB of data.
const listDocumentsSQL = `SELECT name, version, greatest(at - put, 0), expires - at, data, found
FROM (SELECT d.*, count(*) OVER () AS found,
    coalesce(sum(octet_length(data)) OVER (ORDER BY name ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING), 0) AS before
  FROM (SELECT d.*, at FROM lk.now_us() at, lk.documents d
    WHERE space = $1 AND name > $2 AND expires > at ORDER BY name LIMIT $3) d) page
WHERE before < 4194304 ORDER BY name`

// ListDocuments implements store.Documents: a statement for up to 500 documents of up to four MiB
// together, in the order of their names. So a document that is there during the whole listing is
// listed once.
func (s *Store) ListDocuments(ctx context.Context, space string) iter.Seq2[store.Document, error] {
	return func(yield func(store.Document, error) bool) {
		if err := store.CheckDocumentSpace(space); err != nil {
			yield(store.Document{}, err)
			return
		}
		listed, after := 0, []byte{}
		for more := true; more && listed < store.MaxDocuments; {
			p, err := s.documents(ctx, listDocumentsSQL, []byte(space), after, min(listPage, store.MaxDocuments-listed))
			if err != nil {
				yield(store.Document{}, err)
				return
			}
			for _, doc := range p.docs {
				if !yield(doc, nil) {
					return
				}
				after = []byte(doc.Name)
			}
			listed += len(p.docs)
			more = p.found == listPage || p.found > len(p.docs)
		}
	}
}

// RemoveDocument implements store.Documents: one statement.
func (s *Store) RemoveDocument(ctx context.Context, space, name string, version int64) (bool, error) {
	if err := store.CheckDocumentVersion(space, name, version); err != nil {
		return false, err
	}
	call := statement.Call{Operation: opDocuments, Writes: true}
	return statement.Run(ctx, s.db, call, func(ctx context.Context, c *pgx.Conn) (gone bool, err error) {
		err = c.QueryRow(ctx, s.db.Text(`SELECT lk.remove_document_1($1, $2, $3)`), []byte(space), []byte(name), version).Scan(&gone)
		return gone, err
	})
}
