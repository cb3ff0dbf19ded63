package redisstore

import "strings"

// queueKeys are the Redis keys of a lock or a semaphore, and of a request for it, in one slot of a
// Cluster: the record, the holds, the queue, and who is alive in it, of which scripts/queue.lua has
// the layout; what tells that the id has been released; and the largest fence of a lock, or the heavy
// permits of a semaphore.
type queueKeys []string

// shared is what every script of a lock has.
func (k queueKeys) shared() []string { return k[:4] }

// withID is what a script of a lock has that may end what the id stands for.
func (k queueKeys) withID() []string { return k[:5] }

func (k queueKeys) fence() string { return k[5] }

// What is between the prefix and the tag of a key.
const (
	ofLocks      = ":l:{"
	ofSemaphores = ":s:{"
	ofLatches    = ":c:{"
)

// lockKeys names the Redis keys of a lock.
func (s *Store) lockKeys(name, key, id string) queueKeys {
	return s.queueKeys(ofLocks, name, s.tag(name, key), id, "f")
}

// semaphoreKeys names the Redis keys of a semaphore.
func (s *Store) semaphoreKeys(name, key, id string) queueKeys {
	return s.queueKeys(ofSemaphores, name, s.tag(name, key), id, "v")
}

// queueKeys names Redis keys. Only the record's ends in the name.
func (s *Store) queueKeys(of, name, tag, id, last string) queueKeys {
	// Pieces of one string: a lock is asked for often.
	endings := [6][2]string{{":", name}, {"h"}, {"q"}, {"w"}, {"x:", id}, {last}}
	stem := len(s.config.prefix) + len(of) + len(tag) + len("}")
	var b strings.Builder
	b.Grow(6*(stem+1) + len(name) + 1 + len(id))
	for _, end := range endings {
		b.WriteString(s.config.prefix)
		b.WriteString(of)
		b.WriteString(tag)
		b.WriteString("}")
		b.WriteString(end[0])
		b.WriteString(end[1])
	}
	keys, text := make(queueKeys, len(endings)), b.String()
	for i, end := range endings {
		n := stem + len(end[0]) + len(end[1])
		keys[i], text = text[:n], text[n:]
	}
	return keys
}

// tagOf returns the tag in the key of the record of that name: a name that ends in another matches
// its pattern too.
func (s *Store) tagOf(record, of, name string) (tag string, ok bool) {
	rest, ok := strings.CutPrefix(record, s.config.prefix+of)
	if !ok {
		return "", false
	}
	tag, rest, ok = strings.Cut(rest, "}:")
	return tag, ok && rest == name
}
