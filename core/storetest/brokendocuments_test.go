package storetest_test

import (
	"bytes"
	"context"
	"errors"
	"iter"
	"sync"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// brokenDocuments are stores that break a promise about documents.
var brokenDocuments = map[string]badDocuments{
	"compares no version":                  {request: func(r *store.DocumentRequest) { r.Version = store.AnyVersion }},
	"replaces a document that must be new": {request: func(r *store.DocumentRequest) { r.Version = max(r.Version, store.AnyVersion) }},
	"replaces nothing without a version": {request: func(r *store.DocumentRequest) {
		r.Version = yes(r.Version == store.AnyVersion, store.NoDocument, r.Version)
	}},
	"keeps data of a fixed size":        {request: func(r *store.DocumentRequest) { r.Data = r.Data[:min(len(r.Data), 8)] }},
	"has one space":                     {request: func(r *store.DocumentRequest) { r.Space = "s" }, spaces: "s"},
	"keeps every document for an hour":  {request: func(r *store.DocumentRequest) { r.TTL = max(r.TTL, time.Hour) }},
	"keeps no document for long":        {request: func(r *store.DocumentRequest) { r.TTL = min(r.Life(), 24*time.Hour) }},
	"says nothing of the version there": {put: func(p *documentPut) { p.version = yes(p.ok, p.version, 0) }},
	"refuses nothing":                   {put: func(p *documentPut) { p.ok = p.err == nil }},
	"takes equal data for a repeat":     {put: func(p *documentPut) { p.ok = p.ok || p.found && bytes.Equal(p.old.Data, p.req.Data) }},
	"takes a repeat for a conflict": {put: func(p *documentPut) {
		p.ok = p.ok && (p.req.Version == store.AnyVersion || !p.found || p.req.Version == p.old.Version)
	}},
	"writes a repeat again": {put: func(p *documentPut) {
		if p.ok && p.found && p.version == p.old.Version && p.req.Version != p.old.Version {
			p.again()
		}
	}},
	"makes a version of a renewal": {put: func(p *documentPut) {
		if p.ok && p.found && p.version == p.old.Version && p.req.Version == p.old.Version {
			p.again()
		}
	}},
	"renews by a refused put": {put: func(p *documentPut) {
		if p.err == nil && !p.ok && p.found {
			_, _, _ = p.store.PutDocument(context.Background(), store.DocumentRequest{
				Space: p.req.Space, Name: p.req.Name, Data: p.old.Data, Version: p.old.Version,
			})
		}
	}},
	"drops what a full space does not take": {put: func(p *documentPut) {
		if errors.Is(p.err, store.ErrFull) {
			p.version, p.ok, p.err = 1, true, nil
		}
	}},
	"takes every request": {put: func(p *documentPut) {
		if errors.Is(p.err, store.ErrInvalidDocument) {
			p.version, p.ok, p.err = 1, true, nil
		}
	}},
	"compares and then puts": {puts: func(s store.Store, ctx context.Context, req store.DocumentRequest) (int64, bool, error) {
		doc, _, err := s.GetDocument(ctx, req.Space, req.Name)
		if err == nil && (req.Version > 0 && doc.Version == req.Version && !bytes.Equal(doc.Data, req.Data) || req.Version < 0 && doc.Version == 0) {
			time.Sleep(time.Millisecond)
			req.Version = store.AnyVersion
		}
		return s.PutDocument(ctx, req)
	}},
	"takes nothing if it is full": {puts: func(s store.Store, ctx context.Context, req store.DocumentRequest) (int64, bool, error) {
		if req.Name == "k1" && bytes.Equal(req.Data, []byte("other")) {
			return 0, false, store.ErrFull
		}
		return s.PutDocument(ctx, req)
	}},
	"counts versions down":      {version: func(v int64) int64 { return yes(v > 0, 1<<60-v, v) }},
	"has no age":                {read: func(d *store.Document) { d.Age = 0 }},
	"says no expiry":            {read: func(d *store.Document) { d.Expires = store.MaxDocumentTTL }},
	"removes any version":       {remove: func(int64) int64 { return store.AnyVersion }},
	"finds nothing to remove":   {absent: true},
	"lists documents twice":     {lists: 2},
	"lists no data":             {listed: func(d *store.Document) { d.Data = nil }},
	"lists nothing":             {lists: -1},
	"hands out what it keeps":   {aliases: new(sync.Map)},
	"does not say that it ends": {endless: true},
}

func yes[T any](is bool, then, otherwise T) T {
	if is {
		return then
	}
	return otherwise
}

// documentPut is a put, what was there before, and its reply.
type documentPut struct {
	store   store.Store
	req     store.DocumentRequest
	old     store.Document
	found   bool
	version int64
	ok      bool
	err     error
}

// again puts the document once more.
func (p *documentPut) again() {
	p.req.Version = store.AnyVersion
	p.version, p.ok, p.err = p.store.PutDocument(context.Background(), p.req)
}

// badDocuments is a store that breaks a promise in the functions that it has.
type badDocuments struct {
	store.Store

	request func(*store.DocumentRequest)
	put     func(*documentPut)
	puts    func(store.Store, context.Context, store.DocumentRequest) (int64, bool, error)
	spaces  string // the name of all
	version func(int64) int64
	read    func(*store.Document)
	listed  func(*store.Document)
	lists   int // each document so often; -1 for none
	remove  func(int64) int64
	absent  bool      // a remove returns false if there is none
	aliases *sync.Map // the data of each version, as they were handed out
	endless bool      // it is never closed
}

func (b badDocuments) space(space string) string {
	return yes(b.spaces != "" && space != "", b.spaces, space)
}

func (b badDocuments) flip(version int64) int64 {
	if b.version == nil {
		return version
	}
	return b.version(version)
}

func (b badDocuments) PutDocument(ctx context.Context, req store.DocumentRequest) (int64, bool, error) {
	if b.request != nil && req.Check() == nil {
		b.request(&req)
	}
	if b.puts != nil {
		return b.puts(b.Store, ctx, req)
	}
	p := documentPut{store: b.Store, req: req}
	p.req.Version = b.flip(req.Version)
	if b.put != nil {
		p.old, p.found, _ = b.Store.GetDocument(ctx, req.Space, req.Name)
	}
	p.version, p.ok, p.err = b.Store.PutDocument(ctx, p.req)
	if b.put != nil {
		b.put(&p)
	}
	return b.flip(p.version), p.ok, p.err
}

func (b badDocuments) GetDocument(ctx context.Context, space, name string) (store.Document, bool, error) {
	doc, found, err := b.Store.GetDocument(ctx, b.space(space), name)
	if b.endless && errors.Is(err, store.ErrClosed) {
		err = nil
	}
	return b.shown(doc), found, err
}

func (b badDocuments) shown(doc store.Document) store.Document {
	doc.Version = b.flip(doc.Version)
	if b.read != nil {
		b.read(&doc)
	}
	if b.aliases != nil {
		kept, _ := b.aliases.LoadOrStore(doc.Version, doc.Data)
		doc.Data = kept.([]byte)
	}
	return doc
}

func (b badDocuments) ListDocuments(ctx context.Context, space string) iter.Seq2[store.Document, error] {
	return func(yield func(store.Document, error) bool) {
		for doc, err := range b.Store.ListDocuments(ctx, b.space(space)) {
			doc = b.shown(doc)
			if b.listed != nil {
				b.listed(&doc)
			}
			times := yes(b.lists == 0, 1, b.lists)
			for range yes(err != nil, 1, times) {
				if !yield(doc, err) {
					return
				}
			}
		}
	}
}

func (b badDocuments) RemoveDocument(ctx context.Context, space, name string, version int64) (bool, error) {
	space, version = b.space(space), b.flip(version)
	if b.remove != nil && version >= 0 {
		version = b.remove(version)
	}
	if b.absent {
		if _, found, err := b.Store.GetDocument(ctx, space, name); err == nil && !found {
			return false, nil
		}
	}
	return b.Store.RemoveDocument(ctx, space, name, version)
}

func init() {
	for name, b := range brokenDocuments {
		broken["documents: "+name] = func(s store.Store) store.Store {
			b.Store = s
			return b
		}
	}
}
