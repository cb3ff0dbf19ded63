package console

import (
	"context"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// namesData is the content of a page that lists the mechanisms of a kind.
type namesData struct {
	Kind  *kind     `json:"-"`
	Names []oneName `json:"names"`
	Age   string    `json:"age"`
	Error string    `json:"error,omitempty"`
}

type oneName struct {
	Name      string `json:"name"`
	Processes int    `json:"processes"`
	Held      int64  `json:"held"`
	Waiting   int64  `json:"waiting"`
	Settings  string `json:"settings"` // of most processes
	// Reachable is false if the state is in a store that only other processes have.
	Reachable bool `json:"reachable"`
}

// names answers which mechanisms of a kind there are.
func (q *request) names(k *kind) view {
	return view{title: k.Title, template: "names", load: func(ctx context.Context) (any, error) {
		s, err := q.console.fleet.get(ctx, false)
		if err != nil {
			return nil, err
		}
		d := &namesData{Kind: k, Age: short(oldest(s.processes) + time.Since(s.at))}
		if s.err != nil {
			d.Error = storeText(s.err) + " Only this process is shown."
		}
		for _, r := range operate.Rows(s.processes) {
			if r.Kind == k.Kind {
				d.Names = append(d.Names, oneName{
					r.Name, len(r.Parts), r.Held, r.Waiting, r.Settings()[0], q.console.storeOf(r) != nil,
				})
			}
		}
		return d, nil
	}}
}

// storeOf returns the store that has the state of a row, or nil if only other processes have it.
func (c *Console) storeOf(r *operate.Row) store.Documents {
	for _, p := range r.Parts {
		if p.Process.ID == c.presence.ID() {
			return c.stores[p.Mechanism.Store]
		}
	}
	if r.Reachable() {
		return c.stores[0]
	}
	return nil
}

// store returns the store that has the state of an object. A name that no living process has may have
// left state in the console's store.
func (q *request) store(ctx context.Context, of object) (store.Documents, error) {
	if len(q.console.stores) == 1 {
		return q.console.stores[0], nil
	}
	own := q.console.presence.Process()
	i := slices.IndexFunc(own.Mechanisms, func(m presence.Mechanism) bool { return m.Kind == of.Kind && m.Name == of.name })
	if i < 0 || ctx.Err() != nil {
		return q.console.stores[0], ctx.Err()
	}
	return q.console.stores[own.Mechanisms[i].Store], nil
}
