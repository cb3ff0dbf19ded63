package etcdstore

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"iter"
	"math/rand/v2"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/backoff"
)

// A document is a key on a lease of its own, which each put asks for. The lease stands for the put:
// a later put revokes it when it has moved the key, and the end of a document is its revocation,
// which cannot take what was put later. A put that reaches the server after that has no lease, and
// changes nothing.

var (
	opDocuments     = operation{name: "documents", writes: true}
	opReadDocuments = operation{name: "documents"}
	opEndDocument   = operation{name: "documents", writes: true, finishes: true}
)

// documentHead is the value of a document before its name and its data.
type documentHead struct {
	Layout    uint8
	Version   int64 // of a renewed document; 0 if Base and the revision give it
	Base      int64 // of fences, and so of versions
	Replaced  int64 // the Version of the put that has made the document's
	TTL       int64 // in µs
	Made, Put int64 // the version, and the last put: by the clock of the process, for people, in µs
	Name      uint16
}

const (
	documentLayout = 1
	// listedTogether is how many documents are read together, of up to a MiB each.
	listedTogether = 16
)

// document is a document as etcd has it.
type document struct {
	store.Document
	head documentHead
	kv   *mvccpb.KeyValue
}

// space returns the prefix of the documents of a space.
func (s *Store) space(name string) string {
	return s.config.prefix + "d/" + s.digest("documents", name) + "/"
}

func (s *Store) documentKey(space, name string) string {
	return s.space(space) + s.digest("document", space, name)
}

// document returns the document of a key, or nil if there is none: it is damaged, or its process,
// which is this one, is about to end it.
func (s *Store) document(kv *mvccpb.KeyValue) *document {
	if kv == nil {
		return nil
	}
	d := &document{kv: kv}
	size, err := binary.Decode(kv.Value, binary.BigEndian, &d.head)
	if err != nil || d.head.Layout != documentLayout || len(kv.Value)-size < int(d.head.Name) {
		return nil
	}
	text, now, ttl := kv.Value[size:], time.Now(), time.Duration(d.head.TTL)*time.Microsecond
	d.Document = store.Document{
		Name: string(text[:d.head.Name]), Data: text[d.head.Name:],
		Version: cmp.Or(d.head.Version, d.head.Base+kv.ModRevision<<blockBits),
		Age:     max(now.Sub(time.UnixMicro(d.head.Made)), 0),
		Expires: min(max(time.UnixMicro(d.head.Put).Add(ttl).Sub(now), 1), ttl),
	}
	if end, ok := s.ends.find(string(kv.Key), leaseOf(kv)); ok {
		if d.Expires = time.Until(end); d.Expires <= 0 {
			return nil
		}
	}
	return d
}

// PutDocument implements store.Documents: a read; if the put is allowed, a lease and a write; and
// the revocation of the lease of the document in whose place it is. The process ends the document
// in time. If it is dead, or the put is unconfirmed, the server does: up to 3.5 s later, and after
// a change of the leader a TTL later.
func (s *Store) PutDocument(ctx context.Context, req store.DocumentRequest) (version int64, ok bool, err error) {
	switch {
	case ctx.Err() != nil && s.life.Err() == nil:
		return 0, false, ctx.Err()
	case s.hooks.Begun():
		return 0, false, store.ErrClosed
	}
	if err := req.Check(); err != nil {
		return 0, false, err
	}
	if _, err := s.fenceBase(ctx); err != nil { // which writes the first one
		return 0, false, err
	}
	for try := range mostTries {
		if try > 2 && !backoff.Sleep(ctx, time.Duration(rand.Int64N(int64(min(try, 10))*int64(time.Millisecond)))) { //nolint:gosec // jitter
			return 0, false, ctx.Err()
		}
		version, ok, err := s.tryPut(ctx, &req)
		if !errors.Is(err, errAgain) {
			return version, ok, err
		}
	}
	return 0, false, errMoved
}

