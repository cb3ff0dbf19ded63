package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/lockkeeper/lockkeeper/core/presence"
	"github.com/lockkeeper/lockkeeper/core/tokenbucket"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// limiterView is a limiter without a key.
type limiterView struct {
	Name     string   `json:"name"`
	Settings []string `json:"settings"` // the different ones of the processes, the most frequent first
}

func (v *limiterView) text(p printer) {
	for _, text := range v.Settings {
		p.line("%s", text)
	}
}

// keyView is what a limiter's key has left.
type keyView struct {
	Name string `json:"name"`
	operate.KeyLimits
}

func (v *keyView) text(p printer) {
	state := "would be allowed now"
	if !v.Allowed {
		state = "is denied for " + operate.Short(v.RetryAfter)
	}
	if v.Held > 0 {
		state += ", and held for " + operate.Short(v.Held)
	}
	if v.Unenforced {
		state += "; its limits are not enforced"
	}
	p.line("limiter %s, key %s: it %s", v.Name, keyText(v.Key), state)
	var t table
	t.add("LIMIT", "LEFT", "OF", "WINDOW", "NEXT TOKEN IN", "FULL IN")
	for _, l := range v.Limits {
		t.add(quoted(l.Name), strconv.FormatInt(l.Remaining, 10), strconv.FormatInt(l.Capacity, 10),
			operate.Short(l.Window), operate.Short(l.Next), operate.Short(l.Full))
	}
	t.print(p)
}

func showLimit(ctx context.Context, c *call) error {
	switch len(c.args) {
	case 0:
		return c.names(ctx, "rate_limit")
	case 1:
		return showLimiter(ctx, c)
	}
	key, err := c.literalKey()
	if err != nil {
		return err
	}
	v, err := c.peek(ctx, key)
	if err != nil {
		return err
	}
	return c.print(v)
}

func showLimiter(ctx context.Context, c *call) error {
	row, err := c.limiterRow(ctx, presence.Fleet)
	if err != nil {
		return err
	}
	return c.print(&limiterView{c.args[0], row.Settings()})
}

// limiterRow returns the row of the limiter of the first argument.
func (c *call) limiterRow(ctx context.Context, read fleetReader) (*operate.Row, error) {
	fleet, err := read(ctx, c.store)
	if err != nil {
		return nil, err
	}
	for _, row := range operate.Rows(fleet) {
		if row.Kind == "rate_limit" && row.Name == c.args[0] {
			return row, nil
		}
	}
	return nil, c.nothing("No living process has a limiter of that name.")
}

func (c *call) peek(ctx context.Context, key string) (*keyView, error) {
	limiter, free, err := operate.Limiter(ctx, c.store, c.args[0])
	if err != nil {
		return nil, err
	}
	defer free()
	decision, err := limiter.Peek(ctx, key)
	if err != nil {
		return nil, keyError(err)
	}
	return &keyView{c.args[0], operate.LimitsOf(c.shown(key), decision)}, nil
}

func keyError(err error) error {
	if errors.Is(err, tokenbucket.ErrInvalidKey) {
		return misused("a key has 1 to 1,024 bytes")
	}
	return err
}

func resetLimit(ctx context.Context, c *call) error { return actOnLimit(ctx, c, "reset", "") }

func holdLimit(ctx context.Context, c *call) error {
	if c.hold < time.Millisecond || c.hold > tokenbucket.MaxHold {
		return misused("-for: between 1ms and 720h")
	}
	return actOnLimit(ctx, c, "hold", "for "+c.hold.String())
}

func actOnLimit(ctx context.Context, c *call, verb, detail string) error {
	key, err := c.literalKey()
	if err != nil {
		return err
	}
	seen, err := c.peek(ctx, key)
	if err != nil {
		return err
	}
	what := fmt.Sprintf("%s limiter %s, key %s", verb, c.args[0], keyText(c.shown(key)))
	if detail != "" {
		what += ", " + detail
	}
	return c.carryOut(ctx, deed{
		Action: operate.Action{Name: c.args[0], Key: key, Hold: c.hold, Detail: detail},
		what:   what,
		seen:   seen,
		now:    func(ctx context.Context) (view, error) { return c.peek(ctx, key) },
	})
}

// deniedView is the keys that a limiter has denied most.
type deniedView struct {
	Name string       `json:"name"`
	Keys []deniedLine `json:"denied_keys"`
}

type deniedLine struct {
	Key     string `json:"key"` // or its ID
	Denials uint64 `json:"denials"`
}

func (v *deniedView) text(p printer) {
	if len(v.Keys) == 0 {
		p.line("No key was denied lately.")
		return
	}
	var t table
	t.add("DENIALS", "KEY")
	for _, k := range v.Keys {
		t.add(strconv.FormatUint(k.Denials, 10), quoted(k.Key))
	}
	t.print(p)
}

func deniedKeys(ctx context.Context, c *call) error {
	row, err := c.limiterRow(ctx, watchFleet)
	if err != nil {
		return err
	}
	v := &deniedView{Name: c.args[0], Keys: []deniedLine{}}
	for _, k := range row.DeniedKeys() {
		v.Keys = append(v.Keys, deniedLine{k.Key, k.Denials})
	}
	return c.print(v)
}
