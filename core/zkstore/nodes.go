package zkstore

import (
	"bytes"
	"cmp"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/binary"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
)

// The nodes of a store, below its root, the chroot and the prefix:
//
//	l/<name>/<key>/<entry>    holds and waiters of locks; name and key are digests, and containers
//	s/<name>/<key>/<entry>    those of semaphores
//	c/<latch>/<generation>/<participant>
//	fence                     the base of fences
//	clock                     is written to learn the time of the leader
//
// An entry is an ephemeral sequential node. Its name is <ID>.<weight>.<place>.<sequence>.

// digest returns a digest of texts as the name of a node. No other list of texts has the same
// encoding.
func (s *Store) digest(texts ...string) string {
	var b []byte
	for _, text := range texts {
		b = binary.AppendUvarint(b, uint64(len(text)))
		b = append(b, text...)
	}
	var sum []byte
	if len(s.config.secret) == 0 {
		all := sha256.Sum256(b)
		sum = all[:]
	} else {
		mac := hmac.New(sha256.New, s.config.secret)
		mac.Write(b)
		sum = mac.Sum(nil)
	}
	return base64.RawURLEncoding.EncodeToString(sum[:16])
}

// place is where the entries of a key are.
type place struct {
	name, key string
	path      string // of the container
}

// kindOf returns the node of a kind of leases.
func kindOf(name string) string {
	if strings.HasPrefix(name, store.SemaphoreKind) {
		return "s"
	}
	return "l"
}

func (s *Store) nameOf(name string) string {
	return s.root + "/" + kindOf(name) + "/" + s.digest("name", name)
}

func (s *Store) placeOf(name, key string) place {
	return place{name, key, s.nameOf(name) + "/" + s.digest("key", name, key)}
}

// shown is the data of a key's container: the key, unless it is secret.
func (s *Store) shown(p place) []byte {
	if len(s.config.secret) > 0 {
		return nil
	}
	return []byte(p.key)
}

// child is an entry by its name.
type child struct {
	name   string
	id     string // as in the name
	weight int    // at first: a downgrade reduces it
	place  int64  // the number at which it was queued anew; zero if the sequence is its place; or trying
	seq    int32
}

// trying is the place of a request that does not queue: if it does not hold, it leaves in a moment.
const trying = -1

// nodeID returns an ID as a part of a name: as it is, unless it has characters that cannot be in one.
func nodeID(id string) string {
	for i := range len(id) {
		if c := id[i]; c != '-' && c != '_' && (c < '0' || c > '9') && (c < 'A' || c > 'Z') && (c < 'a' || c > 'z') {
			return "~" + base64.RawURLEncoding.EncodeToString([]byte(id))
		}
	}
	return id
}

// childName returns the name of an entry's node, without its sequence.
func childName(id string, weight int, place int64) string {
	return fmt.Sprintf("%s.%d.%d.", nodeID(id), weight, place)
}

// parseChild returns the entry of a name. It reports false for a node that no store has created.
func parseChild(name string) (c child, ok bool) {
	parts := strings.Split(name, ".")
	if len(parts) != 4 {
		return c, false
	}
	weight, err1 := strconv.Atoi(parts[1])
	place, err2 := strconv.ParseInt(parts[2], 10, 64)
	seq, err3 := strconv.ParseInt(parts[3], 10, 32)
	if err := cmp.Or(err1, err2, err3); err != nil {
		return c, false
	}
	return child{name, parts[0], weight, place, int32(seq)}, true
}

// inOrder returns the entries of a key's children, the oldest first. The sequence starts anew only
// with a new container, which has no entries then, and overflows from its largest number to its
// smallest.
func inOrder(names []string) []child {
	list := make([]child, 0, len(names))
	for _, name := range names {
		if c, ok := parseChild(name); ok {
			list = append(list, c)
		}
	}
	slices.SortFunc(list, func(a, b child) int { return int(a.seq - b.seq) })
	return list
}

// facts are the data of an entry, and what the server adds.
type facts struct {
	weight, capacity, fences int
	ttl                      time.Duration
	joined                   time.Time // by the clock of its process
	label                    string
	czxid, owner             int64
}

// format is the version of the data of entries.
const format = "1"

func (f *facts) encode() []byte {
	text := fmt.Appendf(nil, "%s %d %d %d %d %d\n", format, f.weight, f.capacity, f.fences, f.ttl.Microseconds(), f.joined.UnixMicro())
	return append(text, f.label...)
}

func (f *facts) decode(data []byte) bool {
	head, label, found := bytes.Cut(data, []byte{'\n'})
	var (
		version     string
		ttl, joined int64
	)
	n, err := fmt.Sscan(string(head), &version, &f.weight, &f.capacity, &f.fences, &ttl, &joined)
	f.ttl, f.joined, f.label = time.Duration(ttl)*time.Microsecond, time.UnixMicro(joined), string(label)
	return found && err == nil && n == 6 && version == format
}
