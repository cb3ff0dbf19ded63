package etcdstore

import (
	"context"
	"time"
)

// beat reads the watched keys. If one has changed, and the watch has no event, the watch hangs.
func (l *line) beat(ctx context.Context) {
	fresh, err := l.read(ctx)
	if err != nil || same(l.seen, fresh) {
		return
	}
	late := time.NewTimer(overdue)
	defer late.Stop()
	select {
	case reply, ok := <-l.watch.replies:
		if ok && reply.Err() == nil {
			if l.watch.prefix {
				for _, event := range reply.Events {
					l.seen.apply(event)
				}
			}
			break
		}
		l.stopWatch()
	case <-late.C:
		if l.relevant(fresh) {
			l.store.hangs(ctx)
			l.stopWatch()
		}
	case <-ctx.Done():
		return
	}
	if fresh.revision > l.seen.revision {
		l.seen = fresh
	}
}

// relevant reports whether the watch should have had an event about the change.
func (l *line) relevant(fresh *snapshot) bool {
	if l.watch.prefix {
		return true
	}
	id := l.watch.at[len(l.of.path):]
	return l.seen.entries[id].mod != fresh.entries[id].mod
}

// same reports whether two snapshots have the same entries.
func same(a, b *snapshot) bool {
	if len(a.entries) != len(b.entries) {
		return false
	}
	for id, e := range a.entries {
		if b.entries[id].mod != e.mod {
			return false
		}
	}
	return true
}
