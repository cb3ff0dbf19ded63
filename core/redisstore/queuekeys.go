package redisstore

import "strings"

// lockKeys are the Redis keys of a lock, and of a request for it, in one slot of a Cluster: the record, the
// holds, the queue, and who is alive in it, of which scripts/queue.lua has the layout; a lone hold, which is
// there instead of all of them (scripts/lock.lua); what tells that the id has been released; and the
// largest fence.
type lockKeys [7]string

// shared is what every script of a lock has.
func (k *lockKeys) shared() []string { return k[:5] }

// withID is what a script of a lock has that may end what the id stands for.
func (k *lockKeys) withID() []string { return k[:6] }

func (k *lockKeys) fence() string { return k[6] }

// What is between the prefix and the tag of a key.
const (
	ofLocks      = ":l:{"
	ofSemaphores = ":s:{"
	ofLatches    = ":c:{"
)

func (s *Store) lockKeys(name, key, id string) lockKeys {
	tag := s.hash(name, key)
	return s.lockKeysOf(name, tag[:], id)
}

// lockKeysOf names the Redis keys of the lock that has a tag.
func (s *Store) lockKeysOf(name string, tag []byte, id string) (keys lockKeys) {
	s.queueKeys(keys[:], ofLocks, tag, []ending{{":", name}, {"h"}, {"q"}, {"w"}, {"=", name}, {"x:", id}, {"f"}})
	return keys
}

// permitKeys names the Redis keys of a semaphore, and of a request for a permit: those of a lock but for a
// lone hold, and with the heavy permits instead of a fence.
func (s *Store) permitKeys(name, key, id string) []string {
	tag := s.hash(name, key)
	return s.permitKeysOf(name, tag[:], id)
}

func (s *Store) permitKeysOf(name string, tag []byte, id string) []string {
	keys := make([]string, 6)
	s.queueKeys(keys, ofSemaphores, tag, []ending{{":", name}, {"h"}, {"q"}, {"w"}, {"x:", id}, {"v"}})
	return keys
}

// ending is how a Redis key ends. That of a record, and of a lone hold, has the name: whoever lists
// locks finds them so.
type ending [2]string

// queueKeys names one key for each ending. They are pieces of one string: a lock is asked for often.
func (s *Store) queueKeys(keys []string, of string, tag []byte, endings []ending) {
	stem := len(s.config.prefix) + len(of) + len(tag) + len("}")
	size := len(endings) * stem
	for _, end := range endings {
		size += len(end[0]) + len(end[1])
	}
	var b strings.Builder
	b.Grow(size)
	for _, end := range endings {
		b.WriteString(s.config.prefix)
		b.WriteString(of)
		b.Write(tag)
		b.WriteString("}")
		b.WriteString(end[0])
		b.WriteString(end[1])
	}
	text := b.String()
	for i, end := range endings {
		n := stem + len(end[0]) + len(end[1])
		keys[i], text = text[:n], text[n:]
	}
}

// withName matches the Redis keys that end in a name.
func (s *Store) withName(of, name string) (pattern string) {
	return glob.Replace(s.config.prefix) + of + "*}[:=]" + glob.Replace(name)
}

// tagOf returns the tag in a Redis key that ends in a name: a name that ends in another matches its
// pattern too.
func (s *Store) tagOf(key, of, name string) (tag string, ok bool) {
	rest, ok := strings.CutPrefix(key, s.config.prefix+of)
	if !ok {
		return "", false
	}
	tag, rest, ok = strings.Cut(rest, "}")
	return tag, ok && (rest == ":"+name || rest == "="+name)
}