// tryPut puts a document unless it changes in between: then the error is errAgain.
func (s *Store) tryPut(ctx context.Context, req *store.DocumentRequest) (version int64, ok bool, err error) {
	at, began := s.documentKey(req.Space, req.Name), time.Now()
	count := clientv3.OpGet(s.space(req.Space), clientv3.WithPrefix(), clientv3.WithCountOnly())
	seen, err := run(ctx, s, opReadDocuments, func(ctx context.Context, _ bool) (*clientv3.TxnResponse, error) {
		return s.client.Txn(ctx).Then(clientv3.OpGet(at), count, clientv3.OpGet(s.fenceKey())).Commit()
	})
	if err != nil {
		return 0, false, err
	}
	kv, base := only(seen.Responses[0].GetResponseRange().Kvs), baseOf(seen.Responses[2].GetResponseRange().Kvs)
	head := documentHead{
		Layout: documentLayout, Base: base, Replaced: req.Version, TTL: req.Life().Microseconds(),
		Made: began.UnixMicro(), Put: began.UnixMicro(), Name: uint16(len(req.Name)), //nolint:gosec // at most MaxDocumentName
	}
	unchanged := clientv3.Compare(clientv3.ModRevision(at), "=", revisionOf(kv))
	switch d := s.document(kv); {
	case d == nil && req.Version > 0:
		return 0, false, nil
	case kv == nil && seen.Responses[1].GetResponseRange().Count >= store.MaxDocuments:
		if ended, err := s.ends.settle(ctx); ended || err != nil {
			return 0, false, cmp.Or(err, errAgain)
		}
		return 0, false, errFullSpace
	case d == nil:
	case req.Version == store.AnyVersion: // the last one counts
		unchanged = clientv3.Compare(clientv3.CreateRevision(at), "=", kv.CreateRevision)
	case req.Version != d.Version:
		return d.Version, req.Version == d.head.Replaced && string(req.Data) == string(d.Data), nil
	case string(req.Data) == string(d.Data): // a renewal
		head.Version, head.Replaced, head.Made = d.Version, d.head.Replaced, d.head.Made
	}
	value, err := binary.Append(nil, binary.BigEndian, &head)
	if err != nil {
		return 0, false, err
	}
	value = append(append(value, req.Name...), req.Data...)
	lease, err := run(ctx, s, opDocuments, func(ctx context.Context, _ bool) (*clientv3.LeaseGrantResponse, error) {
		return s.client.Grant(ctx, kindFor(req.Life()).seconds)
	})
	if err != nil {
		return 0, false, err
	}
	on, sent := lease.ID, time.Now()
	put, err := run(ctx, s, opDocuments, func(ctx context.Context, _ bool) (*clientv3.TxnResponse, error) {
		reply, err := s.client.Txn(ctx).If(unchanged, s.sameBase(base)).
			Then(clientv3.OpPut(at, string(value), clientv3.WithLease(on), clientv3.WithPrevKV()), count).
			Else(clientv3.OpGet(at)).Commit()
		if isLeaseGone(err) {
			return nil, nil // an answer, and no failure
		}
		return reply, err
	})
	var revision int64
	switch {
	case err != nil:
		if ctx.Err() == nil && !errors.Is(err, store.ErrUnconfirmed) { // it was refused
			_ = s.endDocument(ctx, at, on)
		}
		return 0, false, err
	case put == nil:
		return 0, false, errAgain
	case put.Succeeded:
		revision = put.Header.Revision
	default: // an earlier try may be there, or may arrive unless its lease ends
		now := only(put.Responses[0].GetResponseRange().Kvs)
		if leaseOf(now) != on {
			return 0, false, cmp.Or(s.endDocument(ctx, at, on), errAgain)
		}
		revision = now.ModRevision
	}
	s.ends.add(at, on, revision, sent.Add(req.Life()))
	old := leaseOf(kv)
	if put.Succeeded {
		before := put.Responses[0].GetResponsePut().PrevKv
		if before == nil && put.Responses[1].GetResponseRange().Count > store.MaxDocuments { // others were faster
			return 0, false, cmp.Or(s.endDocument(ctx, at, on), errFullSpace)
		}
		if of := leaseOf(before); of != on { // else it is that of an earlier try
			old = of
		}
	}
	if old != 0 { // it would last for its TTL
		_ = s.endDocument(context.WithoutCancel(ctx), at, old)
	}
	return cmp.Or(head.Version, base+revision<<blockBits), true, nil
}

