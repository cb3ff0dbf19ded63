// Package namesake is the register of a process's mechanisms on each store. It finds those with the
// same name and different settings, which share their state, so that each overrides the others'
// settings; and for people who look at what the mechanisms do it has a counter for each name, and
// the mechanisms themselves.
package namesake

import (
	"context"
	"log/slog"
	"runtime"
	"sync"
	"weak"

	"github.com/lockkeeper/lockkeeper/internal/base/live"
)

// Register has the mechanisms of a store, which embeds it. It keeps at most maxNames names:
// mechanisms with later names are not compared.
type Register struct {
	mu      sync.Mutex
	names   map[id]*entry
	watched int // by how many
	calls   live.Counter
	down    func() bool // whether the store takes its server to be down; nil if it has none
}

const maxNames = 4096

// id is a kind of mechanism, such as "lock", and a name.
type id struct{ kind, name string }

type entry struct {
	settings Settings // of the first mechanism, or of the last Change
	members  map[*Member]struct{}
	logged   bool
	counter  live.Counter
}

// Settings are the settings that mechanisms of one name must have in common.
type Settings struct {
	Text   string
	Secret string // compared, and not logged
}

// Store is a store that embeds a Register.
type Store interface{ register() *Register }

func (r *Register) register() *Register { return r }

// Member is a mechanism that has joined. It is nil if the store has no register, or the register is
// full.
type Member struct {
	register *Register
	entry    *entry
	id       id
	owner    func() any // returns the mechanism, or nil if it was collected; nil before LeaveWith
}

// Join enters a mechanism into its store's register. If another one of the name has other settings,
// it logs that, once for each name.
func Join(store any, logger *slog.Logger, kind, name string, s Settings) *Member {
	holder, ok := store.(Store)
	if !ok {
		return nil
	}
	r := holder.register()
	m := &Member{register: r, id: id{kind, name}}
	r.mu.Lock()
	e := r.names[m.id]
	if e == nil {
		if len(r.names) >= maxNames {
			r.mu.Unlock()
			return nil
		}
		if r.names == nil {
			r.names = make(map[id]*entry)
		}
		e = &entry{settings: s, members: make(map[*Member]struct{})}
		for range r.watched {
			e.counter.Start()
		}
		r.names[m.id] = e
	}
	m.entry = e
	e.members[m] = struct{}{}
	others := e.settings
	differ := others != s && !e.logged
	e.logged = e.logged || differ
	r.mu.Unlock()
	if differ {
		logger.LogAttrs(context.Background(), slog.LevelWarn, "lockkeeper: mechanisms with the same name have different settings",
			slog.String("mechanism", kind), slog.String("policy", name), slog.String("settings", s.Text), slog.String("others", others.Text))
	}
	return m
}

// Group describes the members of one kind and name.
type Group struct {
	Kind, Name string
	Settings   string // their Text
	Members    int
	Counter    *live.Counter
}

// Members returns the members of a store's register, in no order.
func Members(store any) []Group {
	holder, ok := store.(Store)
	if !ok {
		return nil
	}
	r := holder.register()
	r.mu.Lock()
	defer r.mu.Unlock()
	groups := make([]Group, 0, len(r.names))
	for id, e := range r.names {
		groups = append(groups, Group{id.kind, id.name, e.settings.Text, len(e.members), &e.counter})
	}
	return groups
}

// Watch starts the counters of a store's mechanisms, also of those to come, until stop is called,
// once.
func Watch(store any) (stop func()) {
	holder, ok := store.(Store)
	if !ok {
		return func() {}
	}
	r := holder.register()
	r.watch(1, (*live.Counter).Start)
	return func() { r.watch(-1, (*live.Counter).Stop) }
}

func (r *Register) watch(n int, change func(*live.Counter)) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.watched += n
	change(&r.calls)
	for _, e := range r.names {
		change(&e.counter)
	}
}

// Calls returns the counter of the store's calls to its server.
func (r *Register) Calls() *live.Counter { return &r.calls }

// Serves says that the store has a server, which it takes to be down while down reports it. It is
// called before mechanisms use the store.
func (r *Register) Serves(down func() bool) { r.down = down }

// Server describes a store's server.
type Server struct {
	Down  bool // the store takes it to be down, and fails fast
	Calls *live.Counter
}

// ServerOf describes the server of a store. It reports false if the store has none, or no register.
func ServerOf(store any) (Server, bool) {
	holder, ok := store.(Store)
	if !ok || holder.register().down == nil {
		return Server{}, false
	}
	r := holder.register()
	return Server{r.down(), &r.calls}, true
}

// Counter returns the counter of the member's name, or nil.
func (m *Member) Counter() *live.Counter {
	if m == nil {
		return nil
	}
	return &m.entry.counter
}

// LeaveWith has [Owner] return the owner, which it does not keep from being collected, and removes
// the member from the register when the owner was dropped without Close. It is the last step of
// building the owner.
func LeaveWith[O any](owner *O, m *Member) {
	if m == nil {
		return
	}
	runtime.AddCleanup(owner, (*Member).Leave, m)
	living := weak.Make(owner)
	m.register.mu.Lock()
	defer m.register.mu.Unlock()
	m.owner = func() any {
		if o := living.Value(); o != nil {
			return o
		}
		return nil
	}
}

// Owner returns a mechanism of this kind and name on a store, or nil if there is none. Of several
// it is any one that has not left. Its type is that which the mechanism calls [LeaveWith] with:
// *tokenbucket.Limiter of rate_limit, *guard.Guard of idempotency, *delay.Queue of delay, and
// *lease.Pool of lock and semaphore.
func Owner(store any, kind, name string) any {
	holder, ok := store.(Store)
	if !ok {
		return nil
	}
	r := holder.register()
	r.mu.Lock()
	defer r.mu.Unlock()
	e := r.names[id{kind, name}]
	if e == nil {
		return nil
	}
	for m := range e.members {
		if m.owner == nil {
			continue
		}
		if owner := m.owner(); owner != nil {
			return owner
		}
	}
	return nil
}

// Change replaces the settings of the name, with which later members are compared.
func (m *Member) Change(s Settings) {
	if m != nil {
		m.register.mu.Lock()
		m.entry.settings = s
		m.register.mu.Unlock()
	}
}

// Leave removes a mechanism that is closed from the register. It may be called more than once.
func (m *Member) Leave() {
	if m == nil {
		return
	}
	m.register.mu.Lock()
	defer m.register.mu.Unlock()
	delete(m.entry.members, m)
	if len(m.entry.members) == 0 && m.register.names[m.id] == m.entry {
		delete(m.register.names, m.id)
	}
}
