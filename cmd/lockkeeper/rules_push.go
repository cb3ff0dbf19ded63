package main

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/lockkeeper/lockkeeper/core/rules"
	"github.com/lockkeeper/lockkeeper/internal/operate"
)

func pushRules(ctx context.Context, c *call) error {
	text, err := c.readDocument(c.args[0])
	if err != nil {
		return err
	}
	what := fmt.Sprintf("push %s as rules %s", quoted(c.args[0]), quoted(c.rulesName))
	return c.putRules(ctx, c.args[0], text, what)
}

func rollbackRules(ctx context.Context, c *call) error {
	version, err := strconv.ParseInt(c.args[0], 10, 64)
	if err != nil || version <= 0 {
		return misused("%q is no version", c.args[0])
	}
	name, err := c.document()
	if err != nil {
		return err
	}
	all, err := rules.History(ctx, c.store, name)
	if err != nil {
		return err
	}
	for _, v := range all {
		if v.Number == version {
			what := fmt.Sprintf("roll rules %s back to version %d", quoted(name), version)
			return c.putRules(ctx, "version "+c.args[0], v.Document, what)
		}
	}
	return c.nothing("The store does not have this version: rules history lists the ones that it has.")
}

// putRules pushes a document from a file or a version. If it has errors, putRules prints them, and
// returns errFound. what describes the push to the operator.
func (c *call) putRules(ctx context.Context, from string, text []byte, what string) error {
	seen, err := c.seenVersion()
	if err != nil {
		return err
	}
	name, present, err := c.present(ctx)
	if err != nil {
		return err
	}
	if err := rules.Check(text); err != nil {
		if err := c.print(&checkView{Files: []fileView{fileOf(from, err)}}); err != nil {
			return err
		}
		return errFound
	}
	if seen < 0 {
		seen = present.Number
	}
	pushed := &versionView{Hash: hashOf(text)}
	return c.carryOut(ctx, deed{
		Action: operate.Action{
			Name: name, Detail: fmt.Sprintf("hash %s, after version %d", pushed.Hash, seen),
			Run: func(ctx context.Context, a *operate.Action) (bool, error) {
				version, err := rules.Push(ctx, c.store, name, text, seen, a.Operator, a.Why)
				switch {
				case errors.Is(err, rules.ErrChanged):
					return false, nil
				case err != nil:
					return false, err
				}
				pushed.Version = version
				a.Detail = fmt.Sprintf("version %d, hash %s, after version %d", version, pushed.Hash, seen)
				return true, nil
			},
		},
		what: what,
		seen: diffOf(name, present, text),
		now: func(ctx context.Context) (view, error) {
			now, err := rules.Present(ctx, c.store, name)
			if err != nil || now.Number == 0 {
				return nil, err
			}
			return versionOf(now), nil
		},
		made: func() view { return pushed },
	})
}

// seenVersion returns the version of -seen, or -1 if it is not given.
func (c *call) seenVersion() (int64, error) {
	if c.seenRules == "" {
		return -1, nil
	}
	seen, err := strconv.ParseInt(c.seenRules, 10, 64)
	if err != nil || seen < 0 {
		return 0, misused("-seen: %q is no version", c.seenRules)
	}
	return seen, nil
}
