package main

import (
	"context"
	"time"

	"github.com/lockkeeper/lockkeeper/core/inspect"
	"github.com/lockkeeper/lockkeeper/core/store"
)

// doctorView lists what weakens the promises of a store.
type doctorView struct {
	Findings []findingView `json:"findings"`
}

type findingView struct {
	Found   string      `json:"found"`
	Weakens string      `json:"weakens"`
	Remedy  string      `json:"remedy"`
	Refused store.Cause `json:"refused,omitempty"` // the cause of the errors of steps, if there are any
}

func (v *doctorView) text(p printer) {
	if len(v.Findings) == 0 {
		p.line("Nothing weakens the promises of this store.")
		return
	}
	for i, f := range v.Findings {
		p.line("%d. %s", i+1, f.Found)
		p.line("   weakens: %s", f.Weakens)
		p.line("   to do:   %s", f.Remedy)
		if f.Refused != "" {
			p.line("   steps are refused; their errors have the cause %q", f.Refused)
		}
	}
}

func findingsOf(found []store.Finding) []findingView {
	views := []findingView{}
	for _, f := range found {
		views = append(views, findingView(f))
	}
	return views
}

// doctorPatience bounds a check. The store's timeout does not: a check measures how long replies
// take.
const doctorPatience = 10 * time.Second

// doctor prints what the store's Check finds, and returns errFound if it finds anything.
func doctor(ctx context.Context, c *call) error {
	ctx, cancel := context.WithTimeout(ctx, doctorPatience)
	defer cancel()
	found, err := inspect.Findings(ctx, c.store)
	if err != nil {
		return err
	}
	if err := c.print(&doctorView{findingsOf(found)}); err != nil {
		return err
	}
	if len(found) > 0 {
		return errFound
	}
	return nil
}
