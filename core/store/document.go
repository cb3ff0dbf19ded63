package store

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"
)

// Documents keeps small texts by space and name, for people and for rules. core/memstore,
// core/redisstore, core/pgstore and core/etcdstore implement it; storetest.Documents is the suite that
// every implementation must pass. A caller that has another store finds it with [As].
//
// A document has a version, a positive number. Each put of other data makes a version that is larger
// than every earlier one of the name, also after the document was removed or has expired. Puts and
// removes can name the version that the caller has seen, and then change no other one.
//
// Every method is one atomic step for each document. Times are durations, counted by the store's
// own clock; ages on etcd, which tells no time, by that of the process which has put the document.
// Errors match ErrUnavailable, ErrInvalidDocument, or are the context's.
type Documents interface {
	// PutDocument writes a document, and returns its version and true, if req.Version allows it:
	//   - [AnyVersion]: always. The last put counts, and each makes a version.
	//   - [NoDocument]: if the name has no document.
	//   - a version: if the document has it. With the data that the document has already, the put is
	//     a renewal: the document keeps its version and its age, and its TTL begins anew.
	//
	// Otherwise it changes nothing, and returns false with the version of the document, or 0 if there
	// is none.
	//
	// A put with NoDocument or a version may be sent twice. If the document has the same data already,
	// in the place of what req.Version names, the repeat changes nothing, and returns the version and
	// true. So several callers that put equal data in the place of one version all succeed, unless the
	// data name the caller. A repeat of a put with AnyVersion makes another version of the same data.
	//
	// A space that has [MaxDocuments] documents, and a store without room, take no further document:
	// the error matches ErrFull. The error of a request beyond the bounds of [DocumentRequest]
	// matches [ErrInvalidDocument].
	PutDocument(ctx context.Context, req DocumentRequest) (version int64, ok bool, err error)

	// GetDocument returns a document, or false if there is none.
	GetDocument(ctx context.Context, space, name string) (Document, bool, error)

	// ListDocuments yields the documents of a space, at most [MaxDocuments], each once, in no order.
	// It takes no snapshot: documents that change during the listing may be missing, or be seen
	// before or after the change. It ends with the first error.
	ListDocuments(ctx context.Context, space string) iter.Seq2[Document, error]

	// RemoveDocument removes a document with a version, or with any for [AnyVersion]. It reports
	// whether the name has no document now. So it returns true if there was none, as for its own
	// repeat, and false if the document has another version.
	RemoveDocument(ctx context.Context, space, name string, version int64) (bool, error)
}

const (
	// AnyVersion is the Version of a put or a remove that does not depend on the document's.
	AnyVersion int64 = 0
	// NoDocument is the Version of a put that must find no document.
	NoDocument int64 = -1

	// MaxDocuments is the largest number of documents in a space.
	MaxDocuments = 4096
	// MaxDocumentSize is the largest size of a document's data, in bytes.
	MaxDocumentSize = 1 << 20
	// MaxDocumentName is the largest length of a space and of a name, in bytes.
	MaxDocumentName = 1024
	// MaxDocumentTTL is how long a document is kept at most after its last put. To keep one for
	// longer, renew it.
	MaxDocumentTTL = 732 * 24 * time.Hour
)

// DocumentRequest puts a document.
type DocumentRequest struct {
	Space, Name string        // 1 to [MaxDocumentName] bytes each, of any kind
	Data        []byte        // at most [MaxDocumentSize] bytes
	TTL         time.Duration // from this put, at most [MaxDocumentTTL], which 0 means
	Version     int64         // the version that was seen, or [AnyVersion], or [NoDocument]
}

// Document is a document as it is kept.
type Document struct {
	Name    string
	Data    []byte
	Version int64
	Age     time.Duration // since the put that has made the version
	Expires time.Duration // until it is removed; more than zero
}

// ErrInvalidDocument is matched by the error of a request that is out of its bounds, such as a name
// that is too long. Nothing was done.
var ErrInvalidDocument = errors.New("lockkeeper: invalid document")

// Life returns the TTL of the document.
func (r *DocumentRequest) Life() time.Duration {
	if r.TTL == 0 {
		return MaxDocumentTTL
	}
	return r.TTL
}

// Check returns an error that matches ErrInvalidDocument if a field is out of its bounds. Stores
// call it.
func (r *DocumentRequest) Check() error {
	switch {
	case len(r.Data) > MaxDocumentSize:
		return fmt.Errorf("%w: data have %d bytes, at most %d are allowed", ErrInvalidDocument, len(r.Data), MaxDocumentSize)
	case r.TTL < 0 || r.TTL > MaxDocumentTTL:
		return fmt.Errorf("%w: the TTL %v is not between 0 and %v", ErrInvalidDocument, r.TTL, MaxDocumentTTL)
	case r.Version < NoDocument:
		return fmt.Errorf("%w: %d is not a version", ErrInvalidDocument, r.Version)
	}
	return CheckDocumentName(r.Space, r.Name)
}

// CheckDocumentName returns an error that matches ErrInvalidDocument if a space or a name is empty
// or too long. Stores call it.
func CheckDocumentName(space, name string) error {
	if err := CheckDocumentSpace(space); err != nil {
		return err
	}
	return checkDocumentText("name", name)
}

// CheckDocumentVersion is CheckDocumentName for a remove, whose version must not be negative.
func CheckDocumentVersion(space, name string, version int64) error {
	if version < AnyVersion {
		return fmt.Errorf("%w: %d is not a version", ErrInvalidDocument, version)
	}
	return CheckDocumentName(space, name)
}

// CheckDocumentSpace returns an error that matches ErrInvalidDocument if a space is empty or too
// long. Stores call it.
func CheckDocumentSpace(space string) error { return checkDocumentText("space", space) }

func checkDocumentText(what, text string) error {
	switch {
	case text == "":
		return fmt.Errorf("%w: the %s is empty", ErrInvalidDocument, what)
	case len(text) > MaxDocumentName:
		return fmt.Errorf("%w: the %s has %d bytes, at most %d are allowed", ErrInvalidDocument, what, len(text), MaxDocumentName)
	}
	return nil
}
