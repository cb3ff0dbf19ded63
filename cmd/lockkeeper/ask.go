package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/lockkeeper/lockkeeper/internal/operate"
)

// deed is an action, with the question before it and its object after it.
type deed struct {
	operate.Action
	what string                              // as in "release …?"
	seen view                                // its object, as the question shows it; nil if there is none
	now  func(context.Context) (view, error) // its object as it is by now
	made func() view                         // of an action that has made something; nil if it makes nothing
}

// carryOut carries out an action, after asking for it, and reports its outcome.
func (c *call) carryOut(ctx context.Context, d deed) error {
	if !c.yes {
		if agreed, err := c.ask(ctx, d); err != nil || !agreed {
			return err
		}
	}
	d.Kind, d.Operator, d.Why = c.kind, c.operator(), c.why
	outcome, err := operate.Do(ctx, c.store, d.Action)
	return c.report(ctx, d, outcome, err)
}

// ask shows the object and the effect of an action, and returns the answer of the operator.
func (c *call) ask(ctx context.Context, d deed) (agreed bool, err error) {
	if d.seen != nil {
		d.seen.text(c.errs)
	}
	c.errs.line("%s", c.kind.Effect())
	_, _ = fmt.Fprintf(c.errs.w, "%s? [y/N] ", printable(d.what))
	answer, err := c.readAnswer(ctx)
	if err != nil {
		return false, err
	}
	switch strings.ToLower(strings.TrimSpace(answer)) {
	case "y", "yes":
		return true, nil
	}
	c.errs.line("Nothing was done.")
	return false, errFound
}

// readAnswer reads a line of the terminal.
func (c *call) readAnswer(ctx context.Context) (string, error) {
	answers := make(chan string, 1)
	go func() {
		text, _ := bufio.NewReader(c.stdin).ReadString('\n') // an end without an answer is a no
		answers <- text
	}()
	select {
	case text := <-answers:
		return text, nil
	case <-ctx.Done():
		return "", context.Cause(ctx)
	}
}

// outcomeView is how an action ended.
type outcomeView struct {
	Outcome operate.Outcome `json:"outcome"`
	Error   string          `json:"error,omitempty"`
	Now     view            `json:"now,omitempty"`  // of one that has changed; none if it is gone
	Made    view            `json:"made,omitempty"` // of one that is done
	what    string
}

func (v *outcomeView) text(p printer) {
	switch v.Outcome {
	case operate.Done:
		logged := ", and in the log"
		if v.Error != "" {
			logged = ""
		}
		p.line("Done%s: %s.", logged, v.what)
		if v.Made != nil {
			v.Made.text(p)
		}
	case operate.Changed:
		p.line("It is not as you have seen it, and nothing was done: %s.", v.what)
		v.current(p)
	}
}

// current prints an object that has changed.
func (v *outcomeView) current(p printer) {
	switch {
	case v.Now != nil:
		p.line("This is how it is now:")
		v.Now.text(p)
	case v.Error == "":
		p.line("It is gone.")
	}
}

// report prints the outcome of an action. An error beside an outcome that is known is that of its log,
// or of looking again.
func (c *call) report(ctx context.Context, d deed, outcome operate.Outcome, err error) error {
	if errors.Is(err, operate.ErrInvalid) {
		return usageError{err.Error()}
	}
	v := &outcomeView{Outcome: outcome, what: d.what}
	if outcome == operate.Changed {
		now, failed := d.now(ctx)
		if err = errors.Join(err, failed); failed == nil {
			v.Now = now
		}
	}
	if outcome == operate.Done && d.made != nil {
		v.Made = d.made()
	}
	if err != nil {
		v.Error = printable(err.Error())
	}
	if c.json || outcome == operate.Done || outcome == operate.Changed {
		if err := c.print(v); err != nil {
			return err
		}
	}
	return c.ends(outcome, err)
}

// ends returns the error with which the command ends after an outcome.
func (c *call) ends(outcome operate.Outcome, err error) error {
	if err != nil && (outcome == operate.Done || outcome == operate.Changed) {
		c.errs.line("lockkeeper %s: %v", c.name, err)
	}
	switch outcome {
	case operate.Done:
		return nil
	case operate.Changed:
		return errFound
	case operate.Unconfirmed:
		return fmt.Errorf("the store may have done it, look again: %w", err)
	}
	return err
}
