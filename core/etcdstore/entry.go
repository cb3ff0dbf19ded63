package etcdstore

import (
	"cmp"
	"encoding/binary"
	"errors"
	"strings"
	"time"

	"go.etcd.io/etcd/api/v3/mvccpb"
	clientv3 "go.etcd.io/etcd/client/v3"

	"github.com/lockkeeper/lockkeeper/core/internal/position"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// entry is a request as etcd has it. Its ID is the end of its key.
type entry struct {
	position.Entry
	at  string           // its key in etcd
	mod int64            // revision of its last change
	on  clientv3.LeaseID // the lease that it hangs on

	base    int64 // of its fences
	fence   int64 // the first one, if not the one that its base and Created give; then it is the only one
	fences  int
	ttl     time.Duration
	since   int64 // by the clock of its process, for people: when it joined the queue, or was taken up as a hold, in ms
	process string
	label   string
	key     string // as text; "" if it is secret
}

const (
	// blockBits is the logarithm of how many fences belong to a revision.
	blockBits = 6
	// mostFences is how many of them a request gets. The others are for requests that are queued anew.
	mostFences = 48
)

// firstFence and lastFence are the fences of the entry as a hold.
func (e *entry) firstFence() int64 { return cmp.Or(e.fence, e.base+e.Created<<blockBits) }

func (e *entry) lastFence() int64 {
	if e.fence != 0 {
		return e.fence
	}
	return e.firstFence() + int64(min(max(e.fences, 1), mostFences)) - 1
}

// newEntry returns the entry of a request.
func newEntry(req *store.LeaseRequest) entry {
	return entry{
		Entry: position.Entry{ID: req.ID, Weight: req.Weight, Capacity: req.Capacity, Reserve: req.Reserve, Place: req.Place},
		ttl:   req.TTL, fences: req.Fences, label: req.Label, since: time.Now().UnixMilli(),
	}
}

// layout is the first byte of a value.
const layout = 1

// value returns the entry's value in etcd.
func (e *entry) value() string {
	held := int64(0)
	if e.Held {
		held = 1
	}
	b := append(make([]byte, 0, 96+len(e.label)+len(e.key)), layout)
	for _, n := range []int64{
		held, int64(e.Weight), int64(e.Capacity), int64(e.Reserve), e.Place, e.base, e.fence, int64(e.fences), e.ttl.Microseconds(), e.since,
	} {
		b = binary.AppendVarint(b, n)
	}
	for _, text := range []string{e.Order, e.process, e.label, e.key} {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	return string(b)
}

var errLayout = errors.New("an entry that this release cannot read")

// read returns the entry of a key and its value.
func read(kv *mvccpb.KeyValue) (e entry, err error) {
	e.at, e.mod, e.Created, e.on = string(kv.Key), kv.ModRevision, kv.CreateRevision, clientv3.LeaseID(kv.Lease)
	e.ID = e.at[strings.LastIndexByte(e.at, '/')+1:]
	b := kv.Value
	if len(b) == 0 || b[0] != layout {
		return e, errLayout
	}
	b = b[1:]
	number := func() int64 {
		n, size := binary.Varint(b)
		if size <= 0 {
			err, b = errLayout, nil
			return 0
		}
		b = b[size:]
		return n
	}
	text := func() string {
		n, size := binary.Uvarint(b)
		if size <= 0 || n > uint64(len(b)-size) {
			err, b = errLayout, nil
			return ""
		}
		s := string(b[size : size+int(n)]) //nolint:gosec // not longer than b
		b = b[size+int(n):]                //nolint:gosec // likewise
		return s
	}
	e.Held = number() == 1
	e.Weight, e.Capacity, e.Reserve = int(number()), int(number()), int(number())
	e.Place, e.base, e.fence = number(), number(), number()
	e.fences = int(number())
	e.ttl, e.since = time.Duration(number())*time.Microsecond, number()
	e.Order, e.process, e.label, e.key = text(), text(), text(), text()
	return e, err
}

// snapshot is the state of a key's entries at a revision.
type snapshot struct {
	revision int64
	entries  map[string]entry // by ID
}

// readAny is read, for which an entry that this release cannot read takes all there is.
func readAny(kv *mvccpb.KeyValue) entry {
	e, err := read(kv)
	if err != nil {
		e = entry{at: e.at, mod: e.mod, on: e.on, Entry: position.Entry{
			ID: e.ID, Created: e.Created, Weight: store.MaxCapacity, Capacity: store.MaxCapacity,
		}}
	}
	return e
}

// snapshotOf returns the entries of a reply.
func snapshotOf(revision int64, kvs []*mvccpb.KeyValue) *snapshot {
	seen := &snapshot{revision, make(map[string]entry, len(kvs))}
	for _, kv := range kvs {
		e := readAny(kv)
		seen.entries[e.ID] = e
	}
	return seen
}

// queue applies the rule to the entries.
func (s *snapshot) queue() *position.Queue {
	entries := make([]position.Entry, 0, len(s.entries))
	for _, e := range s.entries {
		entries = append(entries, e.Entry)
	}
	return position.Of(entries)
}

// apply applies an event of a watch, unless the snapshot has it already.
func (s *snapshot) apply(event *clientv3.Event) {
	if event.Kv.ModRevision <= s.revision {
		return
	}
	id := string(event.Kv.Key[strings.LastIndexByte(string(event.Kv.Key), '/')+1:])
	delete(s.entries, id)
	if event.Type == clientv3.EventTypePut {
		s.entries[id] = readAny(event.Kv)
	}
}