func revisionOf(kv *mvccpb.KeyValue) int64 {
	if kv == nil {
		return 0
	}
	return kv.ModRevision
}

func leaseOf(kv *mvccpb.KeyValue) clientv3.LeaseID {
	if kv == nil {
		return 0
	}
	return clientv3.LeaseID(kv.Lease)
}

var errFullSpace = fmt.Errorf("%w: a space has at most %d documents", store.ErrFull, store.MaxDocuments)

// endDocument revokes the lease of a put. It ends the document, unless another put has moved it.
func (s *Store) endDocument(ctx context.Context, at string, on clientv3.LeaseID) error {
	_, err := run(ctx, s, opEndDocument, func(ctx context.Context, _ bool) (*clientv3.LeaseRevokeResponse, error) {
		reply, err := s.client.Revoke(ctx, on)
		if isLeaseGone(err) {
			return nil, nil // an answer, and no failure
		}
		return reply, err
	})
	if err == nil {
		s.ends.remove(at, on)
	}
	return err
}

// GetDocument implements store.Documents: one read. Age is by the clock of the process that has put
// the document, and so is Expires, unless that is this one.
func (s *Store) GetDocument(ctx context.Context, space, name string) (doc store.Document, found bool, err error) {
	if err := s.ready(ctx); err != nil {
		return doc, false, err
	}
	if err := store.CheckDocumentName(space, name); err != nil {
		return doc, false, err
	}
	kvs, err := s.gets(ctx, opReadDocuments, []string{s.documentKey(space, name)})
	if err != nil {
		return doc, false, err
	}
	d := s.document(kvs[0])
	if d == nil {
		return doc, false, nil
	}
	return d.Document, true, nil
}

// ListDocuments implements store.Documents: a read for each 16 documents, whose ages are those of
// GetDocument.
func (s *Store) ListDocuments(ctx context.Context, space string) iter.Seq2[store.Document, error] {
	return func(yield func(store.Document, error) bool) {
		if err := store.CheckDocumentSpace(space); err != nil {
			yield(store.Document{}, err)
			return
		}
		from := s.space(space)
		end := clientv3.GetPrefixRangeEnd(from)
		for listed, more := 0, true; more; {
			err := s.ready(ctx)
			var page *clientv3.GetResponse
			if err == nil {
				page, err = run(ctx, s, opReadDocuments, func(ctx context.Context, _ bool) (*clientv3.GetResponse, error) {
					return s.client.Get(ctx, from, clientv3.WithRange(end), clientv3.WithLimit(listedTogether))
				})
			}
			if err != nil {
				yield(store.Document{}, err)
				return
			}
			for _, kv := range page.Kvs {
				from = string(kv.Key) + "\x00"
				if d := s.document(kv); d != nil {
					if listed++; listed > store.MaxDocuments || !yield(d.Document, nil) {
						return
					}
				}
			}
			more = page.More
		}
	}
}

// RemoveDocument implements store.Documents: a read, a write, and the revocation of the document's
// lease.
func (s *Store) RemoveDocument(ctx context.Context, space, name string, version int64) (bool, error) {
	if err := s.ready(ctx); err != nil {
		return false, err
	}
	if err := store.CheckDocumentVersion(space, name, version); err != nil {
		return false, err
	}
	at := s.documentKey(space, name)
	for range mostTries {
		kvs, err := s.gets(ctx, opEndDocument, []string{at})
		if err != nil {
			return false, err
		}
		d := s.document(kvs[0])
		if d == nil || version != store.AnyVersion && version != d.Version {
			return d == nil, nil
		}
		gone, err := run(ctx, s, opEndDocument, func(ctx context.Context, _ bool) (bool, error) {
			reply, err := s.client.Txn(ctx).If(clientv3.Compare(clientv3.ModRevision(at), "=", d.kv.ModRevision)).
				Then(clientv3.OpDelete(at)).Commit()
			return err == nil && reply.Succeeded, err
		})
		if gone || isFull(err) { // a server without room refuses transactions, and no revocation
			err = s.endDocument(ctx, at, leaseOf(d.kv))
		}
		if gone || err != nil {
			return err == nil, err
		}
	}
	return false, errMoved
}
