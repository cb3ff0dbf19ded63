package memstore

import (
	"bytes"
	"context"
	"fmt"
	"iter"
	"math"
	"strings"
	"sync"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/expiry"
)

// documents are the documents of all spaces, with one mutex: they change a few times a second.
type documents struct {
	mu       sync.Mutex
	table    expiry.Table[documentName, document]
	spaces   map[string]int // the number of documents of each
	bytes    int            // of all
	limit    int
	versions fences
}

type documentName struct{ space, name string }

type document struct {
	documentName
	data     []byte
	version  int64
	replaced int64 // the Version of the put that has made it
	put      int64 // when
}

// documentBytes is about what a document takes beside its data and its names.
const documentBytes = 512

func (doc *document) size() int {
	return documentBytes + len(doc.space) + len(doc.name) + len(doc.data)
}

func (d *documents) init(limit int, epoch int64) {
	d.spaces, d.limit, d.versions.epoch = make(map[string]int), limit, epoch
	d.table = expiry.NewTable[documentName](math.MaxInt, d.removed) // the bytes bound it
}

// removed counts a document that was removed.
func (d *documents) removed(doc *document) {
	d.bytes -= doc.size()
	if d.spaces[doc.space]--; d.spaces[doc.space] == 0 {
		delete(d.spaces, doc.space)
	}
}

// PutDocument implements store.Documents.
func (s *Store) PutDocument(ctx context.Context, req store.DocumentRequest) (version int64, ok bool, err error) {
	if err := s.acceptsNew(ctx); err != nil {
		return 0, false, err
	}
	if err := req.Check(); err != nil {
		return 0, false, err
	}
	s.documents.mu.Lock()
	defer s.documents.mu.Unlock()
	return s.documents.put(&req, s.now())
}

func (d *documents) put(req *store.DocumentRequest, now int64) (version int64, ok bool, err error) {
	at, expires := documentName{req.Space, req.Name}, now+micros(req.Life())
	e := d.table.Get(at, now)
	switch {
	case e == nil:
		if req.Version > 0 {
			return 0, false, nil
		}
		return d.add(req, expires, now)
	case req.Version == store.AnyVersion:
	case req.Version == e.Value.version:
		if bytes.Equal(req.Data, e.Value.data) {
			e.Expires = expires
			return req.Version, true, nil
		}
	default:
		repeat := req.Version == e.Value.replaced && bytes.Equal(req.Data, e.Value.data)
		return e.Value.version, repeat, nil
	}
	if more := len(req.Data) - len(e.Value.data); more > 0 && !d.room(more, now) {
		return 0, false, store.ErrFull
	}
	// Room may have moved the entry.
	e = d.table.Get(at, now)
	d.bytes += len(req.Data) - len(e.Value.data)
	e.Value, e.Expires = d.make(e.Value.documentName, req, now), expires
	return e.Value.version, true, nil
}

// add adds a document to a space.
func (d *documents) add(req *store.DocumentRequest, expires, now int64) (version int64, ok bool, err error) {
	if d.spaces[req.Space] >= store.MaxDocuments {
		d.table.Sweep(d.table.Len(), now)
	}
	if d.spaces[req.Space] >= store.MaxDocuments {
		return 0, false, fmt.Errorf("%w: a space has at most %d documents", store.ErrFull, store.MaxDocuments)
	}
	doc := d.make(documentName{strings.Clone(req.Space), strings.Clone(req.Name)}, req, now)
	if !d.room(doc.size(), now) {
		return 0, false, store.ErrFull
	}
	d.table.Add(doc.documentName, doc, expires, now)
	d.spaces[doc.space]++
	d.bytes += doc.size()
	return doc.version, true, nil
}

// room reports whether there is room for some bytes, after a sweep of expired documents.
func (d *documents) room(bytes int, now int64) bool {
	if d.bytes+bytes > d.limit {
		d.table.Sweep(d.table.Len(), now)
	}
	return d.bytes+bytes <= d.limit
}

// make returns the next version of a document.
func (d *documents) make(at documentName, req *store.DocumentRequest, now int64) document {
	version, _ := d.versions.mint(1, now)
	return document{at, bytes.Clone(req.Data), version, req.Version, now}
}

// GetDocument implements store.Documents.
func (s *Store) GetDocument(ctx context.Context, space, name string) (doc store.Document, found bool, err error) {
	if err := s.ready(ctx); err != nil {
		return doc, false, err
	}
	if err := store.CheckDocumentName(space, name); err != nil {
		return doc, false, err
	}
	doc, found = s.document(documentName{space, name})
	return doc, found, nil
}

func (s *Store) document(at documentName) (store.Document, bool) {
	s.documents.mu.Lock()
	defer s.documents.mu.Unlock()
	now := s.now()
	e := s.documents.table.Get(at, now)
	if e == nil {
		return store.Document{}, false
	}
	return store.Document{
		Name: e.Value.name, Data: bytes.Clone(e.Value.data), Version: e.Value.version,
		Age: duration(now - e.Value.put), Expires: duration(e.Expires - now),
	}, true
}

// ListDocuments implements store.Documents. The mutex is not locked while it yields.
func (s *Store) ListDocuments(ctx context.Context, space string) iter.Seq2[store.Document, error] {
	return func(yield func(store.Document, error) bool) {
		err := s.ready(ctx)
		if err == nil {
			err = store.CheckDocumentSpace(space)
		}
		if err != nil {
			yield(store.Document{}, err)
			return
		}
		for _, at := range s.documents.names(space) {
			if err := s.ready(ctx); err != nil {
				yield(store.Document{}, err)
				return
			}
			if doc, found := s.document(at); found && !yield(doc, nil) {
				return
			}
		}
	}
}

// names returns the names of a space, also of documents that have expired.
func (d *documents) names(space string) (names []documentName) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.spaces[space] == 0 {
		return nil
	}
	for at := range d.table.Keys() {
		if at.space == space {
			names = append(names, at)
		}
	}
	return names
}

// RemoveDocument implements store.Documents.
func (s *Store) RemoveDocument(ctx context.Context, space, name string, version int64) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	if err := store.CheckDocumentVersion(space, name, version); err != nil {
		return false, err
	}
	d, at := &s.documents, documentName{space, name}
	d.mu.Lock()
	defer d.mu.Unlock()
	if e := d.table.Get(at, s.now()); e != nil && version != store.AnyVersion && version != e.Value.version {
		return false, nil
	}
	d.table.Remove(at)
	return true, nil
}

func (d *documents) count() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.table.Len()
}
