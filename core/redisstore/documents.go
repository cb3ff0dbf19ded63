package redisstore

import (
	"context"
	"fmt"
	"iter"

	"github.com/lockkeeper/lockkeeper/core/redisstore/internal/script"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// documentKeys returns the keys of a space: scripts/lib/document.lua says what each has.
func (s *Store) documentKeys(space string) []string {
	stem := s.config.prefix + ofDocuments + s.tag(space, "") + "}"
	return []string{stem, stem + "e"}
}

// documentVersion returns a version as scripts compare it. One of more than 16 digits is none of a
// document.
func documentVersion(version int64) string { return fmt.Sprintf("%016d", version) }

// PutDocument implements store.Documents: one script call.
func (s *Store) PutDocument(ctx context.Context, req store.DocumentRequest) (version int64, ok bool, err error) {
	if s.hooks.Begun() {
		return 0, false, store.ErrClosed
	}
	if err := req.Check(); err != nil {
		return 0, false, err
	}
	call := putDocument.Call(s.documentKeys(req.Space), req.Name, req.Data, ceilMicros(req.Life()), documentVersion(req.Version), store.MaxDocuments)
	outcome, err := script.Run(ctx, s.redis, script.Step{Call: call, Operation: opDocuments, Begins: true}, func(r script.Reply) (int64, error) {
		fields := script.Fields(r.Value)
		outcome := fields.Number()
		version = fields.Number()
		return outcome, fields.Err
	})
	switch {
	case err != nil:
		return 0, false, err
	case outcome < 0:
		return 0, false, fmt.Errorf("%w: a space has at most %d documents", store.ErrFull, store.MaxDocuments)
	}
	return version, outcome == 1, nil
}

// GetDocument implements store.Documents: one script call, which changes nothing.
func (s *Store) GetDocument(ctx context.Context, space, name string) (doc store.Document, found bool, err error) {
	if err := store.CheckDocumentName(space, name); err != nil {
		return doc, false, err
	}
	st := script.Step{
		Call: getDocument.Call(s.documentKeys(space), name), Operation: opReadDocuments, Urgency: script.Reading,
		ReplySize: store.MaxDocumentSize,
	}
	doc, err = script.Run(ctx, s.redis, st, func(r script.Reply) (doc store.Document, err error) {
		if list, ok := r.Value.([]any); ok && len(list) == 0 {
			return doc, nil
		}
		fields := script.Fields(r.Value)
		return readDocument(fields, name), fields.Err
	})
	return doc, err == nil && doc.Version != 0, err
}

// readDocument reads the fields of a document after its name.
func readDocument(fields *script.Reader, name string) store.Document {
	return store.Document{Name: name, Version: fields.Number(), Age: fields.Micros(), Expires: fields.Micros(), Data: []byte(fields.Text())}
}

// The maxima of a script call that lists, since other requests wait for it.
const (
	maxListedDocuments = 500
	maxListedBytes     = store.MaxDocumentSize
)

// ListDocuments implements store.Documents: one script call for up to 500 documents of up to a MiB
// together.
func (s *Store) ListDocuments(ctx context.Context, space string) iter.Seq2[store.Document, error] {
	return func(yield func(store.Document, error) bool) {
		if err := store.CheckDocumentSpace(space); err != nil {
			yield(store.Document{}, err)
			return
		}
		docs, left, err := s.listDocuments(ctx, space, nil)
		for {
			if err != nil {
				yield(store.Document{}, err)
				return
			}
			for _, doc := range docs {
				if !yield(doc, nil) {
					return
				}
			}
			if len(left) == 0 {
				return
			}
			next := left[:min(len(left), maxListedDocuments)]
			var unread []string
			docs, unread, err = s.listDocuments(ctx, space, next)
			left = left[len(next)-len(unread):]
		}
	}
}

// listDocuments returns documents of a space, and the names that it has not come to: the last ones
// of names, or of the space if names is empty.
func (s *Store) listDocuments(ctx context.Context, space string, names []string) (docs []store.Document, left []string, err error) {
	args := []any{maxListedDocuments, maxListedBytes}
	for _, name := range names {
		args = append(args, name)
	}
	st := script.Step{
		Call: listDocuments.Call(s.documentKeys(space), args...), Operation: opReadDocuments, Urgency: script.Reading,
		ReplySize: maxListedBytes + store.MaxDocumentSize,
	}
	docs, err = script.Run(ctx, s.redis, st, func(r script.Reply) (docs []store.Document, err error) {
		fields := script.Fields(r.Value)
		for range fields.Number() {
			left = append(left, fields.Text())
		}
		for len(fields.Left) > 0 && fields.Err == nil {
			docs = append(docs, readDocument(fields, fields.Text()))
		}
		return docs, fields.Err
	})
	return docs, left, err
}

// RemoveDocument implements store.Documents: one script call.
func (s *Store) RemoveDocument(ctx context.Context, space, name string, version int64) (bool, error) {
	if err := store.CheckDocumentVersion(space, name, version); err != nil {
		return false, err
	}
	call := removeDocument.Call(s.documentKeys(space), name, documentVersion(version))
	st := script.Step{Call: call, Operation: opDocuments, Urgency: script.Finishing}
	return script.Run(ctx, s.redis, st, func(r script.Reply) (bool, error) { return script.IsOne(r.Value) })
}
