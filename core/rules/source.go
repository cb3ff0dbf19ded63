package rules

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
)

// Source is where a document comes from: [File], [Store] or [Func].
type Source interface {
	// check returns an error of a source that can never be read.
	check() error
	// read returns the document and its revision. last is the text that was read before.
	read(ctx context.Context, last []byte) (text []byte, revision int64, err error)
	// kind and name describe the source to people.
	kind() string
	name() string
}

// errAbsent is matched by the error of a source that has no document.
var errAbsent = errors.New("rules: there is no document")

// File returns a source that reads a file. It is polled by its content and not watched, so it may be
// replaced by a rename, by the change of a link on the way to it (a ConfigMap), or written in place.
//
// A text that has changed is read again until it is the same for 100 ms, so that a file which is
// being written in place is not taken for a whole one. That is no promise for a slow writer: write
// another file, and rename it.
func File(path string) Source { return fileSource(path) }

type fileSource string

// A file is settled when two reads, this long apart, return the same. It is read so many times.
const (
	settleTime  = 100 * time.Millisecond
	settleReads = 10
)

func (f fileSource) check() error {
	if f == "" {
		return errors.New("File: the path is empty")
	}
	return nil
}

func (f fileSource) kind() string { return "file" }
func (f fileSource) name() string { return filepath.Base(string(f)) }

func (f fileSource) read(ctx context.Context, last []byte) ([]byte, int64, error) {
	text, err := f.readOnce()
	for n := 1; err == nil && !bytes.Equal(text, last); n++ {
		if n == settleReads {
			return nil, 0, fmt.Errorf("rules: %s changes while it is read", string(f))
		}
		if !backoff.Sleep(ctx, settleTime) {
			return nil, 0, context.Cause(ctx)
		}
		last = text
		text, err = f.readOnce()
	}
	if errors.Is(err, fs.ErrNotExist) {
		err = fmt.Errorf("%w: %w", errAbsent, err)
	}
	return text, 0, err
}

// readOnce returns the content of the file, cut behind the largest size of a document.
func (f fileSource) readOnce() ([]byte, error) {
	info, err := os.Stat(string(f)) // opening a pipe would block
	if err == nil && !info.Mode().IsRegular() {
		err = fmt.Errorf("rules: %s is no regular file", string(f))
	}
	if err != nil {
		return nil, err
	}
	file, err := os.Open(string(f))
	if err != nil {
		return nil, err
	}
	defer func() { _ = file.Close() }()
	return io.ReadAll(io.LimitReader(file, MaxDocument+int64(len(byteOrderMark))+1))
}

// Func returns a source that calls a function, such as one that asks a service of the application.
// ctx ends after 2 s, and f must return then. f must not change the bytes that it has returned.
func Func(f func(ctx context.Context) ([]byte, error)) Source { return funcSource(f) }

type funcSource func(ctx context.Context) ([]byte, error)

func (f funcSource) check() error {
	if f == nil {
		return errors.New("Func: nil function")
	}
	return nil
}

func (f funcSource) kind() string { return "func" }
func (f funcSource) name() string { return "func" }

func (f funcSource) read(ctx context.Context, _ []byte) ([]byte, int64, error) {
	text, err := f(ctx)
	return text, 0, err
}

// Store returns a source that reads the document with a name from a store, as [Push] has put it. It
// is polled with one read, and at once after a Push of this process.
//
// A document that is not replaced stays in the store: it is renewed before its time in the store
// ends, which is two years.
func Store(st store.Documents, name string) Source { return &storeSource{st, name} }

type storeSource struct {
	store    store.Documents
	document string
}

func (s *storeSource) check() error {
	if naming.IsNil(s.store) {
		return errors.New("Store: nil store")
	}
	return checkName(s.document)
}

func (s *storeSource) kind() string { return "store" }
func (s *storeSource) name() string { return s.document }

func (s *storeSource) read(ctx context.Context, _ []byte) ([]byte, int64, error) {
	d, ok, err := s.store.GetDocument(ctx, space, s.document)
	switch {
	case err != nil:
		return nil, 0, err
	case !ok:
		return nil, 0, fmt.Errorf("%w: the store has none of the name %q", errAbsent, s.document)
	}
	if d.Expires < store.MaxDocumentTTL/2 { // the next poll tries again
		_, _, _ = s.store.PutDocument(ctx, store.DocumentRequest{Space: space, Name: s.document, Data: d.Data, Version: d.Version})
	}
	return unwrap(d.Data).text, d.Version, nil
}
