package console

import (
	"context"
	"errors"

	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// limitData is the content of the page of a limiter.
type limitData struct {
	Kind     *kind       `json:"-"`
	Name     string      `json:"name"`
	Settings []string    `json:"settings"`
	Denied   []deniedKey `json:"denied_keys,omitempty"`
	Unknown  string      `json:"unknown,omitempty"` // why its keys cannot be looked up here

	Looked *operate.KeyLimits `json:"looked_up,omitempty"` // of the key that was looked up
	Raw    string             `json:"-"`                   // the key, for the forms
}

func (q *request) limitForm(ctx context.Context, of object) (*limitData, error) {
	d := &limitData{Kind: of.kind, Name: of.name}
	s, err := q.console.fleet.get(ctx, false)
	if err != nil {
		return nil, err
	}
	for _, r := range operate.Rows(s.processes) {
		if r.Kind == of.Kind && r.Name == of.name {
			d.Settings = append(d.Settings, r.Settings()...)
			for _, k := range r.DeniedKeys() {
				d.Denied = append(d.Denied, deniedKey{operate.OneLine(k.Key), k.Denials})
			}
		}
	}
	l, free, err := q.limiter(ctx, of)
	if errors.Is(err, operate.ErrUnknownHere) {
		d.Unknown = sentence(err)
		return d, nil
	}
	if err != nil {
		return nil, err
	}
	defer free()
	if len(d.Settings) == 0 {
		d.Settings = []string{l.Name()}
	}
	return d, nil
}

func (q *request) limiter(ctx context.Context, of object) (*tokenbucket.Limiter, func(), error) {
	st, err := q.store(ctx, of)
	if err != nil {
		return nil, nil, err
	}
	return operate.Limiter(ctx, st, of.name)
}

// lookUp answers how a key of a form is. It stands in no URL.
func (q *request) lookUp(of object) (view, error) {
	switch of.Path {
	case "limits":
		return view{title: of.name, template: "limit", load: func(ctx context.Context) (any, error) {
			return q.limitOf(ctx, of, q.form.Get("key"))
		}}, nil
	case "operations":
		return view{title: of.name, template: "operation", load: func(ctx context.Context) (any, error) {
			return q.lookUpOperation(ctx, of)
		}}, nil
	case "locks", "permits", "tasks":
		of.id = operate.KeyID(q.form.Get("key"))
		return q.one(of)
	}
	return view{}, errNotFound
}

func (q *request) limitOf(ctx context.Context, of object, key string) (*limitData, error) {
	d, err := q.limitForm(ctx, of)
	if err != nil || d.Unknown != "" {
		return d, err
	}
	l, free, err := q.limiter(ctx, of)
	if err != nil {
		return nil, err
	}
	defer free()
	decision, err := l.Peek(ctx, key)
	if errors.Is(err, tokenbucket.ErrInvalidKey) {
		return nil, problem{400, "A key has 1 to 1,024 bytes."}
	}
	if err != nil {
		return nil, err
	}
	looked := operate.LimitsOf(q.key(key), decision)
	d.Looked, d.Raw = &looked, key
	return d, nil
}
