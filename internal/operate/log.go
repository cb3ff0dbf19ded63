package operate

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"slices"
	"time"

	"github.com/lockkeeper/lockkeeper/core/store"
	"github.com/lockkeeper/lockkeeper/internal/base/naming"
)

// Entry is an action in the log of a store.
type Entry struct {
	Kind     Kind          `json:"kind"`
	Name     string        `json:"name"`             // the mechanism's
	KeyID    string        `json:"key_id,omitempty"` // see [KeyID]
	Operator string        `json:"operator"`         // who
	Why      string        `json:"why"`              // on one line
	Detail   string        `json:"detail,omitempty"` // such as the time of a hold
	Outcome  Outcome       `json:"outcome"`          //
	Age      time.Duration `json:"age_ns,omitempty"` // by the store's clock
	Unread   string        `json:"unread,omitempty"` // why it cannot be read; "" if it can
	ID       string        `json:"id,omitempty"`     // of the entry
}

const (
	// logSpace has the documents of the log.
	logSpace = "log"
	// MaxLogged is the number of entries that [Log] returns at most.
	MaxLogged = 1000
	// keptFor is how long an entry is kept.
	keptFor = 90 * 24 * time.Hour
)

// Log returns the last actions, the latest first.
func Log(ctx context.Context, st store.Documents) ([]Entry, error) {
	entries, err := entriesOf(ctx, st)
	return entries[:min(len(entries), MaxLogged)], err
}

func entriesOf(ctx context.Context, st store.Documents) ([]Entry, error) {
	var entries []Entry
	var failed error
	for d, err := range st.ListDocuments(ctx, logSpace) {
		if failed = err; err != nil {
			break
		}
		var e Entry
		if err := json.Unmarshal(d.Data, &e); err != nil {
			e = Entry{Unread: "it is damaged, or of another version"}
		}
		e.ID, e.Age = d.Name, d.Age
		entries = append(entries, e)
	}
	slices.SortFunc(entries, func(a, b Entry) int { return cmp.Or(cmp.Compare(a.Age, b.Age), cmp.Compare(a.ID, b.ID)) })
	return entries, failed
}

// write adds an entry to the log. A full log loses its oldest quarter.
func write(ctx context.Context, st store.Documents, e Entry) error {
	e.ID, e.Age, e.Unread = "", 0, ""
	data, err := json.Marshal(e)
	if err != nil {
		return err
	}
	req := store.DocumentRequest{Space: logSpace, Name: naming.NewID(), Data: data, TTL: keptFor, Version: store.NoDocument}
	_, _, err = st.PutDocument(ctx, req)
	if !errors.Is(err, store.ErrFull) {
		return err
	}
	entries, err := entriesOf(ctx, st)
	if err != nil {
		return err
	}
	for _, old := range entries[len(entries)*3/4:] {
		if _, err := st.RemoveDocument(ctx, logSpace, old.ID, store.AnyVersion); err != nil {
			return err
		}
	}
	_, _, err = st.PutDocument(ctx, req)
	return err
}
